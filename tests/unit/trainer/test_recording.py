"""How two recorded runs are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfmp.errors import TfmpError
from tfmp.trainer.recording import Recording, compare, worst_of_each_step


def recorded(
    folder: Path, name: str, *steps: list[float], loss: float = 1.0, variable: str = "dense/kernel"
) -> Recording:
    recording = Recording(folder / name)
    for step, values in enumerate(steps):
        recording.write_step(step, ["dense/kernel", "optimizer/iteration"], [np.array(values), np.array(step)])
    recording.write_logs([{"loss": loss}])
    return recording


def test_equal_runs_differ_in_nothing(tmp_path: Path) -> None:
    one = recorded(tmp_path, "one", [1.0, 2.0], [3.0, 4.0])
    found = compare(one, one, one, "float64")
    assert [(difference.step, difference.name) for difference in found] == [
        (0, "dense/kernel"),
        (0, "optimizer/iteration"),
        (1, "dense/kernel"),
        (1, "optimizer/iteration"),
        (1, "loss"),
    ]
    assert not any(difference.is_too_large for difference in found)


def test_the_allowance_is_relative_to_the_largest_value(tmp_path: Path) -> None:
    one = recorded(tmp_path, "one", [100.0, 0.0])
    for change, too_large in ((0.9e-6, False), (1.1e-6, True)):
        found = compare(recorded(tmp_path, f"workers{change}", [100.0, change]), one, one, "float64")
        assert [difference.is_too_large for difference in found] == [too_large, False, False]
        assert found[0].allowed == pytest.approx(1e-6)


def test_four_times_the_natural_spread_is_allowed(tmp_path: Path) -> None:
    one, permuted = recorded(tmp_path, "one", [1.0]), recorded(tmp_path, "permuted", [1.1])
    (near, *_) = compare(recorded(tmp_path, "near", [0.61]), one, permuted, "float64")
    (far, *_) = compare(recorded(tmp_path, "far", [0.59]), one, permuted, "float64")
    assert (near.is_too_large, far.is_too_large) == (False, True)


def test_nan_on_one_side_is_a_difference_and_the_worst(tmp_path: Path) -> None:
    one = recorded(tmp_path, "one", [1.0])
    found = compare(recorded(tmp_path, "workers", [float("nan")], loss=5.0), one, one, "float64")
    assert [difference.is_too_large for difference in found] == [True, False, True]
    assert [worst.name for worst in worst_of_each_step(found)] == ["dense/kernel"]


def test_a_metric_that_the_workers_lack_is_a_difference(tmp_path: Path) -> None:
    one, workers = recorded(tmp_path, "one", [1.0]), recorded(tmp_path, "workers", [1.0])
    workers.write_logs([{"accuracy": 1.0}])
    assert [d.name for d in compare(workers, one, one, "float64") if d.is_too_large] == ["loss"]


def test_other_variables_and_other_steps_are_named(tmp_path: Path) -> None:
    one = recorded(tmp_path, "one", [1.0, 2.0])
    with pytest.raises(TfmpError, match=r"other variables after step 0: dense/kernel \[2\] and dense/kernel \[1\]"):
        compare(recorded(tmp_path, "shorter", [1.0]), one, one, "float64")
    with pytest.raises(TfmpError, match="one process ran 0 steps, the workers 1"):
        compare(recorded(tmp_path, "longer", [1.0, 2.0], [1.0, 2.0]), one, one, "float64")


def test_float32_rounds_more(tmp_path: Path) -> None:
    one, workers = recorded(tmp_path, "one", [1.0]), recorded(tmp_path, "workers", [1.0 + 1e-6])
    assert [compare(workers, one, one, precision)[0].is_too_large for precision in ("float64", "float32")] == [
        True,
        False,
    ]
