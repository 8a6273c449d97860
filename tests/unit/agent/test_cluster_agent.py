"""A worker's place in its group: who is to blame when it ends, and when it may leave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.agent.fake_agent import Agent, FakeInbox, FakeSession, diagnosis
from tfmp.agent import cluster_agent
from tfmp.agent.cluster_agent import leave_after_leader
from tfmp.agent.failures.diagnosis import Setting
from tfmp.agent.monitor import Monitor, Watch
from tfmp.events import LeftOnRequest, ModelSaved, Ready, WeightsDigest, WorkerEvent
from tfmp.rendezvous.protocol import Report
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.recorder import Recorder
from tfmp.workers.spec import GroupResult, WorkerExit

LEFT = WorkerExit(2, 7, 143, None, "failed")
WELL = GroupResult((WorkerExit(2, 7, 0, None, "done"),))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(RunFolder(tmp_path), lambda: 0.0, 0.0)


def agent(session: FakeSession, recorder: Recorder, *signals: int, rank: int = 2) -> Agent:
    return Agent(session, FakeInbox(*signals), rank, f"worker {rank}", f"worker {rank} (h{rank}:1)", recorder)  # type: ignore[arg-type]


def test_a_worker_that_left_with_another_is_a_victim_and_names_the_one_that_was_asked(recorder: Recorder) -> None:
    session = FakeSession(ends_after=2)
    made = agent(session, recorder)
    made.on_event(2, LeftOnRequest(asked=False))
    assert made.failed(diagnosis(LEFT), None) == 143
    (report,) = session.reports
    assert report.victim
    assert made.ends == [("worker 1 was interrupted by SIGTERM", False)]


@pytest.mark.parametrize("event", [LeftOnRequest(asked=True), Ready()])
def test_one_that_left_by_itself_is_not(recorder: Recorder, event: WorkerEvent) -> None:
    session = FakeSession(ends_after=2)
    made = agent(session, recorder)
    made.on_event(2, event)
    made.failed(diagnosis(LEFT), None)
    assert not session.reports[0].victim


def test_a_stop_that_comes_while_the_group_judges_is_the_reason(recorder: Recorder) -> None:
    session = FakeSession()
    made = agent(session, recorder, 15)
    made.on_event(2, LeftOnRequest(asked=False))
    assert made.failed(diagnosis(LEFT), None) == 143
    assert made.ends == [15]


def test_a_group_that_has_ended_before_is_not_told(recorder: Recorder) -> None:
    session = FakeSession(ends_after=0)
    made = agent(session, recorder)
    assert made.failed(diagnosis(LEFT), None) == 143
    assert (session.reports, made.ends) == ([], [("worker 1 was interrupted by SIGTERM", False)])


def test_the_group_is_told_of_an_interruption(recorder: Recorder) -> None:
    session = FakeSession()
    made = agent(session, recorder)
    assert made.interrupted(2, None) == 130
    assert session.reports == [Report("worker 2 was interrupted by SIGINT", exit_code=130)]
    assert made.ends == [2]


def test_a_worker_that_ended_well_waits_for_all_others(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_agent, "leave_after_leader", lambda session, rank: None)
    session = FakeSession(leave_after=5)
    made = agent(session, recorder)
    made.on_event(2, WeightsDigest("abc"))
    assert made.succeeded(WELL) == 0
    assert (session.digests, made.ends, session.polls) == (["abc"], ["succeeded"], 6)


def test_a_group_that_fails_while_a_worker_waits_fails_it(recorder: Recorder) -> None:
    session = FakeSession(ends_after=5)
    made = agent(session, recorder)
    made.on_event(2, WeightsDigest("abc"))
    assert made.succeeded(WELL) == 143
    assert made.ends == [("worker 1 was interrupted by SIGTERM", False)]


def test_a_stop_while_it_waits_is_told(recorder: Recorder) -> None:
    session = FakeSession()
    made = agent(session, recorder, 15)
    made.on_event(2, WeightsDigest("abc"))
    assert made.succeeded(WELL) == 143
    assert made.ends == [15]
    assert [report.what for report in session.reports] == ["worker 2 was interrupted by SIGTERM"]


@pytest.mark.parametrize(("rank", "events"), [(2, []), (0, [WeightsDigest("abc")]), (0, [ModelSaved("m", 0.1)])])
def test_a_worker_without_a_result_has_failed(recorder: Recorder, rank: int, events: list[WorkerEvent]) -> None:
    session = FakeSession()
    made = agent(session, recorder, rank=rank)
    for event in events:
        made.on_event(rank, event)
    assert made.succeeded(WELL) == 1
    assert session.reports == [Report(f"worker {rank} ended without a result", hint="look at its log")]
    assert made.ends == [(f"worker {rank} ended without a result", True)]


class Group:
    """A group of one worker whose process is in this state."""

    def __init__(self, state: str) -> None:
        self.pids = {2: 7}
        self.state = state
        self.requests = 0
        self.stopped: list[str] = []

    def states(self) -> dict[int, str]:
        return {2: self.state}

    def request_stacks(self) -> None:
        self.requests += 1

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)


def tick(made: Agent, group: Any) -> None:
    made.on_tick(group, Monitor(Watch((2,), Setting(steps_per_epoch=10), 20.0, 300.0), lambda: 0.0))


@pytest.mark.parametrize(("state", "stopped"), [("S", False), ("T", True), ("t", True)])
def test_the_group_hears_whether_the_worker_is_stopped(recorder: Recorder, state: str, stopped: bool) -> None:
    session = FakeSession()
    made, group = agent(session, recorder), Group(state)
    tick(made, group)
    tick(made, group)  # within a second
    assert (session.stops, group.stopped, group.requests) == ([stopped], [], 0)


def test_a_group_that_has_ended_ends_the_worker(recorder: Recorder) -> None:
    made, group = agent(FakeSession(ends_after=0), recorder), Group("S")
    tick(made, group)
    assert group.stopped == ["worker 1 was interrupted by SIGTERM"]


def test_a_group_that_hangs_asks_the_worker_where_it_is(recorder: Recorder) -> None:
    session = FakeSession()
    session.hang_s = 61.0
    made, group = agent(session, recorder), Group("S")
    tick(made, group)
    assert (group.requests, group.stopped) == (1, [])


def test_others_leave_after_the_leader_and_it_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(cluster_agent, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: 0.0))
    session = FakeSession(linked_for=3)
    leave_after_leader(session, 1)  # type: ignore[arg-type]
    assert (session.polls, slept) == (3, [0.5])
    leave_after_leader(session, 0)  # type: ignore[arg-type]
    assert (session.polls, slept) == (3, [0.5])


def test_a_leader_that_stays_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter(range(0, 1000, 3))
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=lambda: float(next(now_s)))
    monkeypatch.setattr(cluster_agent, "time", clock)
    session = FakeSession(linked_for=10**9)
    leave_after_leader(session, 1)  # type: ignore[arg-type]
    assert session.polls == 3
