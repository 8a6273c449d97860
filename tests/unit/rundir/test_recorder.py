"""What is recorded of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tfmp.events import EpochEnd, FirstStep, Progress, Ready, Validating, WeightsDigest, WorkerEvent
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.recorder import Recorder

METRICS = {"val_loss": 0.2, "loss": 0.25, "accuracy": 0.9, "val_accuracy": 0.91}
EPOCH = EpochEnd(1, METRICS, seconds=1.25, samples_per_second=48000.4, step=235)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    clock = Clock()
    made = Recorder(RunFolder(tmp_path), clock, 90.0)
    made.clock = clock  # type: ignore[attr-defined]
    return made


def test_metrics_have_a_line_an_epoch_from_rank_0_in_a_fixed_order(recorder: Recorder, tmp_path: Path) -> None:
    recorder.on_event(0, EPOCH)
    recorder.on_event(1, EPOCH)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert list(json.loads(line)) == [
        "epoch", "loss", "accuracy", "val_loss", "val_accuracy", "seconds", "samples_per_second", "step",
    ]  # fmt: skip


def test_events_are_recorded_but_not_progress(recorder: Recorder, tmp_path: Path) -> None:
    events: list[WorkerEvent] = [Ready(2), Progress(1, 2), Validating(1), EPOCH]
    for event in events:
        recorder.on_event(1, event)
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line) == {"time": 100.0, "event": "ready", "rank": 1, "replicas": 2}


def test_the_summary_holds_the_last_numbers_and_the_steady_throughput(recorder: Recorder) -> None:
    recorder.on_event(0, FirstStep(1, 1))
    recorder.on_event(0, WeightsDigest("abc"))
    for epoch, speed in enumerate([10.0, 100.0, 300.0, 200.0], start=1):
        metrics = {**METRICS, "loss": 1.0 / epoch}
        recorder.on_event(0, replace(EPOCH, epoch=epoch, metrics=metrics, samples_per_second=speed))
    summary = recorder.summary(status="done", workers=2, strategy="multi-worker", collective="shm", replicas=2)
    assert summary["samples_per_second"] == 200.0, "the median without the first epoch"
    assert (summary["epochs"], summary["loss"], summary["val_accuracy"]) == (4, 0.25, 0.91)
    assert (summary["seconds_to_first_step"], summary["seconds"]) == (10.0, 10.0)
    assert summary["weights_sha256"] == "abc"
    assert "step" not in summary
