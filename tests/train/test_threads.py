"""What tfmp does about the way TensorFlow calls Python; a test fails on the day when it is no longer needed."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from tfmp.distribute.reducers import keeping_its_thread


def test_calls_from_a_thread_of_tensorflow_keep_its_interpreter_state() -> None:
    """Python's thread-local values live as long as the state: without it, each call would begin with none."""
    local, counts = threading.local(), []

    def count(value: Any) -> Any:
        local.calls = getattr(local, "calls", 0) + 1
        counts.append(local.calls)
        return value

    def calls(function: Any) -> list[int]:
        counts.clear()

        @tf.function
        def loop(x: tf.Tensor) -> tf.Tensor:
            for _ in range(20):
                x = tf.ensure_shape(tf.numpy_function(function, [x], tf.float32, stateful=True), [1])
            return x

        loop(tf.ones([1]))
        return counts

    assert set(calls(count)) == {1}, "TensorFlow or CPython keeps the state by itself: keeping_its_thread can go"
    kept = calls(keeping_its_thread(count))
    assert max(kept) > 1, kept
