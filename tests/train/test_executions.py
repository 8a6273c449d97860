"""How many steps an execution holds where code of the user's own decides it."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from tests.train.conftest import mirrored
from tests.train.small import build, dataset
from tfmp.distribute import bridge
from tfmp.errors import TfmpError
from tfmp.trainer.steps_per_execution import acts_on_batches, steps_for_user_code, work_per_row


class EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


class EachTestBatch(EachBatch.__base__):  # type: ignore[name-defined]
    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None: ...


class Inherited(EachBatch): ...


class EachEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


def nothing(*_: Any) -> None: ...


@pytest.mark.parametrize(
    ("callback", "acts"),
    [
        (EachBatch(), True),
        (EachTestBatch(), True),
        (Inherited(), True),
        (EachEpoch(), False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=nothing), True),
        (keras.callbacks.LambdaCallback(on_epoch_end=nothing), False),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.TerminateOnNaN(), False),
    ],
)
def test_callbacks_that_act_on_batches_are_known(callback: Any, acts: bool) -> None:
    assert acts_on_batches(callback) is acts
    assert steps_for_user_code(None, [EachEpoch(), callback], 235, 128) == (1 if acts else 235)


def test_a_layer_counts_as_often_as_a_sample_uses_it() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(8, 3, padding="same"),  # 80 parameters at 784 positions
            layers.MaxPooling2D(2),
            layers.Conv2D(4, 3, strides=2),  # 292, at 196 positions at most
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),  # 50
        ]
    )
    work = 80 * 784 + 292 * 196 + 50
    assert work_per_row(model) == work
    # 6 x 128 x 120,002 / 1e11 + 120,002 x 2e-9 + 1e-4 = 1.26 ms, in 0.35 s
    assert steps_for_user_code(model, [], 1000, 128) == 277
    assert steps_for_user_code(model, [], 30, 128) == 30
    assert steps_for_user_code(model, [], 30, 100_000) == 1


def test_a_subclassed_model_gets_one_step_as_its_layers_are_not_known() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.inner(x)

    model = Own()
    model(keras.ops.zeros((2, 5)))
    assert work_per_row(model) is None
    assert steps_for_user_code(model, [], 30, 128) == 1


def test_a_change_of_steps_per_execution_while_fitting_is_refused() -> None:
    with mirrored(2).scope():
        model = bridge(build())
        model.steps_per_execution = 2
    change = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: setattr(model, "steps_per_execution", 3))
    with pytest.raises(TfmpError, match="steps_per_execution was changed from 2 to 3 while fitting"):
        model.fit(dataset(40), epochs=3, verbose=0, callbacks=[change])
