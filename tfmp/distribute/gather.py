"""The global batch on every replica, for losses and metrics that no sum over the replicas' shares can give."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfmp.distribute.keras_hooks import numbers
from tfmp.distribute.reducers import Reducer
from tfmp.errors import TfmpError


class RowGather:
    """Gathers the real rows of all replicas in global order: replica 0 first.

    Each replica puts its rows where they belong among zeros, and the sum over replicas is the global batch. Adding -0.0
    leaves every float as it is, bit for bit.

    Args:
        reducer: How to sum over replicas.
        rows: Real rows of this replica, int32 scalar; possibly 0.
        capacity: Rows including padding, P, where all replicas have the same number; else ``None``. TensorFlow's
            collectives inside a loop only take vectors that keep their length.
    """

    def __init__(self, reducer: Reducer, rows: tf.Tensor, capacity: int | None = None) -> None:
        self._reducer = reducer
        self._rows = rows
        self._capacity = capacity
        if reducer.replicas == 1:
            self._before, self.total = tf.constant(0), rows
            return
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        (counts,) = reducer.sum([tf.one_hot(rank, reducer.replicas, tf.cast(rows, tf.float64), dtype=tf.float64)])
        counts = tf.cast(counts, tf.int32)
        self._before, self.total = tf.reduce_sum(counts[:rank]), tf.reduce_sum(counts)
        if capacity is not None:
            self._start, self._end = capacity * rank, capacity * (reducer.replicas - 1 - rank)
            self._is_real = tf.reshape(tf.range(capacity) < counts[:, tf.newaxis], [-1])

    def gather(self, structure: Any) -> Any:
        """The global batch of each tensor in a structure of this replica's rows, padding included; without gradients.

        Raises:
            TfmpError: A tensor is neither numbers nor bool.
        """
        masked = keras.tree.map_structure(lambda each: (each, numbers.mask_of(each)), structure)
        tensors = [each for each in keras.tree.flatten(masked) if each is not None]
        gathered = iter(self._gather([tf.convert_to_tensor(each) for each in tensors]))
        return keras.tree.map_structure(lambda each: _next_of(each, gathered), structure)

    def with_gradient(self, gathered: Any, own: Any) -> Any:
        """The gathered rows, with the gradient of this replica's own ones; the others' rows are constants.

        The gradient is multiplied by R: every replica computes the same loss, of which it adds 1/R to the sum.
        """

        def insert(whole: Any, part: Any) -> Any:
            part = _times_in_gradient(part[: self._rows], self._reducer.replicas)
            rows = tf.concat([whole[: self._before], part, whole[self._before + self._rows :]], 0)
            rows.set_shape(whole.shape)
            return numbers.with_mask(rows, numbers.mask_of(whole))

        return keras.tree.map_structure(insert, gathered, own)

    def _gather(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        if self._reducer.replicas == 1:
            return [tensor[: self._rows] for tensor in tensors]
        padded = [self._among_zeros(tf.stop_gradient(_number(tensor))) for tensor in tensors]
        sums = self._reducer.sum(padded)
        if self._capacity is not None:
            sums = [tf.boolean_mask(total, self._is_real) for total in sums]
        return [_back(total, tensor) for total, tensor in zip(sums, tensors, strict=True)]

    def _among_zeros(self, tensor: tf.Tensor) -> tf.Tensor:
        zero = tf.constant(-0.0 if tensor.dtype.is_floating else 0, tensor.dtype)
        if self._capacity is not None:
            before, after = self._start, self._end
        else:
            tensor = tensor[: self._rows]
            before, after = self._before, self.total - self._before - self._rows
        return tf.concat([_fill(tensor, before, zero), tensor, _fill(tensor, after, zero)], 0)


def _fill(like: tf.Tensor, rows: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
    return tf.fill(tf.concat([[rows], tf.shape(like)[1:]], 0), zero)


def _next_of(own: Any, gathered: Any) -> Any:
    if own is None:
        return None
    rows = next(gathered)
    return numbers.with_mask(rows, next(gathered)) if numbers.mask_of(own) is not None else rows


def _number(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor as floats or int64, exactly."""
    dtype = tensor.dtype
    if dtype in (tf.float32, tf.float64):
        return tensor
    if dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tensor, tf.float32)
    if dtype == tf.bool or dtype.is_integer:
        return tf.cast(tensor, tf.int64)
    raise TfmpError(
        f"a loss or metric needs the whole batch, but values of type {dtype.name} cannot be gathered",
        where="the data set given to fit or evaluate",
        hint="turn strings into numbers in the data set, or let the loss return a value for each sample",
    )


def _back(total: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    total.set_shape([None, *own.shape[1:]])
    return tf.cast(total, own.dtype)


@tf.custom_gradient
def _scaled(values: tf.Tensor, factor: tf.Tensor) -> Any:
    return tf.identity(values), lambda upstream: (upstream * factor, None)


def _times_in_gradient(values: tf.Tensor, factor: int) -> tf.Tensor:
    return _scaled(values, tf.constant(factor, values.dtype)) if values.dtype.is_floating and factor > 1 else values


def sum_with_gradient(reducer: Reducer, values: tf.Tensor) -> tf.Tensor:
    """Sum a tensor over all replicas. Its gradient is the sum of all replicas' gradients, as the losses are summed."""
    if reducer.replicas == 1:
        return values

    @tf.custom_gradient
    def total(part: tf.Tensor) -> Any:
        return reducer.sum([part])[0], lambda upstream: reducer.sum([upstream])[0]

    return total(values)
