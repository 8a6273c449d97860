"""The watchdog: histories of progress, and stacks that tell who is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.agent.failures.asked_group import AskedGroup
from tfmp.agent.failures.hang import STACKS_WAIT_S, Hang, HangDetector, Watchdog, examine, main_stack
from tfmp.events import (
    CheckpointFailed,
    CheckpointSaved,
    EpochEnd,
    FirstStep,
    ModelSaved,
    Progress,
    Ready,
    Saving,
    UnknownEvent,
    Validating,
    WeightsDigest,
    WorkerEvent,
)

WORKING = {0: "S", 1: "R", 2: "S"}


def looks(watchdog: Watchdog, until_s: float, states: Mapping[int, str] = WORKING, from_s: float = 0.0) -> Hang | None:
    """Look every second."""
    now_s = from_s
    while now_s <= until_s:
        if (hang := watchdog.look(now_s, states)) is not None:
            return hang
        now_s += 1.0
    return None


def stepping(timeout_s: float | None, every_s: float, steps: int = 5) -> tuple[Watchdog, float]:
    watchdog = Watchdog(timeout_s, 300.0, 0.0)
    watchdog.arm(0.0)
    for i in range(steps):
        watchdog.progress(i * every_s, step=True)
    return watchdog, (steps - 1) * every_s


def test_a_minute_at_least_and_ten_times_the_slowest_recent_step() -> None:
    assert stepping(None, 0.1)[0].timeout_s == 60.0
    assert stepping(None, 20.0)[0].timeout_s == 200.0
    watchdog, now_s = stepping(None, 20.0)
    for i in range(60):
        watchdog.progress(now_s + i, step=True)
    assert watchdog.timeout_s == 60.0, "recent ones count"


def test_what_the_user_says_counts() -> None:
    watchdog, now_s = stepping(5.0, 0.1)
    hang = looks(watchdog, 100.0, from_s=now_s)
    assert hang is not None
    assert 5.0 <= hang.waited_s <= 6.0
    assert hang.describe() == f"no step has finished for {hang.waited_s:.0f} s"


def test_evaluation_and_saving_are_progress_but_no_steps() -> None:
    watchdog, now_s = stepping(5.0, 0.1)
    for i in range(10):
        watchdog.progress(now_s + 4.0 * i, step=False)
        assert watchdog.look(now_s + 4.0 * i + 3.0, WORKING) is None
    watchdog, now_s = stepping(None, 1.0)
    watchdog.progress(now_s + 50.0, step=False)
    assert watchdog.timeout_s == 60.0, "a long validation is no slow step"


def test_the_first_step_may_take_longer() -> None:
    watchdog = Watchdog(5.0, 300.0, 0.0)
    assert looks(watchdog, 1000.0) is None, "the start has a limit of its own"
    watchdog.arm(1000.0)
    hang = looks(watchdog, 2000.0, from_s=1000.0)
    assert hang is not None
    assert hang.waited_s == 300.0


def test_a_stopped_worker_is_seen_at_once_even_before_the_first_step() -> None:
    watchdog = Watchdog(None, 300.0, 0.0)
    hang = looks(watchdog, 100.0, {0: "S", 1: "T", 2: "S"})
    assert hang == Hang(2.0, (1,))
    assert hang.describe() == "worker 1 is stopped (SIGSTOP), and the others wait"
    assert looks(Watchdog(None, 300.0, 0.0), 100.0, {0: "t"}) is None, "a debugger"


def test_a_worker_that_goes_on_in_time_is_let_go_on() -> None:
    watchdog = Watchdog(None, 300.0, 0.0)
    for now_s, state in [(0.0, "T"), (1.5, "T"), (1.6, "S"), (1.7, "T"), (3.6, "T")]:
        assert watchdog.look(now_s, {0: state}) is None
    assert watchdog.look(3.7, {0: "T"}) is not None


def test_the_watchers_own_pause_is_not_held_against_the_workers() -> None:
    watchdog, now_s = stepping(10.0, 0.1)
    assert watchdog.look(now_s, WORKING) is None
    assert watchdog.look(now_s + 500.0, WORKING) is None  # Ctrl-Z, fg
    hang = looks(watchdog, now_s + 600.0, from_s=now_s + 500.0)
    assert hang is not None
    assert hang.waited_s <= 11.0


def dump(*functions: str, line: int = 5) -> str:
    """What faulthandler writes for a worker whose innermost call is the first function."""
    frames = "".join(f'  File "/x/{name}.py", line {line} in {name}\n' for name in functions)
    entry = '  File "/y/tfmp/workers/child.py", line 158 in _call\n  File "<string>", line 1 in <module>\n'
    other = 'Thread 0x00007f01 (most recent call first):\n  File "/py/threading.py", line 1 in wait\n'
    return f"{other}\nCurrent thread 0x00007f02 (most recent call first):\n{frames}{entry}"


WAITING = dump("quick_execute", "train_function", "fit")


def test_the_main_thread_of_the_last_dump_is_read() -> None:
    stack = main_stack(dump("old", "fit") + dump("quick_execute", "fit"))
    assert [str(frame) for frame in stack[:2]] == ["quick_execute (quick_execute.py:5)", "fit (fit.py:5)"]
    assert main_stack("") == ()


@pytest.mark.parametrize(
    ("dumps", "odd"),
    [
        ({0: WAITING, 1: dump("read", "load_batch", "fit"), 2: WAITING}, (1,)),
        ({0: dump("sleep", "fit"), 1: WAITING}, (0,)),
        ({0: WAITING, 1: WAITING, 2: dump("quick_execute", "evaluate", "fit")}, (2,)),
        ({0: WAITING, 1: WAITING}, ()),
        ({0: WAITING, 1: "", 2: WAITING}, (1,)),
        ({0: WAITING}, ()),
    ],
    ids=["not in a collective", "of two", "in another collective", "all alike", "no answer", "alone"],
)
def test_the_odd_worker_is_named(dumps: dict[int, str], odd: tuple[int, ...]) -> None:
    assert examine(Hang(60.0), dumps).odd == odd


def test_equal_stacks_are_told_once() -> None:
    hang_report = examine(Hang(60.0), {0: WAITING, 1: dump("read", "fit"), 2: WAITING})
    lines = hang_report.describe()
    assert lines[0] == "no step has finished for 60 s"
    assert lines[1].startswith("workers 0, 2: quick_execute (quick_execute.py:5) < train_function")
    assert lines[2].startswith("worker 1: read (read.py:5) < fit")
    assert hang_report.to_json()["stacks"][0]["workers"] == [0, 2]
    assert examine(Hang(2.0, (1,)), {0: WAITING, 1: "", 2: dump("other")}).odd == (1,), "a stopped one explains all"


Told = tuple[float, int, WorkerEvent]
READY: list[Told] = [(10.0, rank, Ready(1)) for rank in range(3)]
STEPPED: list[Told] = [*READY, (20.0, 0, FirstStep(1, 1))]


class Watched:
    """Three workers that a detector looks at twice a second."""

    def __init__(self, timeout_s: float | None = 20.0, ranks: tuple[int, ...] = (0, 1, 2), **group: Any) -> None:
        self.detector = HangDetector(ranks, timeout_s, 300.0, 0.0)
        self.group: Any = AskedGroup(3, **group)
        self.now_s = 0.0

    def asked(self, until_s: float, *told: Told) -> float | None:
        """When they are asked for their stacks, if these events come."""
        waiting, before = sorted(told, key=lambda event: event[0]), self.group.requests
        while self.now_s < until_s:
            self.now_s += 0.5
            while waiting and waiting[0][0] <= self.now_s:
                at_s, rank, event = waiting.pop(0)
                self.detector.on_event(rank, event, at_s)
            self.detector.on_tick(self.group, self.now_s)
            if self.group.requests > before:
                return self.now_s
        return None


def test_steps_are_expected_once_all_workers_are_ready() -> None:
    watched = Watched()
    assert watched.asked(1000.0, *READY[:2], (500.0, 1, Ready(1))) is None, "the start has a limit of its own"
    assert watched.asked(3000.0, (1000.0, 2, Ready(1))) == 1300.0


@pytest.mark.parametrize("first", [FirstStep(1, 1), Progress(1, 1)])
def test_after_the_first_step_the_timeout_counts(first: WorkerEvent) -> None:
    assert Watched().asked(100.0, *READY, (20.0, 0, first)) == 40.0


def test_the_progress_of_the_first_worker_stands_for_all() -> None:
    others: list[Told] = [(39.0, rank, Progress(1, 2)) for rank in (1, 2)]
    assert Watched().asked(100.0, *STEPPED, *others) == 40.0
    assert Watched().asked(100.0, *STEPPED, (39.0, 0, Progress(1, 2))) == 59.0


def test_the_first_of_this_machines_workers_counts() -> None:
    watched = Watched(ranks=(2,))
    told: list[Told] = [(10.0, 2, Ready(1)), (20.0, 2, FirstStep(1, 1)), (35.0, 2, Progress(1, 2))]
    assert watched.asked(100.0, *told) == 55.0


@pytest.mark.parametrize(
    "event",
    [
        Validating(1),
        EpochEnd(1),
        Saving(1, 0, 7),
        CheckpointSaved(1, 0, 7, "x.npz", 0.1),
        CheckpointFailed(1, 0, 7, "full"),
        ModelSaved("model.keras", 0.1),
        WeightsDigest("abc"),
    ],
)
def test_other_signs_of_life_are_progress_too(event: WorkerEvent) -> None:
    assert Watched().asked(100.0, *STEPPED, (35.0, 0, event)) == 55.0
    assert Watched().asked(100.0, *STEPPED, (35.0, 1, event)) == 40.0


def test_what_is_no_sign_of_life_is_none() -> None:
    assert Watched().asked(100.0, *STEPPED, (35.0, 0, UnknownEvent("hello"))) == 40.0


def test_a_long_validation_makes_no_patience_for_later_steps() -> None:
    told: list[Told] = [(21.0, 0, Progress(1, 2)), (75.0, 0, Validating(1))]
    assert Watched(None).asked(500.0, *STEPPED, *told) == 135.0, "a minute: ten times the slowest step is less"


def test_stacks_are_asked_for_once_and_then_the_group_is_stopped() -> None:
    watched = Watched()
    detector, group = watched.detector, watched.group
    assert watched.asked(100.0, *STEPPED) == 40.0
    assert (detector.report, group.stopped) == (None, [])
    group.answers = {0: WAITING, 1: dump("read", "fit"), 2: WAITING}
    detector.on_tick(group, 40.0 + STACKS_WAIT_S - 0.01)
    assert (detector.report, group.stopped) == (None, []), "they are still writing"
    detector.on_tick(group, 40.0 + STACKS_WAIT_S)
    assert detector.report == examine(Hang(20.0), group.answers)
    assert detector.report.odd == (1,)
    assert group.stopped == ["no step has finished for 20 s"]
    assert watched.asked(200.0, (41.0, 0, Progress(1, 2))) is None
    assert (group.requests, len(group.stopped)) == (1, 1), "found once"


def test_a_stopped_process_is_found_with_its_rank_before_all_are_ready() -> None:
    watched = Watched(states={1: "T"})
    assert watched.asked(100.0) == 2.5
    watched.asked(3.0)
    assert watched.group.stopped == ["worker 1 is stopped (SIGSTOP), and the others wait"]
    assert watched.detector.report is not None
    assert (watched.detector.report.hang, watched.detector.report.odd) == (Hang(2.0, (1,)), (1,))


def test_workers_that_others_wait_for_are_asked_where_they_are() -> None:
    watched = Watched()
    detector, group = watched.detector, watched.group
    assert watched.asked(25.0, *STEPPED) is None
    detector.suspect(61.0, group, 25.0)
    detector.suspect(62.0, group, 25.1)
    assert group.requests == 1
    group.answers = {0: WAITING}
    detector.on_tick(group, 25.4)
    assert group.stopped == []
    detector.on_tick(group, 25.5)
    assert group.stopped == ["no step has finished for 61 s"]
    assert detector.report == examine(Hang(61.0), {0: WAITING})
    detector.suspect(90.0, group, 60.0)
    assert (group.requests, len(group.stopped)) == (1, 1)
