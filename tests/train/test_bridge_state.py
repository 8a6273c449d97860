"""State beside the weights: frozen layers, moments, loss scale, averaged weights, accumulated gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.train.conftest import mirrored
from tests.train.small import CLASSES, FEATURES, SEED, build, dataset, difference, train_bridged, train_plain
from tfmp.distribute import bridge
from tfmp.distribute.reducers import Reducer

L, O = keras.layers, keras.optimizers  # noqa: E741


def model_of(*layers: Any, optimizer: Any = None, **settings: Any) -> Any:
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([L.Input((FEATURES,)), *[layer() for layer in layers], L.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or O.SGD(0.5), loss, weighted_metrics=["accuracy"], **settings)
    return model


@pytest.mark.parametrize(("synchronized", "replicas"), [(True, 3), (False, 1)])
def test_moments_are_those_of_the_real_rows_of_the_global_batch(synchronized: bool, replicas: int) -> None:
    def normalized() -> Any:
        return model_of(lambda: L.Dense(8, activation="tanh"), lambda: L.BatchNormalization(synchronized=synchronized))

    # Shares are uneven and padded, the last batch leaves two of three replicas empty.
    reference, expected = train_plain(normalized, epochs=1)
    model, history = train_bridged(replicas, normalized, epochs=1, jit_compile=True)
    assert difference(reference, model) <= 1e-8
    assert history["val_loss"] == pytest.approx(expected["val_loss"], abs=1e-8)


def frozen() -> Any:
    def layer() -> Any:
        return L.Dense(64, activation="tanh", trainable=False, name="frozen")

    def normalization() -> Any:
        return L.BatchNormalization(trainable=False, name="frozen_moments")

    return model_of(layer, normalization, lambda: L.BatchNormalization(synchronized=True))


def test_frozen_weights_stay_to_the_bit_and_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    stock = Reducer.sum

    def counting(self: Reducer, tensors: Any) -> Any:
        tensors = list(tensors)
        sent.append(sum(t.shape.num_elements() or 0 for t in tensors))
        return stock(self, tensors)

    monkeypatch.setattr(Reducer, "sum", counting)
    before = frozen()
    model, _ = train_bridged(3, frozen, epochs=1)
    for name in ("frozen", "frozen_moments"):
        for own, other in zip(before.get_layer(name).get_weights(), model.get_layer(name).get_weights(), strict=True):
            assert own.tobytes() == other.tobytes()
    trained = sum(int(np.prod(v.shape)) for v in model.trainable_weights)
    # Gradients, the loss, and the two moving averages of the layer that trains: not the 832 + 256 frozen numbers.
    assert max(sent) == trained + 1 + 2 * 64


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "accumulated": lambda: O.AdamW(0.01, weight_decay=0.1, gradient_accumulation_steps=3, global_clipnorm=0.1),
    "averaged": lambda: O.SGD(0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
    "scaled": lambda: O.LossScaleOptimizer(O.SGD(0.5, momentum=0.5), initial_scale=2.0**6, dynamic_growth_steps=3),
    "scaled, accumulated and averaged": lambda: O.LossScaleOptimizer(
        O.Adam(0.01, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=3), initial_scale=8.0
    ),
}


@pytest.mark.parametrize(("name", "replicas"), [*((name, 3) for name in OPTIMIZERS), ("accumulated", 1)])
def test_an_optimizer_with_state_of_its_own_trains_as_in_one_process(name: str, replicas: int) -> None:
    def make() -> Any:
        return build(OPTIMIZERS[name](), metrics=None, weighted_metrics=["accuracy"])

    # One epoch: fit ends by setting the weights to their average.
    reference, _ = train_plain(make, epochs=1)
    model, _ = train_bridged(replicas, make, epochs=1)
    assert difference(reference, model) <= 1e-8
    for own, other in zip(model.optimizer.variables, reference.optimizer.variables, strict=True):
        assert np.allclose(own.numpy(), other.numpy(), rtol=0, atol=1e-8), own.path


def test_a_loss_scale_that_overflows_is_lowered_at_the_same_steps() -> None:
    def make() -> Any:
        keras.utils.set_random_seed(SEED)
        model = keras.Sequential([L.Input((FEATURES,)), L.Dense(8, activation="tanh"), L.Dense(1)])
        optimizer = O.LossScaleOptimizer(O.SGD(0.1), initial_scale=2.0**24, dynamic_growth_steps=3)
        model.compile(optimizer, "mse")
        return model

    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("mixed_float16")
    data = dataset(32, drop_remainder=True).map(lambda x, y: (tf.cast(x, tf.float32), tf.cast(y[:, None], tf.float32)))
    reference = make()
    reference.fit(data, epochs=2, verbose=0)
    with mirrored(2).scope():
        model = bridge(make())
    model.fit(data, epochs=2, verbose=0)
    scales = [each.optimizer.dynamic_scale.numpy() for each in (reference, model)]
    steps = [int(each.optimizer.iterations.numpy()) for each in (reference, model)]
    assert scales[0] == scales[1] < 2.0**24
    assert steps[0] == steps[1] < 20
    assert difference(reference, model) < 5e-3  # float16; a step skipped elsewhere changes weights by 0.1


def test_averaged_weights_are_swapped_in_for_the_evaluation() -> None:
    def make() -> Any:
        return build(O.SGD(0.2, use_ema=True, ema_momentum=0.5))

    data = dataset(37)
    reference = make()
    arguments: dict[str, Any] = {"epochs": 2, "verbose": 0, "validation_data": data}
    expected = reference.fit(data, callbacks=[keras.callbacks.SwapEMAWeights()], **arguments).history
    with mirrored(3).scope():
        model = bridge(make())
    history = model.fit(data, callbacks=[keras.callbacks.SwapEMAWeights()], **arguments).history
    assert history["val_loss"] == pytest.approx(expected["val_loss"], abs=1e-8)
    assert difference(reference, model) <= 1e-8


def test_a_callback_reads_and_sets_the_learning_rate() -> None:
    class Halve(keras.callbacks.Callback):
        seen: list[float]

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            rate = float(self.model.optimizer.learning_rate)
            self.seen = [*getattr(self, "seen", []), rate]
            self.model.optimizer.learning_rate = rate / 2

    callback = Halve()
    model, _ = train_bridged(2, lambda: build(O.SGD(0.5)), callbacks=[callback])
    assert callback.seen == [0.5, 0.25]
    assert int(model.optimizer.iterations) == 20
