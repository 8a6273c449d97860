"""What a run counts and tells of itself while it trains."""

from __future__ import annotations

import time

import numpy as np

from tfmp.distribute.control import FitControl
from tfmp.events import EpochEnd, WorkerEvent
from tfmp.trainer.callbacks import ProgressReporter


def test_the_running_loss_has_the_same_bits_wherever_an_execution_ends() -> None:
    rng = np.random.default_rng(0)
    losses, samples = rng.random(235), np.full(235, 256.0)
    sums = set()
    for k in (1, 13, 39, 235):
        control = FitControl()
        for start in range(0, 235, k):
            control.count(losses[start : start + k], samples[start : start + k])
        assert (control.steps, control.samples) == (235, 235 * 256)
        sums.add(control.loss_sum)
    assert len(sums) == 1


def test_a_first_epoch_that_is_one_execution_has_a_rate_too() -> None:
    events: list[WorkerEvent] = []
    control = FitControl()
    progress = ProgressReporter(events.append, control, [], epochs=1, steps_per_epoch=8, samples_per_epoch=2000)
    progress.on_epoch_begin(0)
    time.sleep(0.01)
    control.count(np.ones(8), np.full(8, 250.0))
    progress.on_train_batch_end(7, {"loss": 1.0})
    progress.on_epoch_end(0, {"loss": 1.0})
    (epoch,) = [event for event in events if isinstance(event, EpochEnd)]
    assert epoch.step == 8
    assert epoch.samples_per_second == 2000 / epoch.seconds
