"""The parts between the command line and the processes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.agent.failures.diagnosis import Evidence, judge
from tfmp.agent.failures.hints import known_hint
from tfmp.agent.failures.report import Findings, describe_failure, failure_record, other_workers
from tfmp.agent.shm_setup import compose_shm_setup, local_shm_setup, settle_collective, shared_shm_setup
from tfmp.errors import UsageError
from tfmp.planning.environment import fork_server_environment
from tfmp.workers.spec import GroupResult, WorkerExit


def test_the_environment_is_put_right_and_said() -> None:
    user = {"KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1", "HOME": "/h"}
    env, notices = fork_server_environment(user, {"OMP_NUM_THREADS": "2", "TF_CONFIG": "x"}, verbose=False)
    assert env == {"KERAS_BACKEND": "tensorflow", "HOME": "/h", "TF_CPP_MIN_LOG_LEVEL": "1", "OMP_NUM_THREADS": "2"}
    assert len(notices) == 2
    assert user["KERAS_BACKEND"] == "torch"
    env, notices = fork_server_environment({"TF_CPP_MIN_LOG_LEVEL": "0"}, {}, verbose=False)
    assert (env["TF_CPP_MIN_LOG_LEVEL"], notices) == ("0", [])
    assert "TF_CPP_MIN_LOG_LEVEL" not in fork_server_environment({}, {}, verbose=True)[0]


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


def meeting_plan(collective: str, *hosts: int) -> Any:
    return SimpleNamespace(collective=SimpleNamespace(name=collective), hosts=hosts)


def test_workers_that_share_memory_meet_in_a_private_folder(tmp_path: Path) -> None:
    assert local_shm_setup(tmp_path, meeting_plan("ring", 0, 1)) is None
    plan = meeting_plan("hierarchical", 0, 1, 0)
    place = local_shm_setup(tmp_path, plan)
    assert place is not None
    assert place.directory.stat().st_mode & 0o777 == 0o700
    assert len(bytes.fromhex(place.token)) == 16
    told = [place.of(rank, plan) for rank in range(3)]
    assert [(one["rank"], one["size"], one["hosts"]) for one in told] == [(0, 2, 2), (0, 1, 2), (1, 2, 2)]
    assert {(one["directory"], one["token"]) for one in told} == {(str(place.directory), place.token)}


def test_launchers_of_one_host_meet_in_one_folder_which_its_first_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = meeting_plan("hierarchical", 0, 1, 0)
    told = compose_shm_setup(plan, ["x", "y", "x"], [11, 12, 13])
    assert told["apart"] == []
    with shared_shm_setup(plan, 0, told) as first:
        with shared_shm_setup(plan, 2, told) as third, shared_shm_setup(plan, 1, told) as second:
            assert first is not None
            assert second is not None
            assert first == third != second
            assert first.directory.parent.name.startswith("tfmp-11-")
        assert first.directory.is_dir()
    assert not first.directory.parent.exists()
    with shared_shm_setup(meeting_plan("ring", 0, 1), 0, told) as nothing:
        assert nothing is None


def test_workers_of_one_address_without_common_memory_take_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfmp.agent.shm_setup.replace", lambda plan, collective: collective)
    plan = meeting_plan("shm", 0, 0)
    told = compose_shm_setup(plan, ["x", "y"], [1, 2])
    names = ["worker 0 (h:1)", "worker 1 (h:2)"]
    assert told["apart"] == [1]
    reason = "worker 0 (h:1) and worker 1 (h:2) have one address and share no folder for temporary files"
    assert settle_collective(plan, told, "auto", names) == ("ring", reason)
    with pytest.raises(UsageError, match="the collective shm is not possible: " + re.escape(reason)):
        settle_collective(plan, told, "shm", names)
    assert settle_collective(plan, compose_shm_setup(plan, ["x", "x"], [1, 2]), "auto", names) is plan
