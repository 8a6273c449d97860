"""What is decided for a run from its configuration and its plan: which parts of a step XLA compiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.config import RunConfig
from tfmp.planning.inputs import COMPILE_FROM_UPDATES, compiled_parts, count_parameters

HEADER: Any = SimpleNamespace(image_shape=(28, 28), classes=10)


def config(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(sections)


def plan(steps: int, strategy: str = "multi-worker", device: str = "cpu") -> Any:
    return SimpleNamespace(epochs=1, batch=SimpleNamespace(steps_per_epoch=steps), strategy=strategy, device=device)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ({}, 784 * 128 + 128 + 128 * 10 + 10),
        ({"units": []}, 784 * 10 + 10),
        ({"units": [3, 2], "batch_normalization": True}, 784 * 3 + 3 + 3 * 2 + 2 + 2 * 10 + 10 + 2 * (3 + 2)),
    ],
)
def test_the_parameters_of_the_mlp_are_counted(model: dict[str, Any], parameters: int) -> None:
    assert count_parameters(config(model=model), HEADER) == parameters


def test_the_optimizer_is_compiled_where_the_run_is_long_enough() -> None:
    enough = -(-COMPILE_FROM_UPDATES // 101_770)
    assert compiled_parts(config(), plan(enough - 1), HEADER) == "none"
    assert compiled_parts(config(), plan(enough), HEADER) == "apply"
    assert compiled_parts(config(), plan(enough, strategy="mirrored"), HEADER) == "none"
    assert compiled_parts(config(), plan(enough, device="gpu"), HEADER) == "none"
    assert compiled_parts(config(model={"factory": "own:model"}), plan(enough), HEADER) == "none"
    assert compiled_parts(config(training={"jit_compile": True}), plan(1), HEADER) == "all"
    assert compiled_parts(config(training={"jit_compile": False}), plan(enough), HEADER) == "none"
