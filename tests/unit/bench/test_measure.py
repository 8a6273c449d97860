"""A run folder read as a measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench.support import PLAN
from tfmp.bench.analysis import Measurement
from tfmp.bench.measure import read_trial
from tfmp.bench.trials import Trial
from tfmp.errors import TfmpError
from tfmp.rundir.layout import RunFolder


def run_folder(path: Path, speeds: list[float], first_step: float, sha: str) -> RunFolder:
    """A run folder as ``tfmp train`` leaves it, as far as a benchmark reads it."""
    path.mkdir()
    folder = RunFolder(path)
    epochs = [{"epoch": n, "seconds": 1.0, "samples_per_second": speed} for n, speed in enumerate(speeds, start=1)]
    folder.metrics.write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    events: list[dict[str, Any]] = [{"time": first_step - 1, "event": "ready", "rank": 0}]
    events += [{"time": first_step, "event": "first_step", "rank": 0}]
    events += [
        {"time": first_step + 1 + n, "event": "epoch", "val_accuracy": 0.9 + n / 100} for n in range(len(speeds))
    ]
    folder.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    folder.summary.write_text(
        json.dumps({"status": "done", "epochs": len(speeds), "collective": "shm", "weights_sha256": sha})
    )
    return folder


def test_a_run_folder_is_read_without_its_first_epoch(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [9e9, 10.0, 30.0, 20.0], 104.5, "abc")
    found = read_trial(PLAN.run(2, 256), 3, [folder], 100.0, 12.5, 0.25)
    assert found == Measurement(
        trial=Trial("run", 2, 256, "shm"),
        round=3,
        rates=((10.0, 30.0, 20.0),),
        samples_per_second=20.0,
        first_step_s=4.5,
        reached=((5.5, 0.9), (6.5, 0.91), (7.5, 0.92), (8.5, 0.93)),
        seconds=12.5,
        collective="shm",
        weights_sha256=("abc",),
        foreign_cores=0.25,
    )


def test_workers_apart_are_added_up_and_the_slowest_start_counts(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / "a", [1.0, 10.0, 30.0, 20.0], 104.0, "x"),
        run_folder(tmp_path / "b", [1.0, 5.0], 107.0, "y"),
    ]
    found = read_trial(PLAN.apart(2, 256), 1, folders, 100.0, 12.5, 0.25)
    assert (found.samples_per_second, found.first_step_s, found.weights_sha256) == (25.0, 7.0, ("x", "y"))


def test_a_run_without_figures_is_an_error(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [10.0], 104.5, "abc")
    with pytest.raises(TfmpError, match="no usable figures"):
        read_trial(PLAN.run(2, 256), 1, [folder], 100.0, 12.5, 0.25)
    folder.metrics.unlink()
    with pytest.raises(TfmpError, match=r"metrics\.jsonl"):
        read_trial(PLAN.run(2, 256), 1, [folder], 100.0, 12.5, 0.25)
