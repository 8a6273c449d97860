"""Running a trial, and reading what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench.support import PLAN
from tfmp.bench.analysis import Measurement
from tfmp.bench.measure import Bench, Child, Interrupted, children_of, cpu_share, read_trial, wait_for
from tfmp.bench.trials import Trial
from tfmp.errors import TfmpError
from tfmp.rundir.layout import RunFolder
from tfmp.workers.signals import SignalInbox


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


BENCH = Bench(Path("c.yaml"), Path("trials"), (4, 5), train_samples=1000, epochs=3, grace_period_s=1.0)


def given(arguments: list[str], option: str) -> list[str]:
    """Every value of an option."""
    return [value for name, value in pairwise(arguments) if name == option]


def test_workers_apart_share_out_batch_samples_and_cpus() -> None:
    children = children_of(BENCH, Trial("apart", 3, 257), Path("x"))
    assert [given(child.arguments, "--batch-size") for child in children] == [["86"], ["86"], ["85"]]
    limits = [value for child in children for value in given(child.arguments, "--set") if "limit_train" in value]
    assert limits == ["data.limit_train=334", "data.limit_train=333", "data.limit_train=333"]
    assert [child.cpus for child in children] == [(4,), (5,), (4,)]
    assert all(given(child.arguments, "--workers") == ["1"] for child in children)
    assert len({child.folder.path for child in children}) == 3


def test_a_run_is_the_users_own_and_only_a_reference_is_held_to_cores() -> None:
    (run,) = children_of(BENCH, Trial("run", 2, 256, "ring"), Path("x"))
    assert run.arguments[:2] == ["train", "c.yaml"]
    assert given(run.arguments, "--workers") == ["2"]
    assert given(run.arguments, "--batch-size") == ["256"]
    assert given(run.arguments, "--collective") == ["ring"]
    assert given(run.arguments, "--epochs") == ["3"]
    assert given(run.arguments, "--max-restarts") == ["0"], "a restarted run has no times to compare"
    assert run.cpus is None
    (alone,) = children_of(BENCH, Trial("alone", 1, 256, cores=1), Path("x"))
    assert alone.cpus == (4,)


def test_a_signal_that_hits_a_starting_child_too_is_an_interruption_not_a_failure(tmp_path: Path) -> None:
    child = Child(RunFolder(tmp_path / "run"), [])
    with SignalInbox((signal.SIGINT,)) as inbox:
        child.process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 2)"])
        child.process.wait()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted) as found:
            wait_for([child], inbox, lambda: None, 1.0)
    assert found.value.signum == signal.SIGINT


def test_the_child_that_failed_is_told_from_those_that_were_then_stopped(tmp_path: Path) -> None:
    children = [Child(RunFolder(tmp_path / str(place)), []) for place in range(3)]
    with SignalInbox((signal.SIGINT,)) as inbox:
        for place, child in enumerate(children):
            code = "raise SystemExit(7)" if place == 1 else "import time; time.sleep(60)"
            child.process = subprocess.Popen([sys.executable, "-c", code])
        assert wait_for(children, inbox, lambda: None, 1.0) is children[1]
    codes = [child.process.returncode for child in children if child.process is not None]
    assert codes == [-signal.SIGTERM, 7, -signal.SIGTERM]


def test_lone_workers_get_cpus_of_their_own_and_take_turns_beyond() -> None:
    assert [cpu_share((4, 5, 6, 7), 2, place) for place in range(2)] == [(4, 5), (6, 7)]
    assert [cpu_share((4, 5, 6, 7), 3, place) for place in range(3)] == [(4,), (5,), (6,)]
    assert [cpu_share((4, 5), 4, place) for place in range(4)] == [(4,), (5,), (4,), (5,)]
