"""Which collective sums the gradients: resolved from the configuration alone, so that a resumed run keeps it."""

from __future__ import annotations

from typing import NamedTuple

from tfmp.errors import UsageError


class Collective(NamedTuple):
    """The choice (``ring``, ``nccl``, ``in-process``, ``none``) and its reason."""

    name: str
    reason: str


def resolve_collective(requested: str, *, strategy: str, workers: int, replicas: int, device: str) -> Collective:
    """Choose the collective.

    Args:
        requested: ``auto``, ``ring`` or ``nccl``.
        strategy: ``multi-worker`` or ``mirrored``.
        workers: Number of worker processes.
        replicas: Number of replicas over all of them.
        device: ``cpu`` or ``gpu``: what the workers compute on.

    Raises:
        UsageError: NCCL without GPUs, or a ring within one process.
    """
    if requested == "nccl" and device != "gpu":
        raise UsageError(
            "expected GPUs for the collective nccl, received workers on the CPU: no GPU is visible or chosen",
            where="cluster.collective",
            hint="--collective auto (on CPUs it takes the ring)",
        )
    if requested == "ring" and strategy == "mirrored":
        raise UsageError(
            "expected auto or nccl for the mirrored strategy, received ring: it joins processes, and this is one",
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
    return Collective("ring", "CPU workers")
