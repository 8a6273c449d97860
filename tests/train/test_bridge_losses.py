"""Losses and metrics that no sum over shares gives: every replica computes them on the gathered global batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.train.conftest import mirrored
from tests.train.small import CLASSES, FEATURES, SEED, build, difference, train_bridged, train_plain
from tfmp.distribute import gather as gather_module
from tfmp.distribute.gather import RowGather
from tfmp.distribute.reducers import Reducer
from tfmp.errors import TfmpError

ops = keras.ops
rows_of = keras.losses.sparse_categorical_crossentropy


class MeanItself(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(rows_of(y_true, y_pred))


def pairs(y_true: Any, y_pred: Any) -> Any:
    """A number that depends on each pair of samples."""
    distances = ops.sum(ops.square(y_pred[:, None] - y_pred[None]), -1)
    same = ops.cast(ops.equal(y_true[:, None], y_true[None]), distances.dtype)
    return ops.mean(same * distances + (1 - same) * ops.relu(1 - distances))


class OwnLoss(keras.Sequential):
    """A loss with the inputs, the penalties, and a part that Keras weights."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        own = ops.mean(ops.square(ops.max(y_pred, 0) - ops.mean(x)))
        return super().compute_loss(x, y, y_pred, sample_weight, training) + own


def own_loss() -> Any:
    model = build()
    own = OwnLoss(model.layers)
    own.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return own


def active() -> Any:
    keras.utils.set_random_seed(SEED)
    layers = [
        keras.layers.Dense(8, activation="tanh", activity_regularizer=keras.regularizers.L1L2(0.01, 0.02)),
        keras.layers.Dense(CLASSES, activation="softmax", activity_regularizer="l2"),
    ]
    model = keras.Sequential([keras.layers.Input((FEATURES,)), *layers])
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


MODELS = {
    "a Loss that takes the mean": lambda: build(loss=MeanItself()),
    "pairs of samples": lambda: build(loss=pairs),
    "a compute_loss": own_loss,
    "activity regularisers": active,
}


@pytest.mark.parametrize(("name", "replicas"), [*((name, 3) for name in MODELS), ("pairs of samples", 1)])
def test_such_a_loss_trains_as_in_one_process(name: str, replicas: int) -> None:
    # The last batch holds a single sample: two of three replicas have none. All hold padding.
    reference, expected = train_plain(MODELS[name], epochs=1)
    model, history = train_bridged(replicas, MODELS[name], epochs=1, jit_compile=True)
    assert difference(reference, model) <= 1e-8
    for log in ("loss", "val_loss", "accuracy"):
        assert history[log] == pytest.approx(expected[log], abs=1e-8)


def test_a_gradient_of_the_others_rows_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_module, "_times_in_gradient", lambda values, factor: values)
    reference, _ = train_plain(lambda: build(loss=pairs), epochs=1)
    model, _ = train_bridged(3, lambda: build(loss=pairs), epochs=1)
    assert difference(reference, model) > 1e-6


class Added(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(ops.mean(ops.square(x)))
        return x


def test_a_loss_that_a_layer_adds_is_refused_by_its_name() -> None:
    def make() -> Any:
        model = keras.Sequential([keras.layers.Input((FEATURES,)), Added(name="kl"), keras.layers.Dense(CLASSES)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    with pytest.raises(TfmpError, match="layer 'kl' adds a loss of its own"):
        train_bridged(2, make)


class Largest(keras.metrics.Metric):
    """A maximum: what two replicas hold does not add up."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(ops.maximum(self.value, ops.max(y_pred)))

    def result(self) -> Any:
        return 1.0 * self.value


def spread(y_true: Any, y_pred: Any) -> Any:
    return ops.std(y_pred)


def test_metrics_that_do_not_add_up_are_those_of_one_process() -> None:
    def make() -> Any:
        return build(metrics=["accuracy", Largest(), spread])

    _, expected = train_plain(make, epochs=1)
    _, history = train_bridged(3, make, epochs=1)
    for log in ("accuracy", "largest", "spread"):
        assert history[log] == pytest.approx(expected[log], abs=1e-9)
        assert history[f"val_{log}"] == pytest.approx(expected[f"val_{log}"], abs=1e-9)


def test_masks_of_losses_and_metrics_hold_over_replicas() -> None:
    from tfmp.distribute import bridge

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 4, (29, 6)).astype("int32")
    labels = rng.integers(0, 3, (29, 6)).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((tokens, labels)).batch(8)

    def make() -> Any:
        keras.utils.set_random_seed(SEED)
        layers = [keras.layers.Embedding(4, 5, mask_zero=True), keras.layers.Dense(3, activation="softmax")]
        model = keras.Sequential([keras.layers.Input((6,), dtype="int32"), *layers])
        model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    reference = make()
    expected = reference.fit(data, epochs=2, shuffle=False, verbose=0).history
    with mirrored(3).scope():
        model = bridge(make())
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    assert difference(reference, model) <= 1e-8
    assert history["loss"] == pytest.approx(expected["loss"], abs=1e-8)
    assert history["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-9)


@pytest.mark.parametrize("capacity", [None, 4])
def test_rows_are_gathered_bit_for_bit_in_order(capacity: int | None) -> None:
    strategy = mirrored(3)
    parts = [[-0.0, float("nan")], [], [1e308]]

    def gather() -> Any:
        rank = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
        padding = [7.0] * (4 - len(parts[rank]))
        own = tf.constant([*parts[rank], *padding], tf.float64)
        rows = RowGather(Reducer(3), tf.constant(len(parts[rank])), capacity)
        big = tf.fill([4], tf.constant(2**60 + 1 + rank, tf.int64))
        return rows.gather({"float": own, "int": big, "bool": tf.math.is_nan(own), "none": None})

    whole = tf.function(lambda: strategy.run(gather))()
    for rank in range(3):
        of_rank = {
            name: strategy.experimental_local_results(value)[rank].numpy()
            for name, value in whole.items()
            if value is not None
        }
        assert of_rank["float"].tobytes() == np.array([-0.0, np.nan, 1e308]).tobytes()
        assert of_rank["int"].tolist() == [2**60 + 1, 2**60 + 1, 2**60 + 3]
        assert of_rank["bool"].tolist() == [False, True, False]


def test_strings_are_refused_only_where_they_are_needed() -> None:
    with pytest.raises(TfmpError, match="values of type string cannot be gathered"):
        mirrored(2).run(lambda: RowGather(Reducer(2), tf.constant(1)).gather(tf.constant(["a"])))
