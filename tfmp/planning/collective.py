"""Which collective sums the gradients: resolved from the configuration alone, so that a resumed run keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfmp.errors import UsageError


class Collective(NamedTuple):
    """The choice (``shm``, ``hierarchical``, ``ring``, ``nccl``, ``in-process``, ``none``) and its reason."""

    name: str
    reason: str


def resolve_collective(
    requested: str, *, strategy: str, hosts: Sequence[int], replicas: int, device: str
) -> Collective:
    """Choose the collective.

    Args:
        requested: ``auto``, ``shm``, ``hierarchical``, ``ring`` or ``nccl``.
        strategy: ``multi-worker`` or ``mirrored``.
        hosts: The host of each worker, as a number.
        replicas: Number of replicas over all of them.
        device: ``cpu`` or ``gpu``: what the workers compute on.

    Raises:
        UsageError: NCCL without GPUs, shared memory with GPUs or where workers have none in common, or an exchange
            between processes within one process.
    """
    one_host = len(set(hosts)) == 1
    crowded = len(set(hosts)) < len(hosts)
    if requested == "nccl" and device != "gpu":
        raise UsageError(
            "expected GPUs for the collective nccl, received workers on the CPU: no GPU is visible or chosen",
            where="cluster.collective",
            hint="--collective auto (on CPUs it takes shared memory or the ring)",
        )
    if requested == "shm" and (device == "gpu" or not one_host):
        received = "workers on GPUs" if device == "gpu" else "workers on several hosts"
        raise UsageError(
            f"expected CPU workers on one host for the collective shm, received {received}",
            where="cluster.collective",
            hint="--collective auto",
        )
    if requested == "hierarchical" and (device == "gpu" or one_host or not crowded) and strategy != "mirrored":
        received = "workers on GPUs" if device == "gpu" else "all on one host" if one_host else "one worker a host"
        raise UsageError(
            f"expected hosts with several CPU workers each for the collective {requested}, received {received}",
            where="cluster.collective",
            hint="--collective auto",
        )
    if requested in ("ring", "shm", "hierarchical") and strategy == "mirrored":
        raise UsageError(
            f"expected auto or nccl for the mirrored strategy, received {requested}: it joins processes, this is one",
            where="cluster.collective",
            hint="--collective auto",
        )
    if replicas == 1:
        return Collective("none", "one worker" if strategy == "multi-worker" else "one replica")
    if strategy == "mirrored" and device == "cpu":
        return Collective("in-process", "CPU replicas of one process")
    if requested != "auto":
        return Collective(requested, "as asked")
    if device == "gpu":
        return Collective("nccl", "GPUs of one process" if len(hosts) == 1 else "GPU workers")
    if one_host:
        return Collective("shm", "CPU workers on one host share its memory")
    if crowded:
        return Collective("hierarchical", "CPU workers: the memory of each host, TensorFlow's ring between the hosts")
    return Collective("ring", "CPU workers on several hosts")
