"""The ``tf.distribute`` strategy of one worker, checked against the plan.

Call this before TensorFlow's context starts (before a tensor is made or devices are listed): collective operations and
logical devices must be set up first (tensorflow #34568).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from tfmp.errors import TfmpError


@dataclass(frozen=True)
class StrategySpec:
    """The strategy that one worker builds.

    Attributes:
        kind: ``multi-worker`` (several processes, from ``TF_CONFIG``) or ``mirrored`` (the devices of this process).
        replicas: Replicas over all workers: the expected ``num_replicas_in_sync``.
        local_devices: Devices of this worker (logical CPU devices if ``gpus`` is false).
        gpus: Whether the replicas are GPUs.
        collective: ``ring`` or ``nccl``: how MultiWorkerMirroredStrategy sums.
    """

    kind: Literal["multi-worker", "mirrored"]
    replicas: int
    local_devices: int = 1
    gpus: bool = False
    collective: Literal["ring", "nccl"] = "ring"


def build_strategy(spec: StrategySpec) -> tf.distribute.Strategy:
    """Build the strategy and check its number of replicas.

    Raises:
        TfmpError: The strategy has another number of replicas than planned.
    """
    _prepare_devices(spec)
    if spec.kind == "mirrored":
        device_type = "GPU" if spec.gpus else "CPU"
        devices = [f"{device_type}:{i}" for i in range(spec.local_devices)]
        # On CPU devices, the default reduction (made for GPUs) is slower than summing on one device: 74,000 instead
        # of 108,000 samples/s with two logical devices and batch 256.
        reduction = None if spec.gpus else tf.distribute.ReductionToOneDevice()
        strategy: tf.distribute.Strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)
    else:
        implementation = {
            "ring": tf.distribute.experimental.CommunicationImplementation.RING,
            "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
        }[spec.collective]
        options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    check_replicas(strategy, spec.replicas)
    return strategy


def check_replicas(strategy: tf.distribute.Strategy, expected: int) -> None:
    """Refuse to train with another number of replicas than planned.

    Without a usable cluster in ``TF_CONFIG``, TensorFlow silently trains alone (tensorflow #31154): every process is
    then a chief and does all the work.

    Raises:
        TfmpError: ``strategy.num_replicas_in_sync`` is not ``expected``.
    """
    found = strategy.num_replicas_in_sync
    if found != expected:
        raise TfmpError(
            f"the plan has {expected} replicas, but TensorFlow built a strategy of {found}",
            where="num_replicas_in_sync",
            hint="each worker must see the same number of devices; check TF_CONFIG and CUDA_VISIBLE_DEVICES",
        )


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy spans more than one process."""
    return strategy.num_replicas_in_sync > len(strategy.extended.worker_devices)


@contextmanager
def data_sets_distributed(
    strategy: tf.distribute.Strategy, distribute: Callable[[tf.data.Dataset], Any] | None
) -> Iterator[None]:
    """Inside, ``strategy.experimental_distribute_dataset`` is ``distribute``; ``None``: TensorFlow's own."""
    before = vars(strategy).pop("experimental_distribute_dataset", None)
    if distribute is not None:
        strategy.experimental_distribute_dataset = lambda dataset, *_: distribute(dataset)
    try:
        yield
    finally:
        vars(strategy).pop("experimental_distribute_dataset", None)
        if before is not None:
            strategy.experimental_distribute_dataset = before


def first_local(strategy: tf.distribute.Strategy, value: Any) -> Any:
    """The value of this worker's first replica, of anything that ``strategy.run`` returned."""
    return tf.nest.map_structure(lambda each: strategy.experimental_local_results(each)[0], value)


def _prepare_devices(spec: StrategySpec) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        # Otherwise TensorFlow reserves nearly all memory of the GPU on first use.
        tf.config.experimental.set_memory_growth(gpu, True)
    if spec.gpus and len(gpus) < spec.local_devices:
        raise TfmpError(
            f"the plan gives this worker {spec.local_devices} GPUs, but TensorFlow sees {len(gpus)}",
            where="tf.config.list_physical_devices('GPU')",
            hint="install a GPU build of TensorFlow and its CUDA libraries, or use --set cluster.device=cpu",
        )
    if not spec.gpus and spec.local_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(spec.local_devices)]
        )
