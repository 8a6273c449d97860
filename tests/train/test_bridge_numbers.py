"""The rule of the numbers: N replicas compute what one plain Keras process computes, in float64, to 1e-8."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.train.small import SAMPLES, build, difference, train_bridged, train_plain
from tfmp.checkpoint.export import weights_sha256
from tfmp.data.arrays import SplitArrays
from tfmp.data.order import epoch_plan
from tfmp.distribute import feed as feed_module
from tfmp.distribute import keras_hooks
from tfmp.distribute.step import ReplicaStep

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "sgd, norm clipped": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05),
    "momentum, values clipped": lambda: keras.optimizers.SGD(0.2, momentum=0.9, clipvalue=0.001),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "lion": lambda: keras.optimizers.Lion(0.001),
}
_plain: dict[str, Any] = {}


def plain(name: str) -> Any:
    if name not in _plain:
        _plain[name] = train_plain(lambda: build(OPTIMIZERS[name]()))
    return _plain[name]


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("sgd", 1), ("sgd", 2), ("sgd", 3), ("sgd", 4), ("sgd, norm clipped", 3), ("momentum, values clipped", 2),
     ("adamw", 3), ("lion", 2)],
)  # fmt: skip
def test_weights_losses_and_metrics_are_those_of_plain_keras(name: str, replicas: int) -> None:
    # The last batch has a single sample: with 3 or 4 replicas most have nothing to do in it.
    reference, expected = plain(name)
    model, history = train_bridged(replicas, lambda: build(OPTIMIZERS[name]()))
    assert difference(reference, model) <= 1e-8
    assert history["accuracy"] == expected["accuracy"]
    assert history["val_accuracy"] == expected["val_accuracy"]
    assert history["loss"] == pytest.approx(expected["loss"], abs=1e-7)
    assert history["val_loss"] == pytest.approx(expected["val_loss"], abs=1e-7)


@pytest.mark.parametrize("weighted", [True, False], ids=["fast step", "general step"])
@pytest.mark.parametrize(("replicas", "jit_compile"), [(1, True), (1, "apply"), (1, False), (3, True)])
def test_compiled_or_not_by_either_step_the_numbers_hold(replicas: int, jit_compile: Any, weighted: bool) -> None:
    metrics: dict[str, Any] = {
        "weighted_metrics" if weighted else "metrics": ["accuracy"],
        "metrics" if weighted else "_": None,
    }
    metrics.pop("_", None)
    model, history = train_bridged(
        replicas, lambda: build(OPTIMIZERS["sgd"](), **metrics), jit_compile=jit_compile, steps_per_execution=3
    )
    assert difference(plain("sgd")[0], model) <= 1e-8
    assert history["accuracy"] == plain("sgd")[1]["accuracy"]


def test_steps_per_execution_do_not_change_a_bit() -> None:
    runs = [train_bridged(2, steps_per_execution=k) for k in (1, 3, 10)]
    assert len({weights_sha256(model.get_weights()) for model, _ in runs}) == 1
    # What callbacks decide by: the running loss is added up step by step.
    assert len({tuple(history["loss"]) for _, history in runs}) == 1


def _unweighted(self: ReplicaStep, x: Any, n_local: Any, n_global: Any) -> Any:
    rows = tf.shape(x)[0]
    own = tf.cast(rows, tf.float64) / tf.cast(tf.maximum(n_local, 1), tf.float64)
    return tf.cast(tf.range(rows) < n_local, tf.float64) * own, n_global


def test_the_parity_test_notices_a_wrong_weighting(monkeypatch: pytest.MonkeyPatch) -> None:
    # What stock code does: each replica's own mean, then the mean of the means.
    monkeypatch.setattr(ReplicaStep, "row_weight", _unweighted)
    model, _ = train_bridged(3, lambda: build(OPTIMIZERS["sgd"]()))
    assert not difference(plain("sgd")[0], model) <= 1e-6


def test_the_parity_test_notices_a_second_division_by_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = keras_hooks.compute_loss
    monkeypatch.setattr(keras_hooks, "compute_loss", lambda *args, **named: whole(*args, **named) / 2)
    model, _ = train_bridged(2, lambda: build(OPTIMIZERS["sgd"]()))
    assert not difference(plain("sgd")[0], model) <= 1e-6


def test_the_parity_test_notices_a_lost_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = epoch_plan

    def one_lost(*args: Any) -> Any:
        plan = whole(*args)
        if args[2] == 1:
            plan.n_local[4] -= 1
        return plan

    monkeypatch.setattr(feed_module, "epoch_plan", one_lost)
    model, _ = train_bridged(2, lambda: build(OPTIMIZERS["sgd"]()))
    assert not difference(plain("sgd")[0], model) <= 1e-6


class Seen(keras.metrics.Metric):
    """How often each sample was seen: a vector over samples, fed with the labels."""

    def __init__(self, count: int, **named: Any) -> None:
        super().__init__(name="seen", **named)
        self.total = self.add_variable((count,), "zeros", name="total", dtype="float64")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        index = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        self.total.assign_add(tf.math.bincount(index, minlength=SAMPLES, maxlength=SAMPLES, dtype=tf.float64))

    def result(self) -> Any:
        return {"seen_min": tf.reduce_min(self.total.value), "seen_max": tf.reduce_max(self.total.value)}


def test_every_sample_is_seen_exactly_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.arange(SAMPLES, dtype=np.int32)
    original = feed_module.Feed.__init__
    monkeypatch.setattr(
        feed_module.Feed,
        "__init__",
        lambda self, split, plan, **scaled: original(self, SplitArrays(split.x, ids), plan, **scaled),
    )

    def make() -> Any:
        return build(loss=lambda y_true, y_pred: tf.reduce_mean(y_pred, -1), metrics=[Seen(SAMPLES)])

    _, history = train_bridged(3, make)
    assert history["seen_min"] == [1.0, 1.0]
    assert history["seen_max"] == [1.0, 1.0]
    assert history["val_seen_min"] == history["val_seen_max"] == [1.0, 1.0]
