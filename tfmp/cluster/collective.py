"""Which collective sums the gradients: resolved from the configuration alone, so that a resumed run keeps it."""

from __future__ import annotations

from typing import NamedTuple

from tfmp.errors import UsageError


class Collective(NamedTuple):
    """The choice (``shm``, ``ring``, ``nccl``, ``in-process``, ``none``) and its reason."""

    name: str
    reason: str


def resolve_collective(
    requested: str, *, strategy: str, workers: int, replicas: int, device: str, one_host: bool
) -> Collective:
    """Choose the collective.

    Args:
        requested: ``auto``, ``shm``, ``ring`` or ``nccl``.
        strategy: ``multi-worker`` or ``mirrored``.
        workers: Number of worker processes.
        replicas: Number of replicas over all of them.
        device: ``cpu`` or ``gpu``: what the workers compute on.
        one_host: Whether all workers run on one machine.

    Raises:
        UsageError: NCCL without GPUs, shared memory across hosts or with GPUs, or either kind of exchange between
            processes within one process.
    """
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
    if requested in ("ring", "shm") and strategy == "mirrored":
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
        return Collective("nccl", "GPUs of one process" if workers == 1 else "GPU workers")
    if one_host:
        return Collective("shm", "CPU workers on one host share its memory")
    return Collective("ring", "CPU workers on several hosts")
