"""Histories of a group: events at given seconds go in, the actions and the verdict come out."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfmp.workers.lifecycle import Lifecycle, StopPolicy
from tfmp.workers.lifecycle_events import (
    Action,
    Exited,
    Failing,
    ForkServerLost,
    GiveUp,
    Kill,
    NotForked,
    Reason,
    SignalReceived,
    Started,
    StopRequested,
    Terminate,
    WorkerReady,
)

POLICY = StopPolicy(grace_period_s=10, failure_grace_s=2, settle_s=1, start_timeout_s=60)


def group(size: int, *, reporting: bool = False, policy: StopPolicy = POLICY) -> Lifecycle:
    lifecycle = Lifecycle(range(size), reporting=range(size) if reporting else (), policy=policy, now_s=0.0)
    for rank in range(size):
        assert lifecycle.handle(Started(rank, 100 + rank), 0.0) == []
    return lifecycle


def causes(lifecycle: Lifecycle) -> dict[int, str]:
    return {e.rank: e.cause for e in lifecycle.result().exits}


def ended(lifecycle: Lifecycle) -> bool:
    return lifecycle.finished


def terminate(*ranks: int) -> list[Action]:
    return [Terminate(rank) for rank in ranks]


def kill(*ranks: int) -> list[Action]:
    return [Kill(rank) for rank in ranks]


def test_all_done_is_success() -> None:
    s = group(2)
    s.handle(Exited(1, 0, 4096), 5.0)
    assert [e.rank for e in s.result().exits] == [1]
    assert not ended(s)
    s.handle(Exited(0, 0), 6.0)
    result = s.result()
    assert s.finished
    assert (result.exit_code, result.first_failure, result.problem) == (0, None, None)
    assert [(e.rank, e.pid, e.seconds, e.peak_rss_bytes) for e in result.exits] == [
        (0, 100, 6.0, None),
        (1, 101, 5.0, 4096),
    ]


def test_a_failure_after_another_workers_success_is_a_failure() -> None:
    s = group(2)
    s.handle(Exited(0, 0), 1.0)
    s.handle(Exited(1, 3), 3.0)
    assert s.finished
    assert s.result().exit_code == 3
    assert causes(s) == {0: "done", 1: "failed"}


def test_peers_get_time_to_report_then_sigterm_then_sigkill() -> None:
    s = group(3)
    assert s.handle(Exited(2, 7), 1.0) == []
    assert s.tick(1.9) == []
    assert s.tick(2.0) == terminate(0, 1)
    assert s.tick(3.9) == []
    s.handle(Exited(0, -signal.SIGTERM), 3.9)
    assert s.tick(4.0) == kill(1)
    s.handle(Exited(1, -signal.SIGKILL), 4.1)
    assert s.finished
    result = s.result()
    assert result.exit_code == 7
    assert causes(s) == {0: "stopped by tfmp", 1: "stopped by tfmp", 2: "failed"}
    assert result.order == (2,)


def test_victims_that_fail_meanwhile_are_in_the_order_of_their_failures() -> None:
    s = group(4)
    s.handle(Exited(3, 5), 1.0)
    s.handle(Exited(0, 1), 1.3)
    s.handle(Exited(1, 1), 1.4)
    assert s.tick(2.0) == terminate(2)
    s.handle(Exited(2, -15), 2.1)
    result = s.result()
    assert result.first_failure is not None
    assert (result.first_failure.rank, result.exit_code) == (3, 5)
    assert result.order == (3, 0, 1)
    assert causes(s)[2] == "stopped by tfmp"


def test_the_first_sign_of_failure_counts_not_the_first_exit() -> None:
    s = group(2)
    s.handle(Failing(1), 1.0)
    s.handle(Exited(0, 1), 1.2)
    s.handle(Exited(1, 4), 1.5)
    first = s.result().first_failure
    assert first is not None
    assert (first.rank, s.result().exit_code) == (1, 4)


def test_a_worker_that_announced_its_failure_is_not_excused_by_sigterm() -> None:
    s = group(3)
    s.handle(Exited(0, 1), 1.0)
    s.handle(Failing(1), 1.9)
    s.tick(2.0)
    s.handle(Exited(1, -15), 2.1)
    s.handle(Failing(2), 2.1)  # a consequence of the stop
    s.handle(Exited(2, 1), 2.2)
    assert causes(s) == {0: "failed", 1: "failed", 2: "stopped by tfmp"}


def test_an_announced_failure_that_exits_0_is_none() -> None:
    s = group(1)
    s.handle(Failing(0), 1.0)
    s.handle(Exited(0, 0), 1.1)
    assert s.result().exit_code == 0
    assert causes(s) == {0: "done"}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_users_stop_gives_the_grace_period_and_128_plus_n(signum: int, code: int) -> None:
    s = group(2)
    assert s.handle(SignalReceived(signum), 1.0) == terminate(0, 1)
    assert s.deadline_s == 11.0
    s.handle(Exited(0, 0), 2.0)
    s.handle(Exited(1, 1), 2.0)
    result = s.result()
    assert (result.exit_code, result.stopped_by, result.first_failure) == (code, signum, None)
    assert causes(s) == {0: "stopped by tfmp", 1: "stopped by tfmp"}


def test_before_all_are_ready_there_is_nothing_to_save() -> None:
    s = group(2, reporting=True)
    s.handle(WorkerReady(0), 1.0)
    assert s.handle(SignalReceived(signal.SIGTERM), 1.0) == terminate(0, 1)
    assert s.deadline_s == 3.0


def test_a_second_ctrl_c_kills_at_once() -> None:
    s = group(2)
    s.handle(SignalReceived(signal.SIGINT), 1.0)
    assert s.handle(SignalReceived(signal.SIGINT), 2.0) == kill(0, 1)
    s.handle(Exited(0, -9), 2.1)
    s.handle(Exited(1, -9), 2.1)
    assert s.result().exit_code == 130


def test_a_ctrl_c_delivered_twice_and_a_second_sigterm_do_not_kill() -> None:
    s = group(1)
    s.handle(SignalReceived(signal.SIGINT), 1.0)
    assert s.handle(SignalReceived(signal.SIGINT), 1.1) == []
    assert s.handle(SignalReceived(signal.SIGTERM), 5.0) == []
    assert s.deadline_s == 11.0


def test_ctrl_c_after_a_failure_hurries_but_the_failure_stands() -> None:
    s = group(2)
    s.handle(Exited(0, 7), 1.0)
    assert s.handle(SignalReceived(signal.SIGINT), 1.1) == terminate(1)
    assert s.handle(SignalReceived(signal.SIGINT), 1.8) == kill(1)
    s.handle(Exited(1, -9), 1.9)
    assert (s.result().exit_code, s.result().stopped_by) == (7, None)


def test_a_late_start_names_who_did_not_report() -> None:
    s = group(4, reporting=True)
    s.handle(WorkerReady(0), 5.0)
    s.handle(WorkerReady(2), 6.0)
    assert s.deadline_s == 60.0
    assert s.tick(60.0) == terminate(0, 1, 2, 3)
    for rank in range(4):
        s.handle(Exited(rank, -15), 61.0)
    result = s.result()
    assert (result.not_ready, result.exit_code, result.first_failure) == ((1, 3), 1, None)
    assert result.problem == "workers 1, 3 not ready within 60 s"


def test_once_all_are_ready_or_gone_no_start_timeout_is_left() -> None:
    s = group(2, reporting=True)
    s.handle(WorkerReady(0), 5.0)
    s.handle(Exited(1, 0), 6.0)
    assert s.deadline_s is None
    assert s.tick(1000.0) == []


def test_the_callers_stop_is_a_failure_with_its_reason() -> None:
    s = group(1)
    assert s.handle(StopRequested("no step finished for 30 s"), 1.0) == terminate(0)
    assert s.handle(StopRequested("again"), 1.1) == []
    s.handle(Exited(0, 0), 1.2)
    assert (s.result().problem, s.result().exit_code) == ("no step finished for 30 s", 1)


def test_a_worker_that_cannot_be_forked_has_failed() -> None:
    s = Lifecycle([0, 1], reporting=(), policy=POLICY, now_s=0.0)
    s.handle(Started(0, 100), 0.1)
    s.handle(NotForked(1, "fork failed: Resource temporarily unavailable"), 0.2)
    assert s.deadline_s == 1.2
    assert s.tick(1.2) == terminate(0)
    s.handle(Exited(0, -15), 1.3)
    first = s.result().first_failure
    assert first is not None
    assert (first.rank, first.pid, first.exit_code, first.seconds) == (1, None, 126, 0.0)
    assert first.describe() == "exit code 126: fork failed: Resource temporarily unavailable"


def test_a_reason_travels_with_the_exit() -> None:
    s = group(1)
    s.handle(Reason(0, "command not found: trian.py"), 0.1)
    s.handle(Exited(0, 127), 0.1)
    assert s.result().exits[0].describe() == "exit code 127: command not found: trian.py"


def test_workers_that_outlive_sigkill_are_given_up() -> None:
    s = group(2)
    s.handle(SignalReceived(signal.SIGTERM), 0.0)
    assert s.tick(10.0) == kill(0, 1)
    s.handle(Exited(0, -9), 10.1)
    assert s.tick(14.9) == []
    assert s.tick(15.0) == [GiveUp((1,))]
    assert s.tick(16.0) == []
    s.handle(ForkServerLost("gave up"), 16.0)
    assert s.finished
    assert (s.result().problem, s.result().exit_code) == ("gave up", 143)


def test_a_lost_fork_server_fails_the_run_without_blaming_a_worker() -> None:
    s = group(2)
    s.handle(Exited(0, 0), 1.0)
    s.handle(ForkServerLost("the fork server was killed"), 2.0)
    assert s.finished
    result = s.result()
    assert (result.exit_code, result.first_failure, result.problem) == (1, None, "the fork server was killed")
    assert causes(s) == {0: "done", 1: "stopped by tfmp"}
    assert result.exits[1].describe() == "signal 9 (SIGKILL)"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([0, 1, 7, -9, -15]),
            st.sampled_from([0.0, 0.4, 1.5, 20.0]),
            st.sampled_from([None, signal.SIGINT, signal.SIGTERM]),
        ),
        max_size=8,
    )
)
def test_every_group_ends_and_no_dead_worker_is_signalled(history: list[tuple[int, int, float, int | None]]) -> None:
    """Whatever comes first, time alone brings any history to its end, through SIGKILL."""
    s = group(3, policy=StopPolicy(10, 2, 1, None))
    now_s = 0.0
    dead: set[int] = set()

    given_up: set[int] = set()

    def check(actions: list[Action]) -> None:
        given_up.update(rank for a in actions if isinstance(a, GiveUp) for rank in a.ranks)
        targets = {a.rank for a in actions if isinstance(a, Terminate | Kill)}
        assert not targets & dead

    for rank, code, wait_s, signum in history:
        now_s += wait_s
        check(s.tick(now_s))
        if signum is not None:
            check(s.handle(SignalReceived(signum), now_s))
        if rank not in dead:
            dead.add(rank)
            check(s.handle(Exited(rank, code), now_s))
    if not s.finished:
        check(s.handle(SignalReceived(signal.SIGTERM), now_s))
        while s.deadline_s is not None:
            now_s = s.deadline_s
            check(s.tick(now_s))
        assert given_up >= {0, 1, 2} - dead
        s.handle(ForkServerLost("gone"), now_s)
    assert s.finished
    assert [e.rank for e in s.result().exits] == [0, 1, 2]
    failed = [e for e in s.result().exits if e.cause == "failed"]
    assert (s.result().first_failure in failed) == bool(failed)
