"""How a training is laid out over processes and devices. The rest of the program asks, and never compares names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.planning.host import Device

Kind = Literal["multi-worker", "mirrored"]


@dataclass(frozen=True)
class Layout:
    """A mesh of data × model devices, distributed over workers.

    Attributes:
        kind: The strategy: ``multi-worker`` (a process a worker) or ``mirrored`` (one process).
        data: Replicas: copies of the model that compute in step, each on its own samples.
        model: Devices that hold one replica together.
        workers: Worker processes.
        devices_per_worker: Devices of each of them.

    Raises:
        ValueError: The mesh does not have as many devices as the workers, or a replica would span two workers.
    """

    kind: Kind
    data: int
    model: int
    workers: int
    devices_per_worker: int

    def __post_init__(self) -> None:
        if self.data * self.model != self.workers * self.devices_per_worker or self.devices_per_worker % self.model:
            raise ValueError(f"{self} does not lay {self.data} × {self.model} devices out over the workers")

    @classmethod
    def data_parallel(cls, kind: Kind, workers: int, devices_per_worker: int) -> Layout:
        """Return the layout in which every device is a replica."""
        return cls(kind, workers * devices_per_worker, 1, workers, devices_per_worker)

    @property
    def is_multi_process(self) -> bool:
        """Whether the workers may be several processes, even if it is a single one."""
        return self.kind == "multi-worker"

    @property
    def needs_server(self) -> bool:
        """Whether workers reach each other through TensorFlow's server: each then has an address and a TF_CONFIG.

        The server answers everyone who reaches its port, without authentication.
        """
        return self.is_multi_process and self.workers > 1

    @property
    def replicas(self) -> int:
        """Replicas over all workers."""
        return self.data

    @property
    def replicas_per_worker(self) -> int:
        """Replicas of each worker."""
        return self.devices_per_worker // self.model

    def first_replica(self, rank: int) -> int:
        """Return the number of a worker's first replica."""
        return rank * self.replicas_per_worker

    @property
    def replica_noun(self) -> str:
        """What messages call a replica: ``worker`` if each worker is one."""
        return "worker" if self.is_multi_process and self.replicas == self.workers else "replica"


def mirrored_gpus(device: Device, devices: int | None, gpus: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the GPUs of the mirrored strategy's worker, and its number of devices.

    Args:
        device: ``cpu`` or ``gpu``.
        devices: Requested number of devices. ``None``: every GPU, or one CPU, as TensorFlow does.
        gpus: Visible GPUs.

    Raises:
        UsageError: More devices than GPUs.
    """
    if device == "cpu":
        return (), devices or 1
    wanted = devices or len(gpus)
    if wanted > len(gpus):
        raise UsageError(
            f"expected at most {len(gpus)} {'device' if len(gpus) == 1 else 'devices'}, one for each visible GPU, "
            f"received {wanted}",
            where="cluster.devices",
            hint=f"--devices {len(gpus)}, or logical CPU devices: --set cluster.device=cpu",
        )
    return tuple(gpus[:wanted]), wanted
