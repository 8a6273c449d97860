"""The files of a run are read back as they were written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tfmp.events import EpochEnd, WeightsDigest
from tfmp.rundir.layout import RunFolder, write_json
from tfmp.rundir.reader import (
    EpochMetrics,
    Event,
    Failure,
    Summary,
    read_events,
    read_failure,
    read_metrics,
    read_summary,
)
from tfmp.rundir.recorder import Recorder

EPOCH = EpochEnd(1, {"loss": float("nan"), "accuracy": 0.9}, seconds=1.25, samples_per_second=48000.5, step=235)


def test_what_the_recorder_writes_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = Recorder(folder, lambda: 100.0, 90.0)
    recorder.on_event(0, EPOCH)
    recorder.on_event(0, WeightsDigest("abc"))
    write_json(
        folder.summary,
        recorder.summary(status="done", workers=2, strategy="multi-worker", collective="shm", replicas=2),
    )
    assert read_metrics(folder) == [EpochMetrics(1, {"loss": None, "accuracy": 0.9}, 1.25, 48000.5)]
    epoch, weights = read_events(folder)
    assert (epoch.kind, epoch.time_s, epoch.values["accuracy"]) == ("epoch", 100.0, 0.9)
    assert weights == Event("weights", 100.0, {"rank": 0, "sha256": "abc"})
    assert read_summary(folder) == Summary(
        status="done",
        epochs=1,
        workers=2,
        replicas=2,
        strategy="multi-worker",
        collective="shm",
        samples_per_second=48000.5,
        seconds_to_first_step=None,
        seconds=10.0,
        restarts=0,
        weights_sha256="abc",
        values={"loss": None, "accuracy": 0.9},
    )


def test_a_failure_is_read_with_all_that_it_holds(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    known = {"what": "worker 1 failed", "where": None, "hint": "this", "exit_code": 137, "cause": "killed"}
    write_json(folder.failure, {**known, "culprits": [1], "victims": [0, 2], "log_tail": ["last"]})
    assert read_failure(folder) == Failure(
        "worker 1 failed", None, "this", 137, "killed", (1,), (0, 2), {"log_tail": ["last"]}
    )


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("metrics.jsonl", '{"epoch": 1}\n', read_metrics),
        ("metrics.jsonl", '{"epoch": 1, "sec', read_metrics),
        ("events.jsonl", '{"event": "ready"}\n', read_events),
        ("summary.json", "[]", read_summary),
        ("failure.json", "3", read_failure),
    ],
)
def test_a_missing_or_damaged_file_is_named(
    tmp_path: Path, name: str, text: str, read: Callable[[RunFolder], object]
) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        read(RunFolder(tmp_path))
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        read(RunFolder(tmp_path))
