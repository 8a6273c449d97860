"""``kill -9`` of the launcher or of the helper process, at any moment, leaves no process behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from launch_support import Case, run_launcher

from tfmp.launch.helper_errors import HelperDied
from tfmp.launch.runner import GroupControl, run_group
from tfmp.launch.zygote_client import Zygote

ENDLESS = "time.sleep(600)"


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    case.end_leftovers()


def helper_pids(case: Case) -> list[int]:
    """Process ids of living helper processes of this case."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if b"tfmp.launch.zygote" in command and case.mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.2])
def test_kill_9_of_the_launcher_during_the_import(case: Case, delay_s: float) -> None:
    launcher = run_launcher(
        case,
        "zygote = Zygote.start(['launch_slow_import'])\n"
        f"time.sleep({delay_s})\n"
        "print('started', flush=True)\nzygote.wait_ready()",
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "started\n"
    launcher.kill()
    launcher.communicate(timeout=5)
    case.assert_nothing_left()


def test_kill_9_of_the_launcher_while_workers_and_their_daemons_run(case: Case) -> None:
    launcher = run_launcher(
        case,
        "with Zygote.start(['launch_support'], private_network='off') as zygote:\n"
        "    specs = case.targets('daemons', 3, payload={'stay': True})\n"
        "    run_group(zygote, specs, on_event=lambda rank, event: print(rank, flush=True))",
    )
    assert launcher.stdout is not None
    assert sorted(launcher.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
    assert len(case.leftovers()) >= 3 * 3 + 1  # the launcher, and a worker and two daemons, three times
    launcher.kill()
    launcher.communicate(timeout=5)
    case.assert_nothing_left()


def test_kill_9_of_launcher_and_helper_together_ends_the_workers(case: Case) -> None:
    launcher = run_launcher(
        case,
        "with Zygote.start(private_network='off') as zygote:\n"
        "    print(zygote.pid, flush=True)\n"
        "    run_group(zygote, case.programs('print(i); time.sleep(600)', 2), on_line=lambda *l: print(l, flush=True))",
    )
    assert launcher.stdout is not None
    helper = int(launcher.stdout.readline())
    assert [launcher.stdout.readline()[0] for _ in range(2)] == ["(", "("]
    os.kill(helper, signal.SIGSTOP)  # so that it sweeps nothing
    launcher.kill()
    os.kill(helper, signal.SIGKILL)
    launcher.communicate(timeout=5)
    case.assert_nothing_left()


def test_kill_9_of_the_helper_ends_the_run_and_all_workers_daemons_included(case: Case) -> None:
    ready: list[int] = []

    def on_tick(control: GroupControl) -> None:
        if len(ready) == 2:
            ready.clear()
            os.kill(zygote.pid, signal.SIGKILL)

    with Zygote.start(["launch_chatty_import", "launch_support"], private_network="off") as zygote:
        result = run_group(
            zygote,
            case.targets("daemons", 2, payload={"stay": True}),
            on_event=lambda rank, event: ready.append(rank),
            on_tick=on_tick,
            tick_s=0.05,
        )
        assert case.leftovers() == []
    assert result.exit_code == 1
    assert result.first_failure is None
    assert result.problem == (
        "the helper process that imports launch_chatty_import, launch_support and starts the workers "
        "was killed by signal 9 (SIGKILL)"
    )
    assert [e.cause for e in result.exits] == ["stopped by tfmp"] * 2


def test_a_helper_that_does_not_answer_does_not_hold_the_launcher(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Zygote, "let_go_on", lambda self: None)  # as if it hung, not just stood
    monkeypatch.setattr("tfmp.launch.supervisor._KILL_CONFIRM_S", 0.3)
    stopped: list[int] = []
    alive_at_the_last_resort: list[list[str]] = []
    kill = Zygote.kill

    def spy(self: Zygote, worker_pids: Collection[int] = ()) -> None:
        alive_at_the_last_resort.append(case.leftovers())
        kill(self, worker_pids)

    monkeypatch.setattr(Zygote, "kill", spy)

    def on_tick(control: GroupControl) -> None:
        if not stopped and control.pids:
            stopped.append(control.pids[0])
            os.kill(zygote.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGTERM)

    with Zygote.start(private_network="off") as zygote:
        result = run_group(zygote, case.programs(ENDLESS), on_tick=on_tick, grace_period_s=0.2, tick_s=0.05)
    assert result.exit_code == 143
    assert result.problem == "gave up waiting for the end of worker 0 after SIGKILL"
    assert alive_at_the_last_resort[0] == []  # SIGKILL reached it without the helper
    case.assert_nothing_left()


def test_a_helper_that_dies_while_importing_is_reported(case: Case) -> None:
    with Zygote.start(["launch_slow_import"], private_network="off") as zygote:
        os.kill(zygote.pid, signal.SIGSEGV)
        with pytest.raises(HelperDied, match=r"was killed by signal 11 \(SIGSEGV\) while it imported"):
            run_group(zygote, case.programs(ENDLESS))


def test_stop_signals_to_every_process_of_a_job_leave_the_helper_to_the_launcher(case: Case) -> None:
    """As schedulers send them; the helper dying of it would cut the workers' grace period off."""
    helpers: list[int] = []

    def on_tick(control: GroupControl) -> None:
        if not helpers and case.log().read_text():
            helpers.extend(helper_pids(case) or [zygote.pid])
            for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                os.kill(helpers[0], signum)
            os.kill(os.getpid(), signal.SIGTERM)

    code = "signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit(0))); print('on'); time.sleep(600)"
    with Zygote.start(private_network="off") as zygote:
        result = run_group(zygote, case.programs(code), on_tick=on_tick, tick_s=0.05)
    assert (result.exit_code, result.problem, result.exits[0].exit_code) == (143, None, 0)
