"""How vectors are summed over replicas: TensorFlow's own collectives, or the memory that one host's workers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import tensorflow as tf

from tfmp.distribute.threads import keeping_its_thread

if TYPE_CHECKING:
    from tfmp.distribute.shm import SharedMemoryGroup

_SHARED_DTYPES = (tf.float32, tf.float64)


class Reducer:
    """Sums over all replicas with TensorFlow's collectives (ring over gRPC, NCCL, or the devices of one process).

    Args:
        replicas: Replicas over all workers; with 1 nothing is sent.
    """

    name = "tensorflow"

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Sum each tensor over all replicas: dense ones of one dtype travel as one flat vector.

        Args:
            tensors: Tensors or ``tf.IndexedSlices`` of this replica (call in a replica context).
        """
        if self.replicas == 1:
            return list(tensors)
        groups: dict[Any, list[int]] = {}
        for i, tensor in enumerate(tensors):
            groups.setdefault(i if isinstance(tensor, tf.IndexedSlices) else tensor.dtype, []).append(i)
        packed = []
        for indices in groups.values():
            if isinstance(tensors[indices[0]], tf.IndexedSlices):
                packed.append(tensors[indices[0]])
            else:
                packed.append(tf.concat([tf.reshape(tensors[i], [-1]) for i in indices], 0))
        result: list[Any] = [None] * len(tensors)
        for indices, total in zip(groups.values(), self._all_reduce(packed), strict=True):
            if isinstance(total, tf.IndexedSlices):
                result[indices[0]] = total
                continue
            sizes = [tf.size(tensors[i]) for i in indices]
            for i, part in zip(indices, tf.split(total, sizes, num=len(indices)), strict=True):
                result[i] = tf.reshape(part, tf.shape(tensors[i]))
                result[i].set_shape(tensors[i].shape)
        return result

    def sum_flat(self, strategy: tf.distribute.Strategy, vector: tf.Tensor) -> tf.Tensor:
        """Sum the flat vector of this worker's only replica over all workers (call in cross-replica context)."""
        if self.replicas == 1:
            return vector

        def one(value: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

        # The output of a compiled function has no device of its own, which the collective insists on.
        with tf.device(strategy.extended.worker_devices[0]):
            vector = tf.identity(vector)
        return strategy.experimental_local_results(strategy.run(one, args=(vector,)))[0]

    def _all_reduce(self, values: list[Any]) -> list[Any]:
        return list(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values))


class SharedMemoryReducer(Reducer):
    """Sums through the memory that all workers of this host share; one replica a worker.

    Args:
        group: The workers, met.
    """

    name = "shm"

    def __init__(self, group: SharedMemoryGroup) -> None:
        super().__init__(group.size)
        self._group = group

    def sum_flat(self, strategy: tf.distribute.Strategy, vector: tf.Tensor) -> tf.Tensor:
        """See :meth:`Reducer.sum_flat`. The result lives until the next but one sum."""
        if vector.dtype not in _SHARED_DTYPES:
            return super().sum_flat(strategy, vector)
        return self._shared(vector, lasting=False)

    def _all_reduce(self, values: list[Any]) -> list[Any]:
        def shared(value: Any) -> bool:
            return not isinstance(value, tf.IndexedSlices) and value.dtype in _SHARED_DTYPES

        other = iter(super()._all_reduce([v for v in values if not shared(v)]) if not all(map(shared, values)) else ())
        return [self._shared(v, lasting=True) if shared(v) else next(other) for v in values]

    def _shared(self, vector: tf.Tensor, *, lasting: bool) -> tf.Tensor:
        """Sum a vector of a type that the group sums; ``lasting``: the result outlives the next but one sum."""
        return self._call(self._copied if lasting else self._group.all_reduce, vector)

    def _copied(self, vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._group.all_reduce(vector).copy()

    @staticmethod
    def _call(function: Any, vector: tf.Tensor) -> tf.Tensor:
        # numpy_function, not py_function: that one makes eager tensors of everything, at several times the cost.
        total = tf.numpy_function(keeping_its_thread(function), [vector], vector.dtype, stateful=True)
        total.set_shape(vector.shape)
        return total
