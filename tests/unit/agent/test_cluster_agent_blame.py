"""Whose fault a worker's end is, as its own launcher tells the group."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.agent.cluster_agent import GroupWatch, describe_hang
from tfmp.agent.failures.hang import Frame, HangReport
from tfmp.agent.failures.watchdog import Hang
from tfmp.errors import TfmpError
from tfmp.workers.spec import GroupResult, WorkerExit

ASLEEP = (Frame("/home/me/hooks.py", 41, "act"), Frame("/home/me/hooks.py", 25, "on_train_batch_end"))
WAITS = (Frame("/tf/eager/execute.py", 53, "quick_execute"), Frame("/tf/polymorphic.py", 9, "call"))
WAITS_FOR_THREADS = (Frame("/python/pool.py", 765, "wait"), Frame("/tf/distribute/cross_device_ops.py", 1208, "reduce"))


class FakeSession:
    """Takes the report; the leader's verdict never comes, and a signal ends the wait."""

    verdict = hang_s = None
    may_leave = False

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def poll(self, timeout_s: float = 0.0) -> None:
        pass

    def stopped(self, is_stopped: bool) -> None:
        pass

    def failed(self, report: Any) -> None:
        self.reports.append(report)


class FakeInbox:
    def __init__(self, *signals: int) -> None:
        self._signals = signals

    def read(self) -> Iterator[int]:
        return iter(self._signals)


def watch(stack: tuple[Frame, ...] | None = None, stopped: tuple[int, ...] = ()) -> tuple[GroupWatch, FakeSession, Any]:
    """Worker ``worker 0``, rank 1, of a cluster with a chief."""
    hang_report = None if stack is None else HangReport(Hang(61.0, stopped), {1: stack}, stopped)
    run = SimpleNamespace(
        attempt=SimpleNamespace(hang_report=hang_report),
        recorder=SimpleNamespace(errors={}),
        note_exits=lambda result: None,
        describe=lambda result: TfmpError("worker 1 failed: exit code 3", where="worker 1 (h1:1) on h1", exit_code=3),
        fail=lambda result, error, own=True: error.exit_code,
        interrupted=lambda signum: 128 + signum,
    )
    session = FakeSession()
    group = GroupWatch(session, run, 1, "worker 0", "worker 0 (h1:1)")  # type: ignore[arg-type]
    group.on_tick(SimpleNamespace(pids={}))  # type: ignore[arg-type]
    return group, session, run


def ended(code: int, signalled: int | None = None) -> GroupResult:
    one = WorkerExit(rank=1, pid=7, exit_code=code, signal=None, cause="failed", peak_rss_bytes=None, seconds=1.0)
    return GroupResult(exits=(one,), first_failure=one, signalled=signalled)


def test_a_failure_is_told_by_the_name_that_the_group_knows() -> None:
    group, session, _ = watch()
    assert group.finish(ended(3), FakeInbox(15)) == 3  # type: ignore[arg-type]
    (report,) = session.reports
    assert (report.what, report.where) == ("worker 0 failed: exit code 3", "worker 0 (h1:1) on h1")
    assert (report.victim, report.hang_s, report.exit_code) == (False, None, 3)


@pytest.mark.parametrize(("asked", "victim"), [(False, True), (True, False)])
def test_who_left_because_another_was_asked_to_is_a_victim(asked: bool, victim: bool) -> None:
    group, session, _ = watch()
    group.on_event(1, {"event": "stopped", "asked": asked})
    assert group.finish(ended(143), FakeInbox(15)) == 143, "the signal has come here too by now"  # type: ignore[arg-type]
    assert session.reports[0].victim is victim


def test_a_worker_that_has_left_before_its_launcher_was_told_is_interrupted() -> None:
    group, session, _ = watch()
    group.on_event(1, {"event": "stopped", "asked": True})
    assert group.finish(ended(143, signalled=15), FakeInbox()) == 143  # type: ignore[arg-type]
    assert [report.what for report in session.reports] == ["worker 0 was interrupted by SIGTERM"]


@pytest.mark.parametrize(
    ("stack", "victim", "says"),
    [
        (ASLEEP, False, "worker 0 holds the others up: worker 0 failed: exit code 3; it is in act (hooks.py:41) < "),
        (WAITS, True, "worker 0 waits for the others: worker 0 failed: exit code 3"),
        (WAITS_FOR_THREADS, True, "worker 0 waits for the others: worker 0 failed: exit code 3"),
        ((), False, "worker 0 holds the others up: worker 0 failed: exit code 3; it is in native code, or stopped"),
    ],
)
def test_of_a_hang_the_stack_tells_who_waits_for_whom(stack: tuple[Frame, ...], victim: bool, says: str) -> None:
    group, session, _ = watch(stack)
    group.finish(ended(3), FakeInbox(15))  # type: ignore[arg-type]
    (report,) = session.reports
    assert report.what.startswith(says)
    assert (report.victim, report.hang_s) == (victim, 61.0)


def test_a_stopped_process_is_no_victim() -> None:
    group, session, _ = watch((), stopped=(1,))
    group.finish(ended(3), FakeInbox(15))  # type: ignore[arg-type]
    assert (session.reports[0].victim, session.reports[0].hang_s) == (False, None)


def test_a_hang_is_described_in_one_sentence() -> None:
    said = describe_hang("worker 2", "no step has finished for 61 s", ASLEEP)
    assert said == (
        "worker 2 holds the others up: no step has finished for 61 s; it is in act (hooks.py:41) < "
        "on_train_batch_end (hooks.py:25)"
    )
