"""What a training says and records of its end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.agent.failures.diagnosis import Diagnosis, Setting, diagnose
from tfmp.agent.failures.evidence import Evidence
from tfmp.agent.options import TrainOptions
from tfmp.agent.reporter import TrainingReporter
from tfmp.agent.restart_policy import Restart
from tfmp.config import RunConfig
from tfmp.events import CheckpointFailed, CheckpointSaved, FirstStep, ModelSaved, Progress, WeightsDigest
from tfmp.rundir.layout import RunFolder
from tfmp.workers.group import Line
from tfmp.workers.spec import GroupResult, WorkerExit

KILLED = WorkerExit(1, 11, None, 9, "failed")
TAKEN_ALONG = WorkerExit(0, 12, None, 15, "stopped by tfmp")
WELL = GroupResult(tuple(WorkerExit(rank, 10 + rank, 0, None, "done") for rank in range(2)))


def reporter(path: Path, *, chief: bool = True, **options: Any) -> TrainingReporter:
    """Of two workers in one attempt, which begins."""
    workers = [SimpleNamespace(rank=rank, local=chief or rank > 0) for rank in range(2)]
    plan = SimpleNamespace(
        workers=workers,
        epochs=2,
        batch=SimpleNamespace(steps_per_epoch=100),
        strategy="multi-worker",
        collective=SimpleNamespace(name="shm"),
        replicas=2,
        to_json=lambda: {"epochs": 2},
    )
    made = TrainingReporter(RunConfig(), plan, RunFolder(path), TrainOptions(live=False, **options))  # type: ignore[arg-type]
    made.started(SimpleNamespace(number=0, history=(), from_step=0, plan=plan))  # type: ignore[arg-type]
    return made


def diagnosis(step: int | None = 105) -> Diagnosis:
    result = GroupResult((TAKEN_ALONG, KILLED), KILLED, tails={1: ("I0000 00:00:1 1 x.cc:1] noise", "step 5")})
    evidence = [Evidence(exit, tail=result.tail(exit.rank), step=step) for exit in result.exits]
    return diagnose(evidence, result, setting=Setting({1: "127.0.0.1:7"}, 100))


def recorded(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    return [{name: value for name, value in event.items() if name != "time"} for event in events]


def test_a_failure_is_recorded_with_all_that_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, found = reporter(tmp_path), diagnosis()
    made.on_event(0, FirstStep(1, 4))
    made.on_event(0, Progress(2, 4))
    made.on_event(1, Progress(2, 5))
    made.ended(found.result)
    assert made.failed(found, "all 3 restarts are used up") == 137
    record = json.loads((tmp_path / "failure.json").read_text())
    error = found.to_error()
    last_step = {"0": {"epoch": 2, "step": 4}, "1": {"epoch": 2, "step": 5}}
    own = {"what": error.what, "where": error.where, "hint": error.hint, "last_step": last_step, "exit_code": 137}
    assert record == {**found.to_json(), **own}
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error: worker 1 failed: signal 9 (SIGKILL), after step 105 (epoch 2, step 5)"
    log = tmp_path / "logs" / "attempt-0" / "worker-1.log"
    assert said[-5:] == [
        f"  last lines of worker 1 ({log}):",
        "  | step 5",
        "taken along: worker 0 (stopped by tfmp)",
        f"  run folder: {tmp_path}",
        "  all 3 restarts are used up",
    ]


def test_ends_and_starts_of_attempts_are_events(tmp_path: Path) -> None:
    made = reporter(tmp_path)
    made.ended(diagnosis().result)
    assert recorded(tmp_path) == [
        {"event": "start", "attempt": 0, "from_step": 0, "workers": 2, "plan": {"epochs": 2}},
        {"event": "exit", "rank": 0, "exit_code": None, "signal": 15, "cause": "stopped by tfmp"},
        {"event": "exit", "rank": 1, "exit_code": None, "signal": 9, "cause": "failed"},
    ]
    made.ended(None)
    assert len(recorded(tmp_path)) == 3


def test_a_restart_is_told_with_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(tmp_path)
    made.restarting(diagnosis(105), Restart(2.0, 2, 3), 90)
    assert capsys.readouterr().err == (
        "worker 1 failed: signal 9 (SIGKILL)\n"
        "restarting in 2.0 s: attempt 2 of 3, restart 2 of 3, from step 90, lost 15 steps\n"
    )
    assert recorded(tmp_path)[-1] == {
        "event": "restart",
        "attempt": 2,
        "from_step": 90,
        "lost_steps": 15,
        "what": "worker 1 failed: signal 9 (SIGKILL)",
        "cause": "signal",
        "culprits": [1],
        "memory_evidence": None,
        "hang": None,
    }
    made.restarting(diagnosis(None), Restart(0.0, 1, 3), 1400)
    assert "restarting: attempt 2 of 4, restart 1 of 3, from step 1,400, lost 0 steps" in capsys.readouterr().err
    assert made.recorder.restarts == 2


def test_a_run_that_ends_well_hides_startup_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(tmp_path)
    for rank in range(2):
        made.on_line(Line(rank, "stderr", "I0000 00:00:1796017365.9 1 port.cc:153] oneDNN"))
        made.on_event(rank, WeightsDigest("abc"))
    made.on_event(0, ModelSaved("model.keras", 0.1))
    made.ended(WELL)
    assert made.succeeded(WELL) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "starting: importing TensorFlow, then 2 workers"
    assert out[1] == "2 TensorFlow startup messages hidden (see logs/)"
    assert out[2] == "done"
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "done"


@pytest.mark.parametrize(
    ("digests", "saved", "where"),
    [
        ({0: "a" * 64, 1: "b" * 64}, True, f"worker 0: {'a' * 12}, worker 1: {'b' * 12}"),
        ({0: "a" * 64}, True, f"worker 0: {'a' * 12}"),
        ({0: "a" * 64, 1: "a" * 64}, False, f"worker 0: {'a' * 12}, worker 1: {'a' * 12}"),
        ({}, True, "no worker reported its weights"),
    ],
)
def test_workers_that_do_not_hold_the_same_weights_have_failed(
    tmp_path: Path, digests: dict[int, str], saved: bool, where: str
) -> None:
    made = reporter(tmp_path)
    for rank, digest in digests.items():
        made.on_event(rank, WeightsDigest(digest))
    if saved:
        made.on_event(0, ModelSaved("model.keras", 0.1))
    assert made.succeeded(WELL) == 1
    record = json.loads((tmp_path / "failure.json").read_text())
    assert (record["what"], record["where"]) == ("expected the same trained weights on every worker", where)
    assert (record["worker"], record["last_step"], record["exit_code"]) == (None, {}, 1)


def test_an_interruption_says_where_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(tmp_path)
    made.on_event(0, CheckpointSaved(1, 5, 1105, "x.npz", 0.1))
    killed = GroupResult((WorkerExit(0, 1, None, 9, "stopped by tfmp"),), stopped_by=15)
    assert made.interrupted(15, killed) == 143
    assert capsys.readouterr().err.splitlines() == [
        f"interrupted by SIGTERM after epoch 0 of 2; run folder: {tmp_path}",
        f"  the workers did not stop within {RunConfig().run.grace_period_s:g} s (run.grace_period_s) and were killed",
        f"  saved at step 1,105: --resume --run-dir {tmp_path} goes on there",
    ]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"


def test_a_checkpoint_that_could_not_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter(tmp_path).on_event(0, CheckpointFailed(1, 0, 1100, "No space left on device"))
    assert "warning: no checkpoint at step 1,100: No space left on device; training goes on" in capsys.readouterr().out


def test_a_launcher_without_the_chief_writes_events_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, found = reporter(tmp_path, chief=False), diagnosis()
    assert made.failed(found, None) == 137
    error = found.to_error()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl"]
    assert recorded(tmp_path)[-1] == {"event": "failure", "what": error.what, "where": error.where, "exit_code": 137}
    assert "starting: all 2 workers are here and agree" in capsys.readouterr().out
