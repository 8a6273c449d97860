"""How long a call into TensorFlow may be."""

from __future__ import annotations

import pytest

from tfmp.config.schema import TrainingConfig
from tfmp.planning.batches import plan_batches
from tfmp.planning.layout import Layout


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
