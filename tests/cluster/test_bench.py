"""``tfmp bench`` with real runs: small ones, one round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Done

_SMALL = ("--epochs", "2", "--set", "data.limit_train=2000", "--set", "data.limit_validation=200")


def test_each_kind_of_run_gives_a_figure(tfmp: Callable[..., Done], tmp_path: Path) -> None:
    done = tfmp(
        "bench", "--workers", "1,2", "--batch-size", 100, "--rounds", 1, "--collective", "ring",
        "--output", tmp_path / "out", "--target-accuracy", 0.2, "--set", "training.learning_rate=0.01", *_SMALL,
    )  # fmt: skip
    assert done.code == 0, done.text
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    runs = {one["name"]: one for one in found["runs"]}
    assert runs.keys() >= {
        "workers-1-batch-100",
        "workers-2-batch-100-ring",
        "apart-2-batch-100",
        "workers-2-batch-200-ring",  # weak scaling
    }
    assert {one["collective"] for name, one in runs.items() if name.startswith("workers-2")} == {"ring"}
    assert {one["collective"] for name, one in runs.items() if not name.startswith("workers-2")} == {"none"}
    for name, one in runs.items():
        # The only epoch after the first, of each process that trained on its own.
        assert [len(rates) for rates in one["rates"]] == ([1, 1] if name.startswith("apart") else [1]), name
        assert one["samples_per_second"] == sum(rates[0] for rates in one["rates"]), name
        assert 0 < one["first_step_s"] < one["seconds"] < 120, (name, one)
        assert 0 < one["reached"][-1][0] < one["seconds"], (name, one)
        if not name.startswith("apart"):  # there the slowest process's first step, and the end of the first one
            assert one["first_step_s"] < one["reached"][-1][0], (name, one)
        assert 0 <= one["foreign_cores"] <= os.cpu_count() + 0.1, (name, one)  # type: ignore[operator]
        assert all(sha is not None for sha in one["weights_sha256"]), name
    (first, _), (second, accuracy) = runs["workers-2-batch-100-ring"]["reached"]
    assert first < second
    assert accuracy > 0.2
    two = next(row for row in found["analysis"]["throughput"] if row["workers"] == 2)
    speeds = {name: one["samples_per_second"] for name, one in runs.items()}
    assert two["against_one"]["ratio"] == pytest.approx(
        speeds["workers-2-batch-100-ring"] / speeds["workers-1-batch-100"]
    )
    assert found["analysis"]["advice"].startswith("no advice: one round")
    assert done.out.splitlines()[-1].startswith("advice: no advice: one round")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bench.json", "bench.png", "config.yaml"]


def test_ctrl_c_keeps_what_was_measured_and_ends_everything(tmp_path: Path) -> None:
    mark = f"TFMP_TEST_MARK={tmp_path.name}-{os.getpid()}"
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        [sys.executable, "-m", "tfmp", "bench", "--workers", "1,2", "--batch-size", "100", "--rounds", "1",
         "--collective", "shm", "--output", str(tmp_path / "out"), *_SMALL],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), name: value},
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[2/"):
            break
    time.sleep(1.0)  # the second run imports TensorFlow now
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 130, out + err
    assert "interrupted by SIGINT after 1 of" in err
    assert "throughput" in out
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert (found["status"], [one["name"] for one in found["runs"]]) == ("interrupted", ["workers-1-batch-100"])
    assert _marked(mark) == []


def test_a_benchmark_that_is_killed_leaves_no_run_behind(tmp_path: Path) -> None:
    mark = f"TFMP_TEST_MARK={tmp_path.name}-{os.getpid()}"
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        [sys.executable, "-m", "tfmp", "bench", "--workers", "1", "--batch-size", "100", "--epochs", "500",
         "--output", str(tmp_path / "out"), "-q"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), name: value},
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while len(_marked(mark)) < 3 and time.monotonic() < deadline:  # itself, the run, the run's helper
        time.sleep(0.1)
    assert len(_marked(mark)) >= 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _marked(mark) == []


def test_a_run_that_fails_is_named_with_its_own_words(tfmp: Callable[..., Done], tmp_path: Path) -> None:
    done = tfmp(
        "bench", "--workers", "1,2", "--batch-size", "100", "--output", tmp_path / "out", *_SMALL,
        "--set", "model.factory=os:getcwd",
    )  # fmt: skip
    assert done.code == 1
    assert "a run failed with exit code" in done.err
    assert "expected a keras.Model, received str" in done.err
    assert str(tmp_path / "out" / "trials" / "round-1" / "workers-1-batch-100" / "run") in done.err
    assert (tmp_path / "out" / "trials" / "round-1" / "workers-1-batch-100" / "run" / "failure.json").is_file()


def _marked(mark: str) -> list[int]:
    """Processes with this variable in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(mark) in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
