"""What the workers compute on: CPU or GPU, and the replicas of the mirrored strategy."""

from __future__ import annotations

from collections.abc import Sequence

from tfmp.errors import UsageError
from tfmp.planning.host import GPU_VARIABLE


def choose_device(requested: str, gpus: Sequence[str]) -> str:
    """Return ``cpu`` or ``gpu``.

    Args:
        requested: ``auto`` (GPUs where any is visible), ``cpu`` or ``gpu``.
        gpus: Visible GPUs.

    Raises:
        UsageError: GPUs are asked for and none is visible.
    """
    if requested == "gpu" and not gpus:
        raise UsageError(
            "expected a GPU for cluster.device=gpu, received none: no GPU is visible",
            where="cluster.device",
            hint=f"--set cluster.device=cpu, or check {GPU_VARIABLE} and the driver",
        )
    if requested == "auto":
        return "gpu" if gpus else "cpu"
    return requested


def mirrored_devices(device: str, devices: int | None, gpus: Sequence[str]) -> tuple[tuple[str | None, ...], int]:
    """Return the one worker's ``CUDA_VISIBLE_DEVICES`` and the number of replicas of the mirrored strategy.

    Args:
        device: ``cpu`` or ``gpu``.
        devices: Number of replicas asked for; ``None``: every GPU, on the CPU one, as TensorFlow does.
        gpus: Visible GPUs.

    Raises:
        UsageError: More replicas than GPUs.
    """
    if device == "cpu":
        return (None,), devices or 1
    replicas = devices or len(gpus)
    if replicas > len(gpus):
        raise UsageError(
            f"expected at most {len(gpus)} {'device' if len(gpus) == 1 else 'devices'}, one for each visible GPU, "
            f"received {replicas}",
            where="cluster.devices",
            hint=f"--devices {len(gpus)}, or logical CPU devices: --set cluster.device=cpu",
        )
    return (",".join(gpus[:replicas]),), replicas
