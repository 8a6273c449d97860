"""``kill -9`` of the launcher or of the fork server, at any moment, leaves no process behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.launch_support import Case, run_group, run_launcher
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_errors import ForkServerDied
from tfmp.workers.fork_group import ForkServerGroup
from tfmp.workers.group import Line, ServerReady, Tick, WorkerGroup
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.signals import SignalInbox

ENDLESS = "time.sleep(600)"


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    case.end_leftovers()


def fork_server_pids(case: Case) -> list[int]:
    """Process ids of living fork servers of this case."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if b"tfmp.workers.fork_server" in command and case.mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.2])
def test_kill_9_of_the_launcher_during_the_import(case: Case, delay_s: float) -> None:
    launcher = run_launcher(
        case,
        "fork_server = ForkServer.start(['launch_slow_import'])\n"
        f"time.sleep({delay_s})\n"
        "print('started', flush=True)\nfork_server.wait_ready()",
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "started\n"
    launcher.kill()
    launcher.communicate(timeout=5)
    case.assert_nothing_left()


def test_kill_9_of_the_launcher_while_workers_and_their_daemons_run(case: Case) -> None:
    launcher = run_launcher(
        case,
        "with ForkServer.start(['tests.cluster.launch_support'], private_network='off') as fork_server:\n"
        "    specs = case.targets('daemons', 3, payload={'stay': True})\n"
        "    run_group(fork_server, specs, on_event=lambda rank, event: print(rank, flush=True))",
    )
    assert launcher.stdout is not None
    assert sorted(launcher.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
    assert len(case.leftovers()) >= 3 * 3 + 1  # the launcher, and a worker and two daemons, three times
    launcher.kill()
    launcher.communicate(timeout=5)
    case.assert_nothing_left()


def test_kill_9_of_launcher_and_fork_server_together_ends_the_workers(case: Case) -> None:
    launcher = run_launcher(
        case,
        "with ForkServer.start(private_network='off') as fork_server:\n"
        "    print(fork_server.pid, flush=True)\n"
        "    run_group(fork_server, case.programs('print(i); time.sleep(600)', 2),"
        " on_line=lambda *l: print(l, flush=True))",
    )
    assert launcher.stdout is not None
    fork_server_pid = int(launcher.stdout.readline())
    assert [launcher.stdout.readline()[0] for _ in range(2)] == ["(", "("]
    os.kill(fork_server_pid, signal.SIGSTOP)  # so that it sweeps nothing
    launcher.kill()
    os.kill(fork_server_pid, signal.SIGKILL)
    launcher.communicate(timeout=5)
    case.assert_nothing_left()


def test_kill_9_of_the_fork_server_ends_the_run_and_all_workers_daemons_included(case: Case) -> None:
    ready: list[int] = []

    def on_tick(group: WorkerGroup) -> None:
        if len(ready) == 2:
            ready.clear()
            os.kill(fork_server.pid, signal.SIGKILL)

    with ForkServer.start(
        ["tests.cluster.launch_chatty_import", "tests.cluster.launch_support"], private_network="off"
    ) as fork_server:
        result = run_group(
            fork_server,
            case.targets("daemons", 2, payload={"stay": True}),
            on_event=lambda rank, event: ready.append(rank),
            on_tick=on_tick,
            tick_s=0.05,
        )
        assert case.leftovers() == []
    assert result.exit_code == 1
    assert result.first_failure is None
    assert result.problem == (
        "the fork server that imports tests.cluster.launch_chatty_import, tests.cluster.launch_support "
        "and starts the workers was killed by signal 9 (SIGKILL)"
    )
    assert [e.cause for e in result.exits] == ["stopped by tfmp"] * 2


def test_a_fork_server_that_does_not_answer_does_not_hold_the_launcher(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForkServer, "let_go_on", lambda self: None)  # as if it hung, not just stood
    monkeypatch.setattr("tfmp.workers.lifecycle._KILL_CONFIRM_S", 0.3)
    stopped: list[int] = []
    alive_at_the_last_resort: list[list[str]] = []
    kill = ForkServer.kill

    def spy(self: ForkServer, worker_pids: Collection[int] = ()) -> None:
        alive_at_the_last_resort.append(case.leftovers())
        kill(self, worker_pids)

    monkeypatch.setattr(ForkServer, "kill", spy)

    def on_tick(group: WorkerGroup) -> None:
        if not stopped and group.pids:
            stopped.append(group.pids[0])
            os.kill(fork_server.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGTERM)

    with ForkServer.start(private_network="off") as fork_server:
        result = run_group(fork_server, case.programs(ENDLESS), on_tick=on_tick, grace_period_s=0.2, tick_s=0.05)
    assert result.exit_code == 143
    assert result.problem == "gave up waiting for the end of worker 0 after SIGKILL"
    assert alive_at_the_last_resort[0] == []  # SIGKILL reached it without the fork server
    case.assert_nothing_left()


def test_a_fork_server_that_dies_while_importing_is_reported(case: Case) -> None:
    with ForkServer.start(["tests.cluster.launch_slow_import"], private_network="off") as fork_server:
        os.kill(fork_server.pid, signal.SIGSEGV)
        with pytest.raises(ForkServerDied, match=r"was killed by signal 11 \(SIGSEGV\) while it imported"):
            run_group(fork_server, case.programs(ENDLESS))


def test_stop_signals_to_every_process_of_a_job_leave_the_fork_server_to_the_launcher(case: Case) -> None:
    """As schedulers send them; the fork server dying of it would cut the workers' grace period off."""
    signalled: list[int] = []

    def on_tick(group: WorkerGroup) -> None:
        if not signalled and case.log().read_text():
            signalled.extend(fork_server_pids(case) or [fork_server.pid])
            for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                os.kill(signalled[0], signum)
            os.kill(os.getpid(), signal.SIGTERM)

    code = "signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit(0))); print('on'); time.sleep(600)"
    with ForkServer.start(private_network="off") as fork_server:
        result = run_group(fork_server, case.programs(code), on_tick=on_tick, tick_s=0.05)
    assert (result.exit_code, result.problem, result.exits[0].exit_code) == (143, None, 0)


def test_the_next_group_gets_another_fork_server_for_one_that_is_lost(case: Case) -> None:
    start = partial(ForkServer.start, (), private_network="off")
    with SignalInbox(STOP_SIGNALS) as inbox, ForkServerGroup(start, inbox, tick_s=0.05) as group:
        lost = group.fork_server.pid
        for event in group.run(case.programs(ENDLESS)):
            if isinstance(event, Tick) and group.pids:
                os.kill(lost, signal.SIGKILL)
        assert (group.result().fork_server_lost, group.result().exit_code) == (True, 1)
        told = []
        for _ in range(2):
            events = list(group.run(case.programs("print(i)")))
            told.append(sum(isinstance(event, ServerReady) for event in events))
            assert [event.text for event in events if isinstance(event, Line)] == ["0"]
            assert group.result().exit_code == 0
        assert (told, group.fork_server.pid != lost) == ([1, 0], True)
    case.assert_nothing_left()
