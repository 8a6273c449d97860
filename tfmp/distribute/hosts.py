"""Sums over several hosts with several workers each: in the memory of each host, and between one worker of each.

Each worker's vector crosses the network once a host instead of once a worker. The first worker of a host leads it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfmp.distribute.reducers import SharedMemoryReducer

if TYPE_CHECKING:
    from tfmp.distribute.shm import SharedMemoryGroup

#: Far from the keys that tf.distribute counts up from 1 (group keys) and 100 (instance keys).
_GROUP_KEY = 1 << 28
_INSTANCE_KEYS = 1 << 29


class LeaderRing:
    """TensorFlow's ring between the leaders alone.

    ``tf.distribute`` has no collective over some of its workers, so this is the operation beneath it. Its result has
    the same bits on all leaders.

    Args:
        hosts: Number of hosts, and so of leaders.
        device: This leader's device, as the strategy names it.
    """

    def __init__(self, hosts: int, device: str) -> None:
        self._hosts = hosts
        self._device = device
        with tf.init_scope(), tf.device(device):
            # Calls follow each other in the order of the program, the same on all leaders.
            self._ordering = tf.Variable(0.0, trainable=False)

    def sum(self, vector: tf.Tensor) -> tf.Tensor:
        """Sum a vector [length] over all leaders."""
        if self._hosts == 1:
            return vector
        # The same on all leaders whatever each has traced before; two calls of one shape may share a key.
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
    """Sums in each host's memory, between the hosts' leaders, and hands the result to each host's workers.

    Args:
        group: The workers of this host, met.
        replicas: Replicas over all hosts, one a worker.
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
