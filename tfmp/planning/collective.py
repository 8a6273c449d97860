"""Chooses the collective that sums the gradients, from the configuration alone, so that a resumed run keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.planning.host import Device
    from tfmp.planning.layout import Layout

_SHARED_MEMORY = ("shm", "hierarchical")
_BETWEEN_HOSTS = ("hierarchical", "ring", "nccl")
_NOT_IN_ONE_PROCESS = ("shm", "hierarchical", "ring")


class Collective(NamedTuple):
    """The choice (``shm``, ``hierarchical``, ``ring``, ``nccl``, ``in-process``, ``none``) and its reason."""

    name: str
    reason: str

    @property
    def uses_shared_memory(self) -> bool:
        """Whether the workers of a host join through memory that they share."""
        return self.name in _SHARED_MEMORY

    @property
    def crosses_hosts(self) -> bool:
        """Whether it can sum over several hosts."""
        return self.name in _BETWEEN_HOSTS

    @property
    def communication(self) -> Literal["ring", "nccl"]:
        """What TensorFlow's own collectives use for everything that is not summed in shared memory."""
        return "nccl" if self.name == "nccl" else "ring"


def resolve_collective(requested: str, layout: Layout, hosts: Sequence[int], device: Device) -> Collective:
    """Choose the collective.

    Args:
        requested: ``auto``, ``shm``, ``hierarchical``, ``ring`` or ``nccl``.
        layout: Processes and replicas.
        hosts: The host of each worker, as a number.
        device: What the workers compute on.

    Raises:
        UsageError: NCCL without GPUs, shared memory with GPUs or between workers that share none, or a collective
            between processes for a single process.
    """
    one_host = len(set(hosts)) == 1
    several_on_a_host = len(set(hosts)) < len(hosts)
    on_gpus = device == "gpu"
    if requested == "nccl" and not on_gpus:
        raise UsageError(
            "expected GPUs for the collective nccl, received workers on the CPU: no GPU is visible",
            where="cluster.collective",
            hint="--collective auto (on CPUs it takes shared memory or the ring)",
        )
    if requested in _NOT_IN_ONE_PROCESS and not layout.is_multi_process:
        raise _refused(
            f"expected auto or nccl for the mirrored strategy, received {requested}: it joins processes, this is one"
        )
    if requested in _SHARED_MEMORY:
        if on_gpus:
            received = "workers on GPUs"
        elif requested == "shm":
            received = "" if one_host else "workers on several hosts"
        else:
            received = "all on one host" if one_host else "" if several_on_a_host else "one worker a host"
        if received:
            expected = "CPU workers on one host" if requested == "shm" else "hosts with several CPU workers each"
            raise _refused(f"expected {expected} for the collective {requested}, received {received}")
    if layout.replicas == 1:
        return Collective("none", f"one {layout.replica_noun}")
    if not layout.is_multi_process and not on_gpus:
        return Collective("in-process", "CPU replicas of one process")
    if requested != "auto":
        return Collective(requested, "as asked")
    if on_gpus:
        return Collective("nccl", "GPUs of one process" if layout.workers == 1 else "GPU workers")
    if one_host:
        return Collective("shm", "CPU workers on one host share its memory")
    if several_on_a_host:
        return Collective("hierarchical", "CPU workers: the memory of each host, TensorFlow's ring between the hosts")
    return Collective("ring", "CPU workers on several hosts")


def _refused(what: str) -> UsageError:
    return UsageError(what, where="cluster.collective", hint="--collective auto")
