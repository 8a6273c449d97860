"""Sum vectors over the worker processes of one host at memory speed, without TensorFlow, network or compiled code.

Public::

    group = SharedMemoryGroup.join(directory, rank, size, token=token, timeout_s=30.0, spin=True)
    total = group.all_reduce(gradient)

Ranks join through path sockets in a private folder; these work across network namespaces, where abstract sockets do
not. Rank 0's anonymous memory is shared by all, so neither ``/dev/shm`` nor its size matters and nothing is left
behind, however the processes end. Each rank is connected to every other one, so each notices a death by itself.
"""

from __future__ import annotations

from tfmp.distribute.shm.errors import CallMismatch, GroupError, JoinFailed, PeerLost
from tfmp.distribute.shm.group import SharedMemoryGroup

__all__ = ["CallMismatch", "GroupError", "JoinFailed", "PeerLost", "SharedMemoryGroup"]
