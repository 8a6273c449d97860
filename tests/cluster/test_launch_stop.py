"""Stopping: by the user, by a start that takes too long, and what happens to all that workers have started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.launch_support import IGNORE_TERM, Case, run_group
from tfmp.errors import TfmpError
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.group import WorkerGroup


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer.start(private_network="off") as fork_server:
        yield fork_server


@pytest.fixture(scope="module")
def forking() -> Iterator[ForkServer]:
    with ForkServer.start(["tests.cluster.launch_support"], private_network="off") as fork_server:
        yield fork_server


@pytest.fixture(scope="module", autouse=True)
def hangup() -> Iterator[None]:
    """As in a terminal: under nohup, which is respected, SIGHUP would do nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    case.end_leftovers()


class AfterLines:
    """Does something to this process or the group once ``count`` lines have come."""

    def __init__(self, count: int, *signals: int, pause_s: float = 0.0) -> None:
        self.count = count
        self.signals = list(signals)
        self.pause_s = pause_s
        self.next_s = 0.0

    def on_line(self, rank: int, stream: str, text: str) -> None:
        self.count -= 1

    def on_tick(self, group: WorkerGroup) -> None:
        if self.count <= 0 and self.signals and time.monotonic() >= self.next_s:
            self.next_s = time.monotonic() + self.pause_s
            os.kill(os.getpid(), self.signals.pop(0))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stop_signal_reaches_each_worker_once_as_sigterm(
    fork_server: ForkServer, case: Case, signum: int, code: int
) -> None:
    stop = AfterLines(2, signum)
    code_text = "signal.signal(15, lambda *_: (print('saved'), sys.exit(0))); print('on'); time.sleep(600)"
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    result = run_group(
        fork_server, case.programs(code_text, 2), on_line=stop.on_line, on_tick=stop.on_tick, tick_s=0.05
    )
    assert (result.exit_code, result.stopped_by, result.first_failure) == (code, signum, None)
    assert [e.cause for e in result.exits] == ["stopped by tfmp"] * 2
    assert result.tail(0) == result.tail(1) == ["on", "saved"]
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_a_stop_reaches_the_workers_of_a_fork_server_that_is_stopped(fork_server: ForkServer, case: Case) -> None:
    stop = AfterLines(2, signal.SIGTERM)
    code = "signal.signal(15, lambda *_: (print('saved'), sys.exit(0))); print('on'); time.sleep(600)"
    began_s = time.monotonic()

    def on_line(rank: int, stream: str, text: str) -> None:
        if text == "on":
            os.kill(fork_server.pid, signal.SIGSTOP)
        stop.on_line(rank, stream, text)

    result = run_group(fork_server, case.programs(code, 2), on_line=on_line, on_tick=stop.on_tick, tick_s=0.05)
    assert result.tail(0) == result.tail(1) == ["on", "saved"]
    assert (result.exit_code, [e.exit_code for e in result.exits]) == (143, [0, 0])
    assert time.monotonic() - began_s <= 3


def test_a_worker_deaf_to_sigterm_is_killed_after_the_grace_period(fork_server: ForkServer, case: Case) -> None:
    stop = AfterLines(2, signal.SIGTERM)
    began_s = time.monotonic()
    result = run_group(
        fork_server,
        case.programs(IGNORE_TERM, 2),
        on_line=stop.on_line,
        on_tick=stop.on_tick,
        grace_period_s=0.5,
        tick_s=0.05,
    )
    assert result.exit_code == 143
    assert [e.signal for e in result.exits] == [9, 9]
    assert 0.5 <= time.monotonic() - began_s <= 2.5
    case.assert_nothing_left()


def test_a_second_ctrl_c_does_not_wait(fork_server: ForkServer, case: Case) -> None:
    stop = AfterLines(1, signal.SIGINT, signal.SIGINT, pause_s=0.6)
    began_s = time.monotonic()
    result = run_group(
        fork_server,
        case.programs(IGNORE_TERM),
        on_line=stop.on_line,
        on_tick=stop.on_tick,
        grace_period_s=60,
        tick_s=0.05,
    )
    assert (result.exit_code, result.exits[0].signal) == (130, 9)
    assert time.monotonic() - began_s <= 3


def test_hangup_stays_ignored_under_nohup(fork_server: ForkServer, case: Case) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = AfterLines(1, signal.SIGHUP)
        result = run_group(
            fork_server,
            case.programs("print(i, flush=True); time.sleep(0.4)"),
            on_line=stop.on_line,
            on_tick=stop.on_tick,
        )
        assert (result.exit_code, stop.signals) == (0, [])
    finally:
        signal.signal(signal.SIGHUP, before)


SAVE = "signal.signal(15, lambda *_: (time.sleep(0.3), print('saved'), sys.exit(0))); print('on'); time.sleep(600)"


def test_a_program_inside_a_wrapper_script_gets_the_stop_and_the_time_to_save(
    fork_server: ForkServer, case: Case
) -> None:
    """The shell dies of SIGTERM at once; what it was waiting for must not be killed with it."""
    stop = AfterLines(1, signal.SIGTERM)
    inner = case.programs(SAVE)[0].argv or ()
    result = run_group(
        fork_server,
        case.command("sh", "-c", '"$@"; echo never', "sh", *inner, env={"PYTHONUNBUFFERED": "1"}),
        on_line=stop.on_line,
        on_tick=stop.on_tick,
        grace_period_s=60,
        tick_s=0.05,
    )
    assert (result.exit_code, result.exits[0].signal) == (143, 15)
    assert result.tail(0) == ["on", "saved"]


def test_a_wrapper_script_whose_program_is_deaf_is_killed_after_the_grace_period(
    fork_server: ForkServer, case: Case
) -> None:
    stop = AfterLines(1, signal.SIGTERM)
    inner = case.programs(IGNORE_TERM)[0].argv or ()
    began_s = time.monotonic()
    result = run_group(
        fork_server,
        case.command("sh", "-c", '"$@"; echo never', "sh", *inner),
        on_line=stop.on_line,
        on_tick=stop.on_tick,
        grace_period_s=0.4,
        tick_s=0.05,
    )
    assert (result.exit_code, result.tail(0)) == (143, ["deaf"])
    assert 0.4 <= time.monotonic() - began_s <= 3
    case.assert_nothing_left()


def test_a_stopped_process_can_be_stopped(fork_server: ForkServer, case: Case) -> None:
    frozen: list[int] = []

    def on_tick(group: WorkerGroup) -> None:
        if not frozen and case.log(0).read_text():
            frozen.append(group.pids[0])
            os.kill(group.pids[0], signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGTERM)

    began_s = time.monotonic()
    code = "print('on', flush=True); time.sleep(600)"
    result = run_group(fork_server, case.programs(code), on_tick=on_tick, grace_period_s=30, tick_s=0.05)
    assert (result.exit_code, result.exits[0].describe()) == (143, "signal 15 (SIGTERM)")
    assert time.monotonic() - began_s <= 5


def test_work_in_progress_gets_the_grace_period_a_start_does_not(forking: ForkServer, case: Case) -> None:
    lines: list[str] = []
    ready: list[int] = []

    def on_tick(group: WorkerGroup) -> None:
        if len(ready) == 2:
            ready.clear()
            os.kill(os.getpid(), signal.SIGTERM)

    result = run_group(
        forking,
        case.targets("ready_and_deaf", 2),
        on_event=lambda rank, event: ready.append(rank),
        on_line=lambda rank, stream, text: lines.append(text),
        on_tick=on_tick,
        failure_grace_s=0.0,
        tick_s=0.05,
    )
    assert (result.exit_code, lines) == (143, ["saved", "saved"])


def test_ctrl_c_while_the_fork_server_imports(case: Case) -> None:
    began_s = time.monotonic()
    with ForkServer.start(["tests.cluster.launch_slow_import"], private_network="off") as fork_server:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        try:
            result = run_group(fork_server, case.programs("pass"))
        finally:
            signal.signal(signal.SIGALRM, before)
    assert (result.exit_code, result.exits) == (130, ())
    assert time.monotonic() - began_s <= 3


def test_imports_without_end_are_bounded() -> None:
    message = r"still importing after 0\.3 s"
    with (
        ForkServer.start(["tests.cluster.launch_slow_import"], private_network="off") as fork_server,
        pytest.raises(TfmpError, match=message),
    ):
        fork_server.wait_ready(0.3)


def test_a_fork_server_that_is_stopped_while_it_imports_is_named() -> None:
    with ForkServer.start(["tests.cluster.launch_slow_import"], private_network="off") as fork_server:
        os.kill(fork_server.pid, signal.SIGSTOP)
        with pytest.raises(TfmpError, match=rf"fork server {fork_server.pid} was stopped \(SIGSTOP\) while importing"):
            fork_server.wait_ready(0.5)


def test_a_start_that_takes_too_long_names_who_is_missing(forking: ForkServer, case: Case) -> None:
    result = run_group(forking, case.targets("ready_but_one", 3, payload={"silent": 1}), start_timeout_s=0.5)
    assert (result.not_ready, result.exit_code) == ((1,), 1)
    assert result.problem == "worker 1 not ready within 0.5 s"
    assert [e.cause for e in result.exits] == ["stopped by tfmp"] * 3
    case.assert_nothing_left()


def test_the_caller_can_stop_a_group(fork_server: ForkServer, case: Case) -> None:
    result = run_group(
        fork_server, case.programs("time.sleep(600)"), on_tick=lambda group: group.stop("no step finished for 30 s")
    )
    assert (result.problem, result.exit_code) == ("no step finished for 30 s", 1)


@pytest.mark.parametrize("payload", [{"code": 0}, {"code": 3}, {"stay": True}])
def test_nothing_that_a_worker_started_outlives_the_group(
    forking: ForkServer, case: Case, payload: dict[str, Any]
) -> None:
    def on_event(rank: int, event: dict[str, Any]) -> None:
        if "stay" in payload:
            os.kill(os.getpid(), signal.SIGTERM)

    began_s = time.monotonic()
    result = run_group(forking, case.targets("daemons", payload=payload), on_event=on_event)
    assert time.monotonic() - began_s <= 4
    assert result.exit_code == payload.get("code", 143)
    assert case.leftovers() == []


def test_a_workers_daemon_lives_while_another_worker_may_use_it(fork_server: ForkServer, case: Case) -> None:
    alive: list[str] = []
    daemon = "subprocess.Popen(['sleep', '601'], start_new_session=True) if i == 0 else time.sleep(0.5); print(i)"
    result = run_group(
        fork_server,
        case.programs(daemon, 2),
        on_line=lambda rank, stream, text: alive.extend(case.leftovers() if rank == 1 else []),
    )
    assert result.exit_code == 0
    assert result.exits[0].seconds < result.exits[1].seconds
    assert "sleep 601 " in alive
    assert case.leftovers() == []
