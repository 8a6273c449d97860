"""Whose fault a worker's end is, as its own launcher tells the group."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.unit.agent.fake_agent import Agent, FakeInbox, FakeSession, diagnosis
from tfmp.agent.cluster_agent import describe_hang
from tfmp.agent.failures.hang import Frame, Hang, HangReport
from tfmp.events import LeftOnRequest, UncaughtException, UserError
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.recorder import Recorder
from tfmp.workers.spec import WorkerExit

ASLEEP = (Frame("/home/me/hooks.py", 41, "act"), Frame("/home/me/hooks.py", 25, "on_train_batch_end"))
WAITS = (Frame("/tf/eager/execute.py", 53, "quick_execute"), Frame("/tf/polymorphic.py", 9, "call"))
WAITS_FOR_THREADS = (Frame("/python/pool.py", 765, "wait"), Frame("/tf/distribute/cross_device_ops.py", 1208, "reduce"))
WHERE = f"worker 0 (h1:1) on {platform.node()}"
STOPPED_BY_TFMP = WorkerExit(1, 7, None, 9, "stopped by tfmp")


def ended(code: int) -> WorkerExit:
    return WorkerExit(rank=1, pid=7, exit_code=code, signal=None, cause="failed", peak_rss_bytes=None, seconds=1.0)


@pytest.fixture
def session() -> FakeSession:
    """Takes the report; the leader never ends the group, and a signal ends the wait."""
    return FakeSession()


@pytest.fixture
def agent(session: FakeSession, tmp_path: Path) -> Agent:
    """Worker ``worker 0``, rank 1, of a cluster with a chief."""
    recorder = Recorder(RunFolder(tmp_path), lambda: 0.0, 0.0)
    return Agent(session, FakeInbox(15), 1, "worker 0", "worker 0 (h1:1)", recorder)  # type: ignore[arg-type]


def test_a_failure_is_told_by_the_name_that_the_group_knows(agent: Agent, session: FakeSession) -> None:
    assert agent.failed(diagnosis(ended(3)), None) == 3
    (report,) = session.reports
    assert (report.what, report.where) == ("worker 0 failed: exit code 3", WHERE)
    assert (report.victim, report.hang_s, report.exit_code) == (False, None, 3)
    assert agent.ends == [("worker 0 failed: exit code 3", True)]


@pytest.mark.parametrize(("asked", "victim"), [(False, True), (True, False)])
def test_who_left_because_another_was_asked_to_is_a_victim(
    agent: Agent, session: FakeSession, asked: bool, victim: bool
) -> None:
    agent.on_event(1, LeftOnRequest(asked=asked))
    assert agent.failed(diagnosis(ended(143)), None) == 143, "the signal has come here too by now"
    assert session.reports[0].victim is victim


def test_a_worker_that_has_left_before_its_launcher_was_told_is_interrupted(agent: Agent, session: FakeSession) -> None:
    agent.on_event(1, LeftOnRequest(asked=True))
    assert agent.failed(diagnosis(ended(143), signalled=15), None) == 143
    assert [report.what for report in session.reports] == ["worker 0 was interrupted by SIGTERM"]


@pytest.mark.parametrize(
    ("kind", "victim"), [("ValueError", False), ("UnavailableError", True), ("AbortedError", True)]
)
def test_an_exception_is_told_by_its_first_line_and_may_be_a_victims(
    agent: Agent, session: FakeSession, kind: str, victim: bool
) -> None:
    raised = UncaughtException(kind, f"\n{'x' * 400}\nmore")
    assert agent.failed(diagnosis(ended(1), exception=raised), None) == 1
    (report,) = session.reports
    assert report.what == f"worker 0 failed: {kind}: {'x' * 300}"
    assert (report.victim, report.where) == (victim, WHERE)


def test_an_error_of_the_users_is_told_as_it_is(agent: Agent, session: FakeSession) -> None:
    error = UserError("the loss became nan", "model", "lower it")
    agent.on_event(1, error)
    raised = UncaughtException("AbortedError", "x")
    agent.failed(diagnosis(ended(1), error=error, exception=raised), None)
    (report,) = session.reports
    assert (report.what, report.where, report.hint) == ("the loss became nan", f"{WHERE}, model", "lower it")
    assert not report.victim


def test_who_gives_up_in_native_code_is_a_victim(agent: Agent, session: FakeSession) -> None:
    agent.failed(diagnosis(WorkerExit(1, 7, None, 6, "failed")), None)
    agent.failed(diagnosis(WorkerExit(1, 7, None, 9, "failed")), None)
    assert [report.victim for report in session.reports] == [True, False]


@pytest.mark.parametrize(
    ("stack", "victim", "says"),
    [
        (
            ASLEEP,
            False,
            "worker 0 holds the others up: no step has finished for 61 s; it is in act (hooks.py:41) < "
            "on_train_batch_end (hooks.py:25)",
        ),
        (WAITS, True, "worker 0 waits for the others: no step has finished for 61 s"),
        (WAITS_FOR_THREADS, True, "worker 0 waits for the others: no step has finished for 61 s"),
        (
            (),
            False,
            "worker 0 holds the others up: no step has finished for 61 s; it is in native code, or stopped: "
            "it did not answer",
        ),
    ],
)
def test_of_a_hang_the_stack_tells_who_waits_for_whom(
    agent: Agent, session: FakeSession, stack: tuple[Frame, ...], victim: bool, says: str
) -> None:
    found = diagnosis(STOPPED_BY_TFMP, hang=HangReport(Hang(61.0), {1: stack}, ()))
    assert agent.failed(found, None) == 1
    (report,) = session.reports
    assert (report.what, report.where) == (says, "worker 0 (h1:1)")
    assert (report.victim, report.hang_s) == (victim, 61.0)


def test_a_stopped_process_is_no_victim(agent: Agent, session: FakeSession) -> None:
    hang = HangReport(Hang(61.0, (1,)), {1: ()}, (1,))
    agent.failed(diagnosis(STOPPED_BY_TFMP, hang=hang, stands_still=True, stopped=True), None)
    (report,) = session.reports
    assert (report.victim, report.hang_s) == (False, None)
    assert report.what == "worker 0 is stopped (SIGSTOP), and the others wait"


def test_a_hang_is_described_in_one_sentence() -> None:
    said = describe_hang("worker 2", "no step has finished for 61 s", ASLEEP)
    assert said == (
        "worker 2 holds the others up: no step has finished for 61 s; it is in act (hooks.py:41) < "
        "on_train_batch_end (hooks.py:25)"
    )
