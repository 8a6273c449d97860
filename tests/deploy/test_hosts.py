"""Three hosts with a network between them: the numbers of one process; a host that is cut off is named by the rest."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.worker_support import LONG, SHORT, Launcher, launchers
from tests.deploy.hosts_support import address, ask, hosts, know, on, script

_HOSTS = 3
_ADDRESSES = [address(host) for host in range(_HOSTS)]


@pytest.fixture(scope="module")
def prefix() -> Iterator[str]:
    """The hosts' prefix."""
    with hosts("h", _HOSTS) as name:
        yield name


def _start(start: Any, prefix: str, host: int, *arguments: object) -> Launcher:
    more = ("--workers", ",".join(_ADDRESSES), "--index", host)
    return start(f"h{host}", *arguments, *more, before=on(prefix, host))


def test_three_hosts_compute_what_one_process_does_though_one_is_late(
    prefix: str, tmp_path: Path, trained: Any
) -> None:
    """Worker 0 starts 20 s after the others, which cannot even resolve its name at first. A proxy leads nowhere."""
    np = pytest.importorskip("numpy")
    keras = pytest.importorskip("keras")
    exact = (*SHORT, "--set", "training.precision=float64")
    by_name = ("--workers", ",".join(f"h{host}:2222" for host in range(_HOSTS)))
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:9")
    env = {**proxies, "no_proxy": "corp.example"}
    for host in range(_HOSTS):
        know(prefix, host, [1, 2])
    with launchers(tmp_path) as start:
        group = [
            start(f"h{host}", *exact, *by_name, "--index", host, env=env, before=on(prefix, host)) for host in (1, 2)
        ]
        for launcher in group:
            launcher.until("waiting for 1 of 3 workers: worker 0 (h0:2222): its name does not resolve (")
        time.sleep(max(0.0, group[0].began_s + 10 - time.monotonic()))
        for host in range(_HOSTS):
            know(prefix, host, range(_HOSTS))
        for launcher in group:
            launcher.until("waiting for 1 of 3 workers: worker 0 (h0:2222): connection refused. Here: this one")
        time.sleep(max(0.0, group[0].began_s + 20 - time.monotonic()))
        group.append(start("h0", *exact, *by_name, "--index", 0, env=env, before=on(prefix, 0)))
        assert [launcher.wait() for launcher in group] == [0, 0, 0], "\n".join(one.text for one in group)
        folder = group[-1].folder
    one = trained(*exact, "--workers", 1)
    ours, theirs = (keras.models.load_model(path / "model.keras").get_weights() for path in (folder, one.folder))
    assert max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)) < 1e-8


@contextmanager
def _training(prefix: str, folder: Path) -> Iterator[list[Launcher]]:
    """Three hosts that train, with all timeouts as they are by default."""
    with launchers(folder) as start:
        group = [_start(start, prefix, host, *LONG) for host in range(_HOSTS)]
        for launcher in group:
            launcher.until("epoch 2/", 90)
        yield group


def _all_but(group: list[Launcher], lost: int, code: int | set[int], within_s: float) -> list[Launcher]:
    """The others, which have ended with this code within so many seconds, and say which worker and where."""
    began = time.monotonic()
    survivors = [launcher for host, launcher in enumerate(group) if host != lost]
    codes = {launcher.wait(within_s) for launcher in survivors}
    assert codes <= (code if isinstance(code, set) else {code}), "\n".join(one.text for one in group)
    assert time.monotonic() - began < within_s
    for launcher in survivors:
        assert f"where: worker {lost} ({_ADDRESSES[lost]})" in launcher.text
    return survivors


@pytest.mark.parametrize("lost", [1, 0], ids=["a worker", "the leader"])
def test_a_host_that_is_cut_off_is_named_by_the_others(prefix: str, tmp_path: Path, lost: int) -> None:
    with _training(prefix, tmp_path) as group:
        script("netns-hosts.sh", "cut", prefix, lost)
        try:
            for launcher in _all_but(group, lost, 138, 45):
                assert f"error: worker {lost} is lost: nothing heard from it for" in launcher.text
            assert group[lost].wait(45) == 138, "the one that is cut off ends, too"
        finally:
            script("netns-hosts.sh", "join", prefix, lost)
        if lost != 0:
            assert json.loads((group[0].folder / "failure.json").read_text())["exit_code"] == 138


def test_a_link_that_is_cut_for_twelve_seconds_costs_the_wait_only(prefix: str, tmp_path: Path) -> None:
    """TensorFlow's own patience is ten seconds."""
    with _training(prefix, tmp_path) as group:
        script("netns-hosts.sh", "cut", prefix, 1)
        time.sleep(12)
        script("netns-hosts.sh", "join", prefix, 1)
        before = len(re.findall(r"^epoch ", group[0].text, re.M))
        for launcher in group:
            launcher.until(lambda text: len(re.findall(r"^epoch ", text, re.M)) >= before + 10)
        group[2].send(signal.SIGINT)
        assert [launcher.wait(20) for launcher in group] == [130, 130, 130], group[0].text


@pytest.mark.parametrize(
    ("which", "signum", "code", "words"),
    [
        ("worker process", signal.SIGKILL, 137, "worker 1 failed: signal 9 (SIGKILL), after step "),
        ("launcher", signal.SIGKILL, 138, "worker 1 is gone: its launcher ended without a word"),
        # Its own launcher sees it, or the group's leader: by the words of whichever is first.
        ("worker process", signal.SIGSTOP, {1, 138}, "worker 1 is stopped"),
        ("launcher", signal.SIGSTOP, 138, "worker 1 is lost: nothing heard from it for"),
    ],
)
def test_a_worker_that_is_killed_or_frozen_is_named_by_the_others(
    prefix: str, tmp_path: Path, which: str, signum: int, code: int | set[int], words: str
) -> None:
    with _training(prefix, tmp_path) as group:
        if which == "launcher":
            group[1].send(signum)
        else:
            os.kill(group[1].worker_pid(), signum)
        for launcher in _all_but(group, 1, code, 45):
            assert f"error: {words}" in launcher.text


def test_every_reason_for_a_missing_worker_is_told_apart(prefix: str, tmp_path: Path) -> None:
    nobody, idle, foreign, misspelt = "10.78.0.99:2222", _ADDRESSES[1], _ADDRESSES[2], "no-such-host.invalid:2222"
    addresses = ",".join((_ADDRESSES[0], nobody, idle, foreign, misspelt))
    web = subprocess.Popen(
        [*on(prefix, 2), sys.executable, "-m", "http.server", "2222"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with launchers(tmp_path) as start:
            one = start("h0", *SHORT, "--workers", addresses, "--index", 0, "--start-timeout", 10, before=on(prefix, 0))
            assert one.wait(20) == 1
            assert time.monotonic() - one.began_s < 10 + 5
    finally:
        web.kill()
        web.wait(10)
    reasons = (
        rf"worker 1 \({nobody}\): no answer \([a-z ]+\); worker 2 \({idle}\): connection refused; "
        rf"worker 3 \({foreign}\): answers but did not join( \([a-z ]+\))?; "
        rf"worker 4 \({misspelt}\): its name does not resolve \([a-z ]+\)"
    )
    assert re.search(rf"^waiting for 4 of 5 workers: {reasons}. Here: this one$", one.text, re.M), one.text
    assert re.search(rf"^error: 4 of 5 workers did not join within 10 s: {reasons}$", one.text, re.M), one.text


def test_the_same_index_on_two_hosts_is_told_to_both(prefix: str, tmp_path: Path) -> None:
    with launchers(tmp_path) as start:
        more = ("--workers", ",".join(_ADDRESSES[:2]), "--index", 0, "--start-timeout", 6)
        right, wrong = (start(f"h{host}", *SHORT, *more, before=on(prefix, host)) for host in (0, 1))
        assert [right.wait(20), wrong.wait(20)] == [1, 1]
    leads = f"worker 1 ({_ADDRESSES[1]}): its address leads to another worker"
    assert f"did not join within 6 s: {leads} (a second worker 0, by process {wrong.process.pid} on " in right.text
    assert f"did not join within 6 s: {leads} (this one)" in wrong.text
    assert "try:   check --index on 10.78.0.11" in right.text


def test_a_name_server_that_does_not_answer_is_told_and_holds_nothing_up(prefix: str, tmp_path: Path) -> None:
    ask(prefix, 0, "10.78.0.99")
    with launchers(tmp_path) as start:
        more = ("--workers", f"{_ADDRESSES[0]},far.example:2222", "--index", 0)
        one = start("h0", *SHORT, *more, "--start-timeout", 6, before=on(prefix, 0))
        assert one.wait(20) == 1
        assert time.monotonic() - one.began_s < 6 + 5
        reason = "worker 1 (far.example:2222): its name does not resolve (the name service does not answer)"
        assert f"error: 1 of 2 workers did not join within 6 s: {reason}" in one.text
        two = start("h0", *SHORT, *more, "--start-timeout", 60, before=on(prefix, 0))
        two.until(reason)
        began = time.monotonic()
        two.send(signal.SIGINT)
        assert two.wait(5) == 130
        assert time.monotonic() - began <= 2


def test_hosts_with_other_devices_do_not_start(prefix: str, tmp_path: Path) -> None:
    with launchers(tmp_path) as start:
        more = ("--workers", ",".join(_ADDRESSES[:2]))
        gpu = start("h0", *SHORT, *more, "--index", 0, env={"CUDA_VISIBLE_DEVICES": "0"}, before=on(prefix, 0))
        cpu = start("h1", *SHORT, *more, "--index", 1, env={"CUDA_VISIBLE_DEVICES": ""}, before=on(prefix, 1))
        assert [gpu.wait(30), cpu.wait(30)] == [2, 2], gpu.text + cpu.text
    for launcher in (gpu, cpu):
        assert "devices of each worker: worker 0 has 1 GPU, worker 1 has 1 CPU" in launcher.text
        assert not launcher.folder.exists()


def test_hosts_that_know_only_where_to_meet_learn_of_each_other(prefix: str, tmp_path: Path) -> None:
    with launchers(tmp_path) as start:
        group = []
        for host in range(_HOSTS):
            mpi = {"RANK": host, "SIZE": _HOSTS, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
            env = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in mpi.items()}
            group.append(start(f"h{host}", *SHORT, "--rendezvous", _ADDRESSES[0], env=env, before=on(prefix, host)))
        assert [launcher.wait() for launcher in group] == [0, 0, 0], "\n".join(one.text for one in group)
    config = (group[0].folder / "config.yaml").read_text()
    assert 'workers: ["10.78.0.10:2222", "10.78.0.11:2223", "10.78.0.12:2224"]' in config
