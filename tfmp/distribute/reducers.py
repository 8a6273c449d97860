"""How vectors are summed over replicas.

With TensorFlow's collectives; in the memory that the workers of one host share; or both: in the memory of each host,
and between the first workers (leaders) of all hosts, so that a vector crosses the network once per host instead of once
per worker.
"""

from __future__ import annotations

import ctypes
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import tensorflow as tf

if TYPE_CHECKING:
    from tfmp.distribute.shm import SharedMemoryGroup

_SHARED_DTYPES = (tf.float32, tf.float64)
#: Far from the keys that tf.distribute counts up from 1 (group keys) and 100 (instance keys).
_GROUP_KEY = 1 << 28
_INSTANCE_KEYS = 1 << 29
_kept = threading.local()


class Reducer:
    """Sums over all replicas with TensorFlow's collectives (ring over gRPC, NCCL, or the devices of one process).

    Args:
        replicas: Replicas over all workers; with 1, nothing is sent.
    """

    name = "tensorflow"

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Sum each tensor over all replicas. Dense tensors of one dtype travel as one flat vector.

        Args:
            tensors: Tensors or ``tf.IndexedSlices`` of this replica (call in a replica context).
        """
        if self.replicas == 1:
            return list(tensors)
        groups: dict[Any, list[int]] = {}
        for i, tensor in enumerate(tensors):
            # A number could be equal to a type: tf.float32 == 1.
            groups.setdefault(f"slices {i}" if isinstance(tensor, tf.IndexedSlices) else tensor.dtype, []).append(i)
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

        def all_reduce(value: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

        # The output of a compiled function has no device, but the collective requires one.
        with tf.device(strategy.extended.worker_devices[0]):
            vector = tf.identity(vector)
        return strategy.experimental_local_results(strategy.run(all_reduce, args=(vector,)))[0]

    def _all_reduce(self, values: list[Any]) -> list[Any]:
        context = tf.distribute.get_replica_context()
        if len({value.dtype for value in values}) > 1:  # TensorFlow would join them to one vector
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, value) for value in values]
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))


class SharedMemoryReducer(Reducer):
    """Sums in the memory that all workers of this host share, with one replica per worker.

    Args:
        group: The workers, met.
    """

    name = "shm"

    def __init__(self, group: SharedMemoryGroup) -> None:
        super().__init__(group.size)
        self._group = group

    def sum_flat(self, strategy: tf.distribute.Strategy, vector: tf.Tensor) -> tf.Tensor:
        """See :meth:`Reducer.sum_flat`. The result is valid until the second sum after it."""
        if vector.dtype not in _SHARED_DTYPES:
            return super().sum_flat(strategy, vector)
        return self._shared(vector, lasting=False)

    def _all_reduce(self, values: list[Any]) -> list[Any]:
        def shared(value: Any) -> bool:
            return not isinstance(value, tf.IndexedSlices) and value.dtype in _SHARED_DTYPES

        other = iter(super()._all_reduce([v for v in values if not shared(v)]) if not all(map(shared, values)) else ())
        return [self._shared(v, lasting=True) if shared(v) else next(other) for v in values]

    def _shared(self, vector: tf.Tensor, *, lasting: bool) -> tf.Tensor:
        """Sum a vector of a type that the group supports. A ``lasting`` result stays valid after further sums."""
        return self._call(self._copied if lasting else self._group.all_reduce, vector)

    def _copied(self, vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._group.all_reduce(vector).copy()

    @staticmethod
    def _call(function: Any, vector: tf.Tensor) -> tf.Tensor:
        # numpy_function, not py_function, which makes eager tensors of everything at several times the cost.
        total = tf.numpy_function(keeping_its_thread(function), [vector], vector.dtype, stateful=True)
        total.set_shape(vector.shape)
        return total


class LeaderRing:
    """TensorFlow's ring between the leaders alone.

    ``tf.distribute`` has no collective over a subset of its workers, so this uses the operation beneath it. The result
    has the same bits on all leaders.

    Args:
        hosts: Number of hosts, and so of leaders.
        device: This leader's device, as the strategy names it.
    """

    def __init__(self, hosts: int, device: str) -> None:
        self._hosts = hosts
        self._device = device
        with tf.init_scope(), tf.device(device):
            # Orders the calls as in the program, which is the same on all leaders.
            self._ordering = tf.Variable(0.0, trainable=False)

    def sum(self, vector: tf.Tensor) -> tf.Tensor:
        """Sum a vector [length] over all leaders."""
        if self._hosts == 1:
            return vector
        # The same on all leaders, whatever each has traced before. Two calls of one shape may share a key.
        key = zlib.crc32(f"{vector.dtype.name} {vector.shape}".encode()) % _INSTANCE_KEYS + _GROUP_KEY
        with tf.device(self._device):
            return tf.raw_ops.CollectiveReduceV2(
                input=tf.identity(vector),
                group_size=self._hosts,
                group_key=_GROUP_KEY,
                instance_key=key,
                ordering_token=[self._ordering.handle],
                merge_op="Add",
                final_op="Id",
                communication_hint="ring",
            )


class HostsReducer(SharedMemoryReducer):
    """Sums in the memory of each host, then between the leaders, then passes the result to the workers of each host.

    Args:
        group: The workers of this host, met.
        replicas: Replicas over all hosts, one per worker.
        ring: The hosts' leaders; used by rank 0 of the group.
    """

    name = "hierarchical"

    def __init__(self, group: SharedMemoryGroup, replicas: int, ring: LeaderRing) -> None:
        super().__init__(group)
        self.replicas = replicas
        self._ring = ring

    def _shared(self, vector: tf.Tensor, *, lasting: bool) -> tf.Tensor:
        total = self._call(self._group.all_reduce, vector)
        if self._group.rank == 0:
            total = self._ring.sum(total)
        return self._call(self._broadcast_copied if lasting else self._group.broadcast, total)

    def _broadcast_copied(self, vector: Any) -> Any:
        return self._group.broadcast(vector).copy()


def keeping_its_thread(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a function for ``tf.numpy_function``, so that repeated calls from a thread of TensorFlow are cheap.

    TensorFlow takes the interpreter lock with ``PyGILState_Ensure``. In a thread that Python does not know, this makes
    a thread state, for which the kernel maps and unmaps 16 KB, and destroys it after the call: about 25 µs per call
    with CPython 3.11. Here the first call on a thread enters once more and never leaves, so the state stays as long as
    the thread. There are as many states as TensorFlow's pool has threads.
    """
    ensure = ctypes.pythonapi.PyGILState_Ensure

    def call(value: Any) -> Any:
        try:
            _kept.entered  # noqa: B018
        except AttributeError:
            _kept.entered = ensure()
        return function(value)

    return call
