"""Process calls, and the ways around what a Python build or a kernel lacks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tfmp import procfs
from tfmp.errors import UsageError
from tfmp.workers import linux
from tfmp.workers.fork_client import ForkServer


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "TFMP_TEST": "here"}, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_children_are_found_with_and_without_the_kernels_list(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid in procfs.children()
    assert sorted(procfs.children_by_scan()) == sorted(procfs.children())


@pytest.mark.parametrize("wrapped", [True, False])
def test_pidfds_with_and_without_pythons_wrappers(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    if not wrapped:
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")
    pidfd = linux.pidfd_open(sleeper.pid)
    assert not os.get_inheritable(pidfd)
    assert select.select([pidfd], [], [], 0)[0] == []
    linux.pidfd_signal(pidfd, signal.SIGTERM)
    assert select.select([pidfd], [], [], 5)[0] == [pidfd]
    assert sleeper.wait() == -signal.SIGTERM
    linux.pidfd_signal(pidfd, signal.SIGTERM)  # gone: nothing happens
    os.close(pidfd)
    with pytest.raises(ProcessLookupError):
        linux.pidfd_open(sleeper.pid)


def test_a_process_is_recognised_by_its_whole_variable(sleeper: subprocess.Popen[bytes]) -> None:
    # Right after the fork /proc may still show the environment as it was before exec.
    deadline_s = time.monotonic() + 5
    while not procfs.environ_has(sleeper.pid, "TFMP_TEST=here"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert not procfs.environ_has(sleeper.pid, "TFMP_TEST=her")
    assert linux.session_of(sleeper.pid) == sleeper.pid


def test_a_sweep_ends_what_it_is_told_to_and_is_bounded(sleeper: subprocess.Popen[bytes]) -> None:
    other = subprocess.Popen(["sleep", "600"])
    assert linux.sweep_children(lambda pid: pid == sleeper.pid, 5)
    assert sleeper.pid not in procfs.children()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_other_systems_and_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            ForkServer.start()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux, received darwin"):
        ForkServer.start()


def test_zombies_of_others_are_reaped_those_that_somebody_waits_for_are_not() -> None:
    ours, theirs = (subprocess.Popen(["true"]) for _ in range(2))
    deadline_s = time.monotonic() + 5
    while {procfs.state_of(ours.pid), procfs.state_of(theirs.pid)} != {"Z"} and time.monotonic() < deadline_s:
        time.sleep(0.01)
    linux.reap_strays(keep=ours.pid)
    assert (procfs.state_of(theirs.pid), procfs.state_of(ours.pid)) == ("", "Z")
    assert ours.wait(1) == 0
