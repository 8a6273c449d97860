"""What people see of a run, and what is recorded of it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfmp.report.noise import is_noise
from tfmp.report.summary import print_rows, print_table, summary_rows
from tfmp.report.view import LiveView, PlainView
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.recorder import Recorder
from tfmp.text import count, metrics_text, rate, seconds
from tfmp.workers.events import EpochEnd, FirstStep, Progress, Ready, Validating, WeightsDigest, WorkerEvent

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


def view(**settings: Any) -> tuple[PlainView, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    made = PlainView(epochs=5, steps_per_epoch=235, workers=2, out=out, clock=clock, **settings)
    return made, out, clock


def test_plain_lines() -> None:
    shown, out, clock = view()
    clock.now += 3.25
    shown.on_event(0, Ready())
    shown.on_event(1, Ready())
    shown.on_event(0, Progress(1, 32, metrics={"loss": 0.5}))
    clock.now += 11
    shown.on_event(0, Progress(1, 64, 1234.5, {"loss": 0.5}))
    shown.on_event(0, EPOCH)
    shown.on_event(1, EPOCH)
    shown.on_line(1, "stderr", "a word of the worker's")
    shown.on_line(1, "stdout", "tfmp: for the log only")
    assert out.getvalue().splitlines() == [
        "2 workers ready in 3.2 s",
        "epoch 1/5  step 64/235  loss 0.5000  1,234 samples/s",
        "epoch 1/5  loss 0.2500  accuracy 0.9000  val_loss 0.2000  val_accuracy 0.9100  48,000 samples/s  1.2 s",
        "[worker 1] a word of the worker's",
    ]


def test_quiet_and_verbose() -> None:
    shown, out, _ = view(verbosity=-1)
    shown.on_event(0, EPOCH)
    shown.on_line(0, "stdout", "text")
    assert out.getvalue() == ""
    shown, out, _ = view(verbosity=1)
    shown.on_line(0, "stdout", "tfmp: for the log")
    assert out.getvalue() == "[worker 0] tfmp: for the log\n"


def test_the_live_view_keeps_finished_lines_and_removes_its_bar() -> None:
    out = io.StringIO()
    live = LiveView(epochs=5, steps_per_epoch=235, workers=1, out=out)
    live.on_event(0, Progress(1, 32, 10.0, {"loss": 0.5}))
    live.on_event(0, Progress(1, 64, 10.0, {"loss": 0.5}))
    live.on_event(0, Validating(1))
    live.on_event(0, EPOCH)
    live.close()
    assert "epoch 1/5  loss 0.2500" in out.getvalue()


def test_numbers_for_people() -> None:
    assert [seconds(value) for value in (0.84, 9.96, 61, 3725)] == ["0.8 s", "10.0 s", "1 min 1 s", "1 h 2 min"]
    assert [count(1, "worker"), count(60000, "sample")] == ["1 worker", "60,000 samples"]
    assert [rate(None), rate(12345.6)] == ["", "12,346 samples/s"]
    assert metrics_text({"auc": 0.5, "loss": None, "epoch": 3}) == "loss nan  auc 0.5000"


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([("a", "1"), ("long", "2")], "title")
    print_table(("rank", "x"), [("0", "any"), ("1", "-")])
    assert capsys.readouterr().out == "title\n  a     1\n  long  2\n  rank  x\n  0     any\n  1     -\n"


def test_summary_rows_leave_out_what_is_not_known() -> None:
    summary = {"status": "failed", "workers": 1, "replicas": 1, "strategy": "mirrored", "collective": "none",
               "epochs": 0, "samples_per_second": None, "seconds_to_first_step": None, "seconds": 1.0,
               "weights_sha256": None}  # fmt: skip
    assert [label for label, _ in summary_rows(summary, "runs/a")] == [
        "status", "workers", "epochs", "total time", "run folder",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "noise"),
    [
        ("I0000 00:00:1796017365.918627    3799 port.cc:153] oneDNN custom operations are on.", True),
        ("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", True),
        ("2026-11-30 06:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN", True),
        ("E0000 00:00:1796017365.918627    3799 x.cc:1] failed", False),
        ("Traceback (most recent call last):", False),
        ("I think this is mine", False),
    ],
)
def test_only_tensorflows_informational_lines_are_noise(line: str, noise: bool) -> None:
    assert is_noise(line) is noise
