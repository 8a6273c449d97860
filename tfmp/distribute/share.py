"""Each replica's rows of the global batches that every worker reads.

All workers read the same data set of global batches, and each replica takes its rows. ``tf.distribute`` would rather
give each worker some of the *files* or every n-th element, which changes the order, doubles samples where sharding is
off, and cannot split batches of changing size.

A checksum of the first batches travels with the rows: workers whose data sets differ are told apart at the first step
(:mod:`tfmp.distribute.agreement`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfmp.distribute.state import first_local_replica
from tfmp.distribute.strategy import first_local

_BATCH = "tfmp:batch"
_CHECKSUM = "tfmp:checksum"
#: Batches of an iterator that are checked: the first ones, and then one in :data:`_CHECKED_EVERY`.
_CHECKED_FIRST = 8
_CHECKED_EVERY = 64
#: Checksums are below it, so that float64 holds them, and sums of them, exactly.
_PRIME = 2**31 - 1


def share(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> tf.distribute.DistributedDataset:
    """Distribute a data set of global batches by rows.

    Shares differ by one row at most; the first replicas have the longer ones. A replica may have no row.

    Args:
        dataset: Global batches of any structure: dense, ragged and sparse tensors, numbers and text. The same on all
            workers.
        strategy: The strategy.
    """
    devices = len(strategy.extended.worker_devices)
    replicas = strategy.num_replicas_in_sync
    first = first_local_replica(strategy)
    is_tuple = isinstance(dataset.element_spec, tuple)

    def shares(number: tf.Tensor, *parts: Any) -> tuple[Any, ...]:
        batch = parts if is_tuple else parts[0]
        checksum = tf.constant(0, tf.int64)
        if replicas > devices:
            is_checked = (number < _CHECKED_FIRST) | (number % _CHECKED_EVERY == 0)
            checksum = tf.cond(is_checked, lambda: fingerprint(batch), lambda: tf.constant(0, tf.int64))
        return tuple({_BATCH: _rows_of(batch, first + i, replicas), _CHECKSUM: checksum} for i in range(devices))

    def distributed(_context: Any) -> tf.data.Dataset:
        numbered = tf.data.Dataset.zip((tf.data.Dataset.counter(), dataset))
        flat = numbered.map(lambda number, batch: shares(number, *(batch if is_tuple else (batch,))))
        if devices == 1:
            return flat.map(lambda only: only).prefetch(1)
        each = flat.flat_map(_one_after_the_other)
        count = dataset.cardinality().numpy()
        if count >= 0:
            each = each.apply(tf.data.experimental.assert_cardinality(count * devices))
        elif count == tf.data.INFINITE_CARDINALITY:
            each = each.apply(tf.data.experimental.assert_cardinality(count))
        return each.prefetch(devices)

    return strategy.distribute_datasets_from_function(distributed)


def is_shared(element: Any) -> bool:
    """Whether an element, or the spec of one, comes from :func:`share`."""
    return isinstance(element, dict) and element.keys() == {_BATCH, _CHECKSUM}


def batch_of(element: Any) -> Any:
    """The rows of a replica, from an element of any data set."""
    return element[_BATCH] if is_shared(element) else element


def add_checksum(total: tf.Tensor, element: Any, strategy: tf.distribute.Strategy) -> tf.Tensor:
    """Continue a checksum over several batches with that of the next, an element of a distributed iterator."""
    return _mixed(total, first_local(strategy, element[_CHECKSUM])) if is_shared(element) else total


def fingerprint(batch: Any) -> tf.Tensor:
    """A checksum of a batch of any structure, int64 scalar from 1 on."""
    total = tf.constant(1, tf.int64)
    for tensor in tf.nest.flatten(batch, expand_composites=True):
        total = _mixed(total, tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(tensor), _PRIME))
    return total


def _mixed(total: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return (total * 1_000_003 + value) % _PRIME


def _one_after_the_other(*elements: Any) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensors(elements[0])
    for element in elements[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(element))
    return dataset


def _rows_of(batch: Any, replica: int, replicas: int) -> Any:
    leaves = tf.nest.flatten(batch)
    rows = _row_count(leaves[0])
    base, extra = rows // replicas, rows % replicas
    begin = replica * base + tf.minimum(tf.constant(replica, rows.dtype), extra)
    end = begin + base + tf.cast(replica < extra, base.dtype)

    def taken(tensor: Any) -> Any:
        if isinstance(tensor, tf.SparseTensor):
            size = tf.concat([[end - begin], tensor.dense_shape[1:]], 0)
            return tf.sparse.slice(tensor, tf.concat([[begin], tf.zeros_like(tensor.dense_shape[1:])], 0), size)
        part = tensor[begin:end]
        static = tensor.shape[0]
        if isinstance(tensor, tf.Tensor):
            even = static is not None and static % replicas == 0
            part.set_shape([static // replicas if even else None, *tensor.shape[1:]])
        return part

    return tf.nest.map_structure(taken, batch)


def _row_count(tensor: Any) -> tf.Tensor:
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    if isinstance(tensor, tf.RaggedTensor):
        return tf.cast(tensor.nrows(), tf.int64)
    return tf.shape(tensor, tf.int64)[0]
