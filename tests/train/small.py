"""A small problem whose batches fit no number of replicas, and ways of training it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.train.conftest import mirrored
from tfmp.data.arrays import SplitArrays
from tfmp.distribute import bridge
from tfmp.distribute.feed import Feed, FeedPlan

SAMPLES, BATCH, CLASSES, FEATURES = 334, 37, 5, 12  # 9 full batches and one of a single sample
SEED = 3


def samples(count: int = SAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [count, FEATURES] and labels [count] that can be learnt."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, FEATURES), dtype=np.uint8)
    labels = images[:, :CLASSES].argmax(1).astype(np.int32)
    return images, labels


def build(optimizer: Any = None, l2: float = 0.01, **compiled: Any) -> Any:
    """A compiled model with the same initial weights each time."""
    keras.utils.set_random_seed(SEED)
    penalty = keras.regularizers.L2(l2) if l2 else None
    model = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(16, activation="tanh", kernel_regularizer=penalty),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    settings: dict[str, Any] = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **compiled}
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.5), **settings)
    return model


def train_plain(make: Callable[[], Any] = build, epochs: int = 2) -> tuple[Any, dict[str, list[float]]]:
    """Plain Keras ``fit``, no strategy, on the order of samples that the seed defines."""
    images, labels = samples()
    model = make()
    history: dict[str, list[float]] = {}
    for epoch in range(epochs):
        order = np.random.default_rng((SEED, epoch)).permutation(SAMPLES)
        logs = model.fit(
            images[order] / 255.0,
            labels[order],
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
            validation_data=(images / 255.0, labels),
            validation_batch_size=50,
        ).history
        for name, values in logs.items():
            history.setdefault(name, []).extend(values)
    return model, history


def train_bridged(
    replicas: int,
    make: Callable[[], Any] = build,
    epochs: int = 2,
    steps_per_execution: int = 4,
    callbacks: Any = None,
    jit_compile: Any = False,
) -> tuple[Any, dict[str, list[float]]]:
    """The same through the bridge, on ``replicas`` replicas."""
    split = SplitArrays(*samples())
    strategy = mirrored(replicas)

    def plan(batch: int, shuffle: bool) -> FeedPlan:
        return FeedPlan(batch, replicas, 0, replicas, SEED, shuffle, None, steps_per_execution)

    with strategy.scope():
        model = make()
        model.steps_per_execution = steps_per_execution
        feed, validation_feed = Feed(split, plan(BATCH, True), scaled=True), Feed(split, plan(50, False), scaled=True)
        bridge(model, feed=feed, validation_feed=validation_feed, jit_compile=jit_compile)
    history = model.fit(
        feed.dataset(strategy),
        epochs=epochs,
        steps_per_epoch=-(-SAMPLES // BATCH),
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        validation_data=validation_feed.dataset(strategy, repeat_epoch=True),
        validation_steps=-(-SAMPLES // 50),
    ).history
    return model, history


def difference(one: Any, other: Any) -> float:
    """Largest difference of any weight of two models."""
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def dataset(batch: int, drop_remainder: bool = False) -> tf.data.Dataset:
    """The samples in natural order as a user's own data set of global batches."""
    images, labels = samples()
    return tf.data.Dataset.from_tensor_slices((images / 255.0, labels)).batch(batch, drop_remainder=drop_remainder)
