"""Histories of a run: what fails, how it is judged, whether it starts again, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.fake_group import (
    TICK_S,
    Clock,
    Ends,
    FakeGroup,
    Prints,
    Script,
    Sends,
    ServerDies,
    Stops,
    UserSends,
)
from tfmp.agent.controller import Attempt, Controller, Reporter, Workload
from tfmp.agent.failures.diagnosis import Cause, Diagnosis, Setting, diagnose
from tfmp.agent.monitor import Watch
from tfmp.agent.restart_policy import Restart, RestartPolicy
from tfmp.errors import TfmpError
from tfmp.events import (
    FailedAfter,
    FirstStep,
    LeftOnRequest,
    Progress,
    Ready,
    UncaughtException,
    UserError,
    Validating,
)
from tfmp.workers.lifecycle import StopPolicy
from tfmp.workers.spec import GroupResult, WorkerSpec

WORKERS = 3
STEPS_PER_EPOCH = 100
KILLED, EXITED = -9, 7
PEER_GONE = UncaughtException("UnavailableError", "Collective ops is aborted by: Connection reset by peer")
VALUE_ERROR = UncaughtException("ValueError", "bad label 11")
PORT_TAKEN = "UNKNOWN: Could not start gRPC server"


class FakeWorkload(Workload):
    """Workers of a training whose last checkpoint is of the given step."""

    def __init__(self, checkpoints: Sequence[int], hang_timeout_s: float | None, gone: TfmpError | None) -> None:
        self.begun = 0
        self.ended = 0
        self.ready = 0
        self._checkpoints = list(checkpoints)
        self._hang_timeout_s = hang_timeout_s
        self._gone = gone

    def check(self) -> None:
        if self._gone is not None:
            raise self._gone

    def rewind(self) -> int:
        return self._checkpoints.pop(0) if self._checkpoints else 0

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        self.begun += 1
        specs = [WorkerSpec(rank, {}, Path("unused"), argv=("true",)) for rank in range(WORKERS)]
        addresses = {rank: f"127.0.0.1:{rank + 1}" for rank in range(WORKERS)}
        watch = Watch(tuple(range(WORKERS)), Setting(addresses, STEPS_PER_EPOCH), self._hang_timeout_s, 300.0)
        try:
            yield Attempt(self.begun - 1, specs, watch, self._on_ready)
        finally:
            self.ended += 1

    def _on_ready(self) -> None:
        self.ready += 1


class FakeReporter(Reporter):
    """Notes what it is told of restarts and of the end."""

    def __init__(self) -> None:
        self.restarts: list[tuple[Diagnosis, Restart, int]] = []
        self.end: Any = None
        self.why: str | None = None

    def restarting(self, diagnosis: Diagnosis, restart: Restart, from_step: int) -> None:
        self.restarts.append((diagnosis, restart, from_step))

    def succeeded(self, result: GroupResult) -> int:
        self.end = "succeeded"
        return 0

    def interrupted(self, signum: int, result: GroupResult | None) -> int:
        self.end = "interrupted"
        return 128 + signum

    def failed(self, diagnosis: Diagnosis, why: str | None) -> int:
        self.end, self.why = diagnosis, why
        return diagnosis.to_error().exit_code


class History:
    """One run, played to its end."""

    def __init__(
        self,
        *scripts: Script,
        max_restarts: int = 3,
        ports_are_free: bool = True,
        checkpoints: Sequence[int] = (),
        gone: TfmpError | None = None,
        hang_timeout_s: float | None = None,
        start_timeout_s: float | None = None,
        signal_while_waiting: int | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self._clock = clock = Clock()
        policy = StopPolicy(10.0, 0.2, 0.4, start_timeout_s)
        self.group = FakeGroup(clock, scripts, policy, signal_while_waiting, tick_s)
        self.workload = FakeWorkload(checkpoints, hang_timeout_s, gone)
        self.reporter = FakeReporter()
        restarts = RestartPolicy(max_restarts, ports_are_free=ports_are_free)
        self.controller = Controller(self.group, self.workload, restarts, self.reporter, clock)
        self.code: int | None = None
        self.took_s = 0.0

    def play(self) -> History:
        began_s = self._clock()
        self.code = self.controller.run()
        self.took_s = self._clock() - began_s
        assert self.workload.begun == self.workload.ended
        return self

    @property
    def causes(self) -> list[Cause]:
        """Of the failures that were restarted."""
        return [diagnosis.cause for diagnosis, _, _ in self.reporter.restarts]

    @property
    def attempts(self) -> int:
        return self.workload.begun


def training(*steps: Any, at: int = 10, **more: Any) -> Script:
    """All workers become ready and have done ``at`` steps after two seconds; then ``steps`` happen."""
    begun: list[Any] = [(1.0, Sends(rank, Ready(1))) for rank in range(WORKERS)]
    for rank in range(WORKERS if at else 0):
        begun.append((2.0, Sends(rank, FirstStep(1, 1))))
        begun.append((2.0, Sends(rank, Progress(1, at))))
    return Script([*begun, *((after_s + 2.0, happening) for after_s, happening in steps)], **more)


def fails(
    rank: int, end: int, event: Any = None, *, at: int = 10, said: str | None = None, after_s: float = 0
) -> Script:
    """One worker fails after ``at`` steps; the others only notice."""
    steps: list[Any] = [(1.0 + after_s, Prints(rank, said))] if said else []
    if event is not None:
        steps.append((1.0 + after_s, Sends(rank, event)))
    return training(*steps, (1.0 + after_s, Ends(rank, end)), at=at)


def done() -> Script:
    return training(*((1.0, Ends(rank, 0)) for rank in range(WORKERS)))


def test_a_run_that_ends_well_is_started_once() -> None:
    run = History(done()).play()
    assert (run.code, run.reporter.end, run.attempts, run.reporter.restarts) == (0, "succeeded", 1, [])
    assert run.workload.ready > 0, "the ports are let go"


def test_a_killed_worker_is_named_and_all_start_again_from_the_checkpoint() -> None:
    run = History(fails(1, KILLED, at=42), done(), checkpoints=[30]).play()
    assert (run.code, run.attempts, run.causes) == (0, 2, ["signal"])
    ((diagnosis, restart, from_step),) = run.reporter.restarts
    assert (diagnosis.culprits, diagnosis.step, from_step) == ((1,), 42, 30)
    assert restart == Restart(1.0, 1, 3)
    assert diagnosis.short() == "worker 1 failed: signal 9 (SIGKILL)"
    assert run.group.waits_s == [1.0]


def test_an_exception_is_a_crash_and_is_tried_again() -> None:
    run = History(fails(2, 1, VALUE_ERROR), done()).play()
    assert (run.code, run.causes) == (0, ["crash"])
    assert run.reporter.restarts[0][0].short() == "worker 2 failed: ValueError: bad label 11"


def test_the_same_exception_at_the_same_step_is_final() -> None:
    run = History(fails(2, 1, VALUE_ERROR), fails(2, 1, VALUE_ERROR), done()).play()
    assert (run.code, run.attempts) == (1, 2)
    assert run.reporter.why == "the same error twice after step 10: not restarted"


def test_the_same_exception_at_another_step_is_tried_again() -> None:
    run = History(fails(2, 1, VALUE_ERROR, at=10), fails(2, 1, VALUE_ERROR, at=11), done()).play()
    assert (run.code, run.attempts) == (0, 3)


def test_the_step_of_a_failure_is_known_exactly_although_progress_is_rare() -> None:
    failing = training((1.0, Sends(0, FailedAfter(13))), (1.0, Sends(0, VALUE_ERROR)), (1.0, Ends(0, 1)))
    run = History(failing, done()).play()
    assert run.reporter.restarts[0][0].step == 13


def test_an_error_of_the_users_is_final() -> None:
    run = History(fails(0, 1, UserError("the loss became nan", "model", "lower it")), done()).play()
    assert (run.code, run.attempts) == (1, 1)
    assert run.reporter.why == "it would fail again: not restarted"
    error = run.reporter.end.to_error()
    assert (error.what, error.hint) == ("the loss became nan", "lower it")
    assert error.where.endswith(", model")


def test_a_preempted_worker_costs_no_wait() -> None:
    leaving = training(
        (1.0, Sends(1, LeftOnRequest(asked=True))),
        (1.0, Ends(1, 143)),
        (1.1, Sends(0, LeftOnRequest(asked=False))),
        (1.1, Ends(0, 143)),
        (1.1, Sends(2, LeftOnRequest(asked=False))),
        (1.1, Ends(2, 143)),
    )
    run = History(leaving, done()).play()
    assert (run.code, run.causes, run.group.waits_s) == (0, ["preempted"], [0.0])
    assert run.reporter.restarts[0][0].culprits == (1,)


def test_a_job_that_a_scheduler_ends_is_interrupted_whoever_heard_first() -> None:
    leaving = training(
        (1.0, Sends(1, LeftOnRequest(asked=True))), (1.0, Ends(1, 143)), (1.1, UserSends(signal.SIGTERM))
    )
    run = History(leaving, done()).play()
    assert (run.code, run.reporter.end, run.attempts) == (143, "interrupted", 1)


def stack(*functions: str) -> str:
    frames = "".join(f'  File "/x/{name}.py", line 5 in {name}\n' for name in functions)
    return f"Current thread 0x00007f02 (most recent call first):\n{frames}"


WAITING = stack("quick_execute", "train_function", "fit")


def test_a_hang_is_explained_and_tried_again() -> None:
    hanging = training(stacks={0: WAITING, 1: stack("read", "load_batch", "fit"), 2: WAITING})
    run = History(hanging, done(), hang_timeout_s=20.0).play()
    assert (run.code, run.causes) == (0, ["hang"])
    diagnosis = run.reporter.restarts[0][0]
    assert diagnosis.culprits == (1,)
    assert diagnosis.short() == "no step has finished for 20 s: worker 1 is not where the others are"
    assert diagnosis.details[1].startswith("worker 1: read (read.py:5) < load_batch")
    assert run.group.stack_requests == 1


def test_a_long_validation_is_no_hang() -> None:
    steps = [(after_s, Sends(0, Validating(1))) for after_s in (10.0, 20.0, 30.0)]
    run = History(training(*steps, *((35.0, Ends(rank, 0)) for rank in range(WORKERS))), hang_timeout_s=15.0).play()
    assert (run.code, run.attempts) == (0, 1)


def test_a_stopped_process_is_found_and_killed() -> None:
    run = History(training((1.0, Stops(2))), done()).play()
    assert (run.code, run.causes) == (0, ["signal"])
    assert run.reporter.restarts[0][0].short() == "worker 2 is stopped (SIGSTOP), and the others wait"
    assert run.group.kills == [2], "it does not hear SIGTERM"


def test_a_fork_server_that_dies_is_replaced() -> None:
    run = History(training((1.0, ServerDies())), done()).play()
    assert (run.code, run.causes, run.attempts) == (0, ["fork-server"], 2)


def test_taken_ports_are_replaced_at_once_and_not_for_ever() -> None:
    taken = [fails(0, 1, said=PORT_TAKEN, at=0) for _ in range(4)]
    run = History(*taken[:2], done()).play()
    assert (run.code, run.causes, run.group.waits_s) == (0, ["ports", "ports"], [0.0, 0.0])
    run = History(*taken, done()).play()
    assert (run.code, run.attempts) == (1, 4)
    assert run.reporter.why == "3 other sets of ports were taken as well"


def test_ports_of_the_users_choice_are_not_replaced() -> None:
    run = History(fails(0, 1, said=PORT_TAKEN, at=0), done(), ports_are_free=False).play()
    assert (run.attempts, run.reporter.why) == (1, "the ports were chosen by you: not restarted")


def test_a_crash_before_the_first_step_is_final() -> None:
    run = History(fails(1, EXITED, at=0), done()).play()
    assert (run.code, run.attempts) == (7, 1)
    assert run.reporter.why == "it failed before the first step, and would again: not restarted"
    assert run.reporter.end.to_error().what == "worker 1 failed: exit code 7, before its first step"


def test_a_kill_before_the_first_step_is_not_the_programs_fault() -> None:
    run = History(fails(1, KILLED, at=0), done()).play()
    assert (run.code, run.causes) == (0, ["signal"])


def test_workers_that_are_never_ready_end_the_run() -> None:
    run = History(Script([(1.0, Sends(0, Ready(1)))]), done(), start_timeout_s=30.0).play()
    assert (run.code, run.attempts, run.reporter.end.cause) == (1, 1, "start")
    error = run.reporter.end.to_error()
    assert error.what == "workers 1, 2 not ready within 30 s"
    assert error.where == "worker 1 (127.0.0.1:2), worker 2 (127.0.0.1:3)"


def test_the_budget_of_restarts_ends() -> None:
    run = History(*(fails(1, KILLED, at=at) for at in (10, 20, 30, 40)), done()).play()
    assert (run.code, run.attempts, run.reporter.why) == (137, 4, "all 3 restarts are used up")
    assert run.group.waits_s == [1.0, 2.0, 4.0]


def test_crashes_and_external_kills_have_a_budget_each() -> None:
    crash, kill = fails(0, EXITED), fails(1, KILLED)
    run = History(crash, kill, crash, kill, done(), max_restarts=2).play()
    assert (run.code, run.causes) == (0, ["crash", "signal", "crash", "signal"])
    run = History(crash, kill, crash, crash, done(), max_restarts=2).play()
    assert (run.code, run.attempts) == (7, 4)


def test_an_hour_of_health_refills_the_budget() -> None:
    healthy = training(
        *((50.0 * i, Sends(rank, Progress(1, 10 + i))) for i in range(1, 74) for rank in range(WORKERS)),
        (3700.0, Ends(1, KILLED)),
    )
    run = History(fails(1, KILLED), healthy, fails(1, KILLED), done(), max_restarts=1, tick_s=20.0).play()
    assert (run.code, run.attempts) == (7 + 130, 3)
    assert [restart.number for _, restart, _ in run.reporter.restarts] == [1, 1]


def test_no_restarts_means_none() -> None:
    run = History(fails(1, KILLED), done(), max_restarts=0).play()
    assert (run.code, run.attempts, run.reporter.why) == (137, 1, None)


def test_ctrl_c_lets_the_workers_save_and_ends_the_run() -> None:
    left = {rank: (LeftOnRequest(asked=True), 143) for rank in range(WORKERS)}
    run = History(training((1.0, UserSends(signal.SIGINT)), says_when_stopped=left), done()).play()
    assert (run.code, run.reporter.end, run.attempts) == (130, "interrupted", 1)
    assert run.group.kills == []


def test_a_second_ctrl_c_kills_workers_that_do_not_end() -> None:
    stops = ((1.0, UserSends(signal.SIGINT)), (3.0, UserSends(signal.SIGINT)))
    run = History(training(*stops, deaf=frozenset({0})), done()).play()
    assert (run.code, run.reporter.end, run.group.kills) == (130, "interrupted", [0])
    assert run.took_s < 6.0, "before the grace period is over"


def test_a_stop_signal_between_two_attempts_ends_the_wait() -> None:
    run = History(fails(1, KILLED), done(), signal_while_waiting=signal.SIGTERM).play()
    assert (run.code, run.reporter.end, run.attempts) == (143, "interrupted", 1)


def test_a_failure_that_the_user_interrupts_is_told_but_not_restarted() -> None:
    run = History(training((1.0, Ends(1, KILLED)), (1.2, UserSends(signal.SIGINT))), done()).play()
    assert (run.code, run.attempts) == (137, 1)
    assert (run.reporter.end.culprits, run.reporter.why) == ((1,), None)


def test_a_victim_that_fails_first_is_not_blamed() -> None:
    victims = [(1.0, Sends(0, PEER_GONE)), (1.0, Ends(0, 1)), (1.1, Sends(2, PEER_GONE)), (1.1, Ends(2, 1))]
    failing = training(*victims, (1.2, Ends(1, KILLED)))
    run = History(failing, done()).play()
    diagnosis = run.reporter.restarts[0][0]
    assert (diagnosis.culprits, diagnosis.victims, diagnosis.cause) == ((1,), (0, 2), "signal")


def test_two_failures_of_different_kinds_are_both_named() -> None:
    failing = training((1.0, Sends(0, VALUE_ERROR)), (1.0, Ends(0, 1)), (1.1, Ends(1, KILLED)))
    run = History(failing, max_restarts=0).play()
    assert "and independently of it: worker 1: signal 9 (SIGKILL)" in run.reporter.end.to_error().what


def test_workers_stopped_because_another_failed_are_taken_along() -> None:
    run = History(fails(0, EXITED), max_restarts=0).play()
    assert run.reporter.end.taken_along == "taken along: worker 1 (stopped by tfmp), worker 2 (stopped by tfmp)"


def test_an_older_checkpoint_costs_the_steps_since() -> None:
    """The newest may be damaged: what :meth:`rewind` finds counts."""
    run = History(fails(1, KILLED, at=90), done(), checkpoints=[25]).play()
    (_, _, from_step) = run.reporter.restarts[0]
    assert from_step == 25


def test_a_run_folder_that_is_gone_ends_the_run() -> None:
    gone = TfmpError("the run folder is gone")
    run = History(fails(1, 1, UserError("cannot write the checkpoint")), done(), gone=gone)
    with pytest.raises(TfmpError, match="the run folder is gone"):
        run.play()
    assert (run.attempts, run.workload.ended) == (1, 1)


def test_an_error_of_the_launchers_own_leaves_no_worker() -> None:
    run = History(done())

    def fail(rank: int, event: Any) -> None:
        raise OSError("no space left")

    run.reporter.on_event = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space left"):
        run.play()
    assert run.group.closed_early, "the group kills its workers"
    assert run.workload.ended == 1


def test_a_failure_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Diagnosis] = []

    def count(*arguments: Any, **named: Any) -> Diagnosis:
        judged.append(diagnose(*arguments, **named))
        return judged[-1]

    monkeypatch.setattr("tfmp.agent.monitor.diagnose", count)
    run = History(fails(1, KILLED), fails(0, 1, VALUE_ERROR), done()).play()
    assert [diagnosis for diagnosis, _, _ in run.reporter.restarts] == judged
    assert len(judged) == 2
