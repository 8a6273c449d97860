"""Where the time of a training step goes, in one worker with one thread: CPU time of its parts, each in its own loop.

    python benchmarks/step.py [--rows 16,128,1024]

The parts are the program's own (784-128-10, Adam): *gather* the batch from bytes, *forward and backward* with the
gather and the flat vector of gradients, *apply*, and *call*: TensorFlow calling a Python function that hands back a
vector, as for the sum over workers. *whole* is a step with all of them; what it takes beyond their sum is TensorFlow's
executor. What the sum itself takes is in ``benchmarks/collective.py``. Each figure is the median of 30 turns, the parts
in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf

from tfmp.distribute import keras_hooks
from tfmp.distribute.keras_hooks import optimizers
from tfmp.distribute.local_step import Compiled, LocalStep
from tfmp.distribute.reducers import SharedMemoryReducer

_STEPS = 100


class Alone(SharedMemoryReducer):
    """The sum over one worker: the call into Python is made, and hands the vector back."""

    def __init__(self) -> None:
        self.replicas = 1
        self._group = self  # type: ignore[assignment]

    @staticmethod
    def all_reduce(vector: Any) -> Any:
        return vector


def parts_of_a_step(rows: int, compiled: Compiled) -> dict[str, Callable[[], Any]]:
    """The parts by name, each a function that does it 100 times."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    rng = np.random.default_rng(0)
    images = tf.constant(rng.integers(0, 256, (60_000, 28, 28)), tf.uint8)
    labels = tf.constant(rng.integers(0, 10, 60_000), tf.int32)

    def gather(index: tf.Tensor) -> Any:
        x = tf.cast(tf.gather(images, index), tf.float32) / 255.0
        return tf.ensure_shape(x, (rows, 28, 28)), tf.ensure_shape(tf.gather(labels, index), (rows,))

    with strategy.scope():
        layers = [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10, "softmax")]
        model = keras.Sequential([keras.layers.Input((28, 28)), *layers])
        model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"], jit_compile=False)
        model.build((None, 28, 28))
        model.optimizer.build(model.trainable_weights)
        blank = np.zeros((rows, 28, 28), np.float32)
        model.compute_metrics(blank, np.zeros(rows), model(blank), sample_weight=np.ones(rows))
        optimizers.take_summed_gradients(model.optimizer)
        step = LocalStep(model, strategy, Alone(), gather, compiled=compiled, autograph=False)
    block = {
        "index": tf.constant(rng.integers(0, 60_000, (_STEPS, rows)), tf.int32),
        "n_local": tf.fill([_STEPS], rows),
        "n_global": tf.fill([_STEPS], 2 * rows),
    }
    length = model.count_params() + 1
    some = tf.constant(rng.standard_normal(length), tf.float32)

    def gathered(k: tf.Tensor) -> tf.Tensor:
        x, y = gather(tf.gather(block["index"], k))
        return tf.reduce_sum(x[:, 14, 14]) + tf.cast(y[0], tf.float32)

    gathering = tf.function(gathered, autograph=False)

    def repeated(part: Callable[[tf.Tensor], Any]) -> Callable[[], Any]:
        def body(k: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return k + 1, total + tf.cast(part(k), tf.float32)

        def loop() -> Any:
            return tf.while_loop(lambda k, _: k < _STEPS, body, (0, tf.constant(0.0)), parallel_iterations=1)

        return tf.function(loop, autograph=False)

    def apply(k: tf.Tensor) -> Any:
        step._apply(some)
        return k

    return {
        "gather": repeated(gathering),
        "forward and backward": repeated(lambda k: step._forward_backward(block, k)[-1]),
        "apply": repeated(apply),
        "call": repeated(lambda _: step._reducer.sum_flat(strategy, some)[-1]),
        "whole": repeated(lambda k: step.step(block, k)),
    }


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,128,1024", help="rows a worker, separated by commas")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras_hooks.compute_in_order()
    print("| rows a worker | XLA | " + " | ".join(["gather", "forward and backward", "apply", "call", "whole"]) + " |")
    print("| --- " * 7 + "|")
    for rows in map(int, options.rows.split(",")):
        for compiled in get_args(Compiled):
            parts = parts_of_a_step(rows, compiled)
            times_us: dict[str, list[float]] = {name: [] for name in parts}
            for turn in range(32):
                for name, part in parts.items():
                    began = time.process_time()
                    part()
                    if turn > 1:
                        times_us[name].append((time.process_time() - began) / _STEPS * 1e6)
            cells = " | ".join(f"{statistics.median(times):.0f} us" for times in times_us.values())
            print(f"| {rows} | {compiled} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
