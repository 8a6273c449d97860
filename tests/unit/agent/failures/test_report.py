"""The parts between the command line and the processes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tfmp.agent.failures.diagnosis import Evidence, judge
from tfmp.agent.failures.hints import known_hint
from tfmp.agent.failures.report import Findings, describe_failure, failure_record, other_workers
from tfmp.workers.spec import GroupResult, WorkerExit

PLAN: Any = SimpleNamespace(
    workers=[SimpleNamespace(address="127.0.0.1:1"), SimpleNamespace(address=None)],
    batch=SimpleNamespace(steps_per_epoch=100),
)


def findings(*exits: WorkerExit, errors: Mapping[int, Mapping[str, Any]] | None = None, **more: Any) -> Findings:
    first = next((one for one in exits if one.cause == "failed"), None)
    result = GroupResult(exits=exits, first_failure=first, **more)
    evidence = [Evidence(one, error=(errors or {}).get(one.rank), tail=result.tail(one.rank)) for one in exits]
    return Findings(result, judge(evidence, result))


def test_death_by_a_signal_is_named_with_what_it_often_means() -> None:
    found = findings(WorkerExit(0, 11, None, 9, "failed"), WorkerExit(1, 12, None, 15, "stopped by tfmp"))
    error = describe_failure(found, PLAN)
    assert error.what == "worker 0 failed: signal 9 (SIGKILL), before its first step"
    assert (error.where or "").startswith("worker 0 (127.0.0.1:1)")
    assert "out-of-memory killer" in (error.hint or "")
    assert error.exit_code == 137
    assert other_workers(found.result, found.verdict) == "taken along: worker 1 (stopped by tfmp)"
    record = failure_record(found, error, {0: {"epoch": 1, "step": 5}})
    assert (record["worker"], record["signal"], record["exit_code"]) == (0, "SIGKILL", 137)


def test_a_workers_own_error_is_what_is_shown() -> None:
    own = {"what": "the loss became nan", "where": "model", "hint": "lower it"}
    error = describe_failure(findings(WorkerExit(1, 12, 1, None, "failed"), errors={1: own}), PLAN)
    assert (error.what, error.hint) == ("the loss became nan", "lower it")
    assert (error.where or "").startswith("worker 1")
    assert (error.where or "").endswith(", model")


def test_known_messages_in_the_last_lines_give_the_hint() -> None:
    found = findings(WorkerExit(0, 1, 1, None, "failed"), tails={0: ("x", "OSError: No space left on device")})
    assert "disk is full" in (describe_failure(found, PLAN).hint or "")
    assert known_hint(["nothing known"]) is None


def test_workers_that_never_were_ready_are_named() -> None:
    error = describe_failure(findings(problem="not ready within 5 s", not_ready=(0, 1)), PLAN)
    assert error.what == "not ready within 5 s"
    assert error.where == "worker 0 (127.0.0.1:1), worker 1 (local)"
