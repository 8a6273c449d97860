"""Data as people give it to ``fit``, in one start of the workers: each case prints a line of JSON.

``python data_cases.py plain FOLDER`` in one process, or as copies of ``tfmp launch``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

PLAIN = sys.argv[1] == "plain"
FOLDER = Path(sys.argv[2])
STRATEGY: Any = None if PLAIN else tf.distribute.MultiWorkerMirroredStrategy()
RANK = int(os.environ.get("RANK", "0"))
keras.config.set_floatx("float64")

X = np.random.default_rng(0).normal(size=(50, 4))
Y = X.sum(1, keepdims=True)


def model_of(inputs: int = 4) -> Any:
    model = keras.Sequential([keras.layers.Input((inputs,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def fit(make: Callable[[], Any], data: Any, *, before: Callable[[Any], None] = lambda _: None, **settings: Any) -> Any:
    keras.utils.set_random_seed(1)
    if PLAIN:
        model = make()
    else:
        from tfmp.distribute import bridge

        with STRATEGY.scope():
            model = make()
        before(model)
        bridge(model)
    history = model.fit(data, verbose=0, epochs=2, **settings).history
    return [history["loss"], [np.asarray(w).ravel().tolist() for w in model.get_weights()]]


def records() -> tf.data.Dataset:
    """Two files: by default, each worker would get one."""

    def parsed(record: tf.Tensor) -> Any:
        values = tf.io.parse_tensor(record, tf.float64)
        values.set_shape([5])
        return values[:4], values[4:]

    files = [str(FOLDER / f"{i}.tfrecord") for i in range(2)]
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.TFRecordDataset(files).map(parsed).batch(8).with_options(options)


def changing_sizes() -> tf.data.Dataset:
    def batches() -> Any:
        for begin, end in ((0, 7), (7, 8), (8, 30), (30, 33), (33, 50)):
            yield X[begin:end], Y[begin:end]

    spec = (tf.TensorSpec((None, 4), tf.float64), tf.TensorSpec((None, 1), tf.float64))
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def two_inputs() -> Any:
    words = keras.Input((3,), dtype="string", name="words")
    numbers = keras.Input((4,), name="numbers")
    known = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(words)
    embedded = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(known))
    joined = keras.layers.Concatenate()([embedded, numbers])
    model = keras.Model({"words": words, "numbers": numbers}, keras.layers.Dense(1)(joined))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def words() -> tf.data.Dataset:
    inputs = {"words": np.array(list("abc"))[np.random.default_rng(1).integers(0, 3, (50, 3))], "numbers": X}
    return tf.data.Dataset.from_tensor_slices((inputs, Y)).batch(8)


class OwnOrder(keras.utils.PyDataset):
    """Draws an order for itself."""

    def __init__(self) -> None:
        super().__init__()
        self._order = np.random.default_rng().permutation(48)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        rows = self._order[8 * i : 8 * i + 8]
        return X[rows], Y[rows]


def on_the_chief_alone(model: Any) -> None:
    if RANK == 0:
        model.set_weights([np.full((4, 1), 9.0), np.zeros(1)])


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def stateful() -> Any:
    model = keras.Sequential([keras.layers.Input((4, 1), batch_size=8), keras.layers.LSTM(2, stateful=True)])
    model.compile("sgd", "mse")
    return model


def distributed_with_class_weight() -> Any:
    data = batches() if PLAIN else STRATEGY.experimental_distribute_dataset(batches())
    return fit(model_of, data, class_weight={0: 1.0})


CASES: dict[str, Callable[[], Any]] = {
    "records": lambda: fit(model_of, records()),
    "changing sizes": lambda: fit(model_of, changing_sizes(), validation_data=changing_sizes()),
    "words": lambda: fit(two_inputs, words()),
    "own order": lambda: fit(model_of, OwnOrder()),
    "weights of the chief": lambda: fit(model_of, batches(), before=on_the_chief_alone),
    "stateful": lambda: fit(stateful, batches()),
    "class weight": distributed_with_class_weight,
}

if PLAIN:
    for number in range(2):
        with tf.io.TFRecordWriter(str(FOLDER / f"{number}.tfrecord")) as writer:
            for row in np.concatenate([X, Y], 1)[25 * number : 25 * number + 25]:
                writer.write(tf.io.serialize_tensor(row).numpy())
for name, case in CASES.items():
    try:
        found: Any = case()
    except Exception as error:
        found = f"{type(error).__name__}: {getattr(error, 'what', error)}"
    print("CASE", json.dumps([RANK, name, found]), flush=True)
