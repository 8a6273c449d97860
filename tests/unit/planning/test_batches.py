"""How long a call into TensorFlow may be, and what is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.planning.plans import config, header
from tfmp.config import RunConfig
from tfmp.config.schema import TrainingConfig
from tfmp.planning.batches import COMPILE_FROM_UPDATES, compiled_parts, plan_batches
from tfmp.planning.layout import Layout
from tfmp.planning.mlp import count_parameters


@pytest.mark.parametrize(
    ("parameters", "batch", "workers", "execution"),
    [
        (101_770, 256, 2, 118),  # an epoch of 235 steps in two calls
        (101_770, 32, 2, 469),  # 1,875 steps in four calls
        (101_770, 2048, 2, 30),
        (1_000_000, 256, 2, 34),
        (1_000_000, 32, 2, 111),
        (10_000_000, 2048, 2, 1),
        (1_000_000_000, 256, 1, 1),
    ],
)
def test_a_call_holds_fewer_steps_of_larger_models(parameters: int, batch: int, workers: int, execution: int) -> None:
    layout, training = Layout.data_parallel("multi-worker", workers, 1), TrainingConfig(batch_size=batch)
    assert plan_batches(layout, training, 60_000, 10_000, parameters).steps_per_execution == execution


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ({}, 784 * 128 + 128 + 128 * 10 + 10),
        ({"units": []}, 784 * 10 + 10),
        ({"units": [3, 2], "batch_normalization": True}, 784 * 3 + 3 + 3 * 2 + 2 + 2 * 10 + 10 + 2 * (3 + 2)),
    ],
)
def test_the_parameters_of_the_mlp_are_counted(model: dict[str, Any], parameters: int) -> None:
    assert count_parameters(RunConfig.model_validate({"model": model}), header()) == parameters


def test_the_optimizer_is_compiled_where_the_run_is_long_enough() -> None:
    enough = -(-COMPILE_FROM_UPDATES // 101_770)
    mlp = config(model__factory=None, training__epochs=1)
    several, one = Layout.data_parallel("multi-worker", 2, 1), Layout.data_parallel("mirrored", 1, 2)
    assert compiled_parts(mlp, several, "cpu", enough - 1, 101_770) == "none"
    assert compiled_parts(mlp, several, "cpu", enough, 101_770) == "apply"
    assert compiled_parts(mlp, one, "cpu", enough, 101_770) == "none"
    assert compiled_parts(mlp, several, "gpu", enough, 101_770) == "none"
    assert compiled_parts(mlp, several, "cpu", enough, None) == "none", "a model of your own"
    assert compiled_parts(config(training__jit_compile=True), several, "cpu", 1, None) == "all"
    assert compiled_parts(config(training__jit_compile=False), several, "cpu", enough, 101_770) == "none"
