"""A worker's place in its group: who is to blame when it ends, and when it may leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.agent.cluster_agent import GroupWatch, leave_after_leader
from tfmp.errors import TfmpError
from tfmp.rendezvous.peer_status import Verdict
from tfmp.rendezvous.protocol import Report


class FakeSession:
    """A group that judges after some looks at it, and whose connections end after some more."""

    def __init__(self, *, verdict_after: int = 10**9, linked_for: int = 0) -> None:
        self.reports: list[Report] = []
        self.verdict: Verdict | None = None
        self.hang_s = None
        self.may_leave = False
        self.polls = 0
        self._verdict_after = verdict_after
        self._linked_for = linked_for

    @property
    def linked(self) -> bool:
        return self.polls < self._linked_for

    def failed(self, report: Report) -> None:
        self.reports.append(report)

    def poll(self, timeout_s: float = 0.0) -> None:
        self.polls += 1
        if self.polls > self._verdict_after:
            self.verdict = Verdict("worker 1 was interrupted by SIGTERM", 1, "worker 1", exit_code=143)


class FakeRun:
    def __init__(self) -> None:
        self.recorder = SimpleNamespace(errors={}, digests={}, model_saved=False)
        self.attempt = SimpleNamespace(hang_report=None)
        self.ended: list[Any] = []

    def note_exits(self, result: Any) -> None:
        pass

    def describe(self, result: Any) -> TfmpError:
        return TfmpError("worker 2 failed: exit code 143", exit_code=143)

    def fail(self, result: Any, error: TfmpError, *, own: bool = True) -> int:
        self.ended.append((error.what, own))
        return error.exit_code

    def interrupted(self, signum: int) -> int:
        self.ended.append(signum)
        return 128 + signum


def inbox(*signums: int) -> Any:
    return SimpleNamespace(read=lambda: list(signums))


RESULT: Any = SimpleNamespace(
    stopped_by=None, signalled=None, exit_code=143, first_failure=SimpleNamespace(signal=None), exits=(), problem=None
)


def watch(session: FakeSession, run: FakeRun) -> GroupWatch:
    return GroupWatch(session, run, 2, "worker 2")  # type: ignore[arg-type]


def test_a_worker_that_left_with_another_is_a_victim_and_names_the_one_that_was_asked() -> None:
    session, run = FakeSession(verdict_after=2), FakeRun()
    one = watch(session, run)
    one.on_event(2, {"event": "stopped", "asked": False})
    assert one.finish(RESULT, inbox()) == 143
    (report,) = session.reports
    assert report.victim
    assert run.ended == [("worker 1 was interrupted by SIGTERM", False)]


@pytest.mark.parametrize("event", [{"event": "stopped", "asked": True}, {"event": "ready"}])
def test_one_that_left_by_itself_is_not(event: dict[str, Any]) -> None:
    session = FakeSession(verdict_after=2)
    one = watch(session, FakeRun())
    one.on_event(2, event)
    one.finish(RESULT, inbox())
    assert not session.reports[0].victim


def test_a_stop_that_comes_while_the_group_judges_is_the_reason() -> None:
    session, run = FakeSession(), FakeRun()
    one = watch(session, run)
    one.on_event(2, {"event": "stopped", "asked": False})
    assert one.finish(RESULT, inbox(15)) == 143
    assert run.ended == [15]


def test_others_leave_after_the_leader_and_it_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tfmp.agent.cluster_agent.time.sleep", slept.append)
    session = FakeSession(linked_for=3)
    leave_after_leader(session, 1)  # type: ignore[arg-type]
    assert (session.polls, slept) == (3, [0.5])
    leave_after_leader(session, 0)  # type: ignore[arg-type]
    assert (session.polls, slept) == (3, [0.5])


def test_a_leader_that_stays_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter(range(0, 1000, 3))
    monkeypatch.setattr("tfmp.agent.cluster_agent.time.sleep", lambda _: None)
    monkeypatch.setattr("tfmp.agent.cluster_agent.time.monotonic", lambda: float(next(now_s)))
    session = FakeSession(linked_for=10**9)
    leave_after_leader(session, 1)  # type: ignore[arg-type]
    assert session.polls == 3
