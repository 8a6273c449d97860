"""Batches of prepared samples for plain Keras, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfmp.data.arrays import SplitArrays

Numbers = Callable[[], Iterator[npt.NDArray[np.int32]]]


def batches(split: SplitArrays, numbers: Numbers, *, scaled: bool) -> tf.data.Dataset:
    """Return the batches of the sample numbers that ``numbers`` yields, as the model sees them.

    Args:
        split: The samples.
        numbers: Yields the samples of one batch after the other, int32 [b].
        scaled: Whether uint8 inputs are the pixels of images.
    """
    floatx = keras.config.floatx()

    def generate() -> Iterator[Any]:
        for index in numbers():
            yield split.rows(index, scaled=scaled, floatx=floatx)

    def spec(rows: npt.NDArray[Any]) -> tf.TensorSpec:
        return tf.TensorSpec((None, *rows.shape[1:]), tf.as_dtype(rows.dtype))

    first = split.rows(np.arange(1), scaled=scaled, floatx=floatx)
    return tf.data.Dataset.from_generator(generate, output_signature=keras.tree.map_structure(spec, first))


def in_order(split: SplitArrays, batch: int, *, scaled: bool) -> tf.data.Dataset:
    """Return all samples in the stored order, in batches of ``batch``; the last one may be smaller."""

    def numbers() -> Iterator[npt.NDArray[np.int32]]:
        for start in range(0, len(split), batch):
            yield np.arange(start, min(start + batch, len(split)), dtype=np.int32)

    return batches(split, numbers, scaled=scaled)
