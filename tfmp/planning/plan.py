"""The plan of a run: what every worker will be given, worked out before anything starts.

Pure: the same input gives the same plan. Cores, GPUs, ports and the environment are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.cluster.tf_config import make_tf_config
from tfmp.planning.batches import BatchPlan, plan_batches
from tfmp.planning.collective import Collective, resolve_collective
from tfmp.planning.devices import choose_device, mirrored_devices
from tfmp.planning.host import GPU_VARIABLE, cpu_sets, oversubscribed, share_gpus, thread_env
from tfmp.planning.proxy import no_proxy_env

WORKER_COLUMNS = ("rank", "task", "address", "replicas", "samples a step", "threads", "CPUs", "GPUs")


@dataclass(frozen=True)
class PlanInput:
    """Everything that a plan depends on.

    Attributes:
        batch_size: Global batch: samples of a step over all replicas.
        train_samples: Training samples, after any limit.
        validation_samples: Validation samples, after any limit; 0 for none.
        cores: Cores of this machine that may be used.
        strategy: ``multi-worker`` (processes) or ``mirrored`` (one process).
        workers: Local workers of a multi-worker run; ``ports`` holds one port each.
        ports: Ports of the local workers.
        host: Host of the local workers.
        cluster: A cluster whose addresses are known; ``workers``, ``ports`` and ``host`` are then not used.
        local_ranks: With ``cluster``: the ranks on this machine, which share its cores and GPUs.
        devices: Mirrored: number of replicas. ``None``: every visible GPU, on the CPU one.
        device: ``auto`` takes GPUs where any is visible.
        collective: ``auto``, ``shm``, ``hierarchical``, ``ring`` or ``nccl``.
        gpus: Visible GPUs, by the names that CUDA_VISIBLE_DEVICES knows.
        cpus: Numbers of the CPUs that may be used; ``None`` for 0..cores-1.
        numa_nodes: The usable CPUs of each NUMA node.
        environ: The environment that the workers inherit.
        threads_per_worker: ``None``: cores over local workers.
        epochs: Epochs, for the description.
        steps_per_epoch: ``None``: one pass over the training samples.
        steps_per_execution: ``None``: chosen.
        parameters: Of the model; ``None`` if not known.
        validation_batch_size: Global batch of the evaluation.
    """

    batch_size: int
    train_samples: int
    validation_samples: int
    cores: int
    strategy: Literal["multi-worker", "mirrored"] = "multi-worker"
    workers: int = 1
    ports: tuple[int, ...] = ()
    host: str = "127.0.0.1"
    cluster: ClusterSpec | None = None
    local_ranks: tuple[int, ...] = ()
    devices: int | None = None
    device: Literal["auto", "cpu", "gpu"] = "auto"
    collective: Literal["auto", "shm", "hierarchical", "ring", "nccl"] = "auto"
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] | None = None
    numa_nodes: tuple[frozenset[int], ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    threads_per_worker: int | None = None
    epochs: int = 1
    steps_per_epoch: int | None = None
    steps_per_execution: int | None = None
    parameters: int | None = None
    validation_batch_size: int = 1000


@dataclass(frozen=True)
class WorkerPlan:
    """One worker.

    Attributes:
        rank: Its rank.
        task_type: ``chief`` or ``worker``.
        task_index: Its index among the tasks of that type.
        address: ``host:port``; ``None`` for the mirrored strategy, which has no network.
        tf_config: Its TF_CONFIG; ``None`` for the mirrored strategy.
        local: Whether it runs on this machine. Of other machines only cluster and batch are known here.
        env: Variables to set over the inherited environment, TF_CONFIG among them.
        unset: Variables to remove from the inherited environment.
        cpus: CPUs it is pinned to; ``None`` for no pinning.
        threads: Value of TF_NUM_INTRAOP_THREADS: threads of one operation. ``None`` on another machine.
        gpus: Its GPUs.
        replicas: Its number of replicas.
        samples: Samples of a full step, over its replicas.
    """

    rank: int
    task_type: str
    task_index: int
    address: str | None
    tf_config: str | None
    local: bool
    env: Mapping[str, str]
    unset: tuple[str, ...]
    cpus: frozenset[int] | None
    threads: str | None
    gpus: tuple[str, ...]
    replicas: int
    samples: int


@dataclass(frozen=True)
class Plan:
    """The whole run.

    Attributes:
        strategy: ``multi-worker`` or ``mirrored``.
        device: ``cpu`` or ``gpu``.
        replicas: Replicas over all workers: copies of the model that compute in step.
        collective: What sums the gradients, and why.
        batch: Batches and steps.
        epochs: Epochs.
        workers: The workers, by rank.
        warnings: Sentences that the user should read.
        hosts: The host of each worker, as a number: by the addresses alone.
    """

    strategy: str
    device: str
    replicas: int
    collective: Collective
    batch: BatchPlan
    epochs: int
    workers: tuple[WorkerPlan, ...]
    warnings: tuple[str, ...]
    hosts: tuple[int, ...]

    def describe(self) -> list[tuple[str, str]]:
        """Return the run as rows of (label, value)."""
        batch = self.batch
        steps = f"{batch.steps_per_epoch:,}"
        if batch.steps_per_epoch != batch.steps_per_pass:
            steps += f" (one pass over the samples: {batch.steps_per_pass:,})"
        elif batch.last_batch_samples != batch.global_batch:
            steps += f" (the last with {batch.last_batch_samples:,} samples)"
        validation = f"{batch.validation_samples:,} samples in {_count(batch.validation_steps, 'step')}"
        return [
            ("strategy", f"{self.strategy}, {_count(len(self.workers), 'worker')}"),
            ("replicas", f"{self.replicas} on {self.device.upper()}"),
            ("collective", f"{self.collective.name}: {self.collective.reason}"),
            ("global batch", f"{batch.global_batch:,} samples"),
            ("per-replica batch", f"{batch.per_replica_batch:,}" + (f" ({batch.uneven})" if batch.uneven else "")),
            ("training samples", f"{batch.train_samples:,}"),
            ("epochs", f"{self.epochs:,}"),
            ("steps per epoch", steps),
            ("steps per execution", f"{batch.steps_per_execution:,}"),
            ("validation", validation if batch.validation_samples else "none"),
        ]

    def worker_rows(self) -> list[tuple[str, ...]]:
        """Return a row of texts for each worker, in the order of :data:`WORKER_COLUMNS`; "-" where nothing is known."""
        return [
            (
                str(worker.rank),
                f"{worker.task_type} {worker.task_index}",
                worker.address or "-",
                str(worker.replicas),
                str(worker.samples),
                worker.threads or "-",
                _cpu_text(worker),
                ",".join(worker.gpus) or "-",
            )
            for worker in self.workers
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain dicts, lists, numbers and texts, ready for ``json.dumps``."""
        plan = asdict(self)
        plan["collective"] = self.collective._asdict()
        plan["workers"] = [
            {**asdict(worker), "cpus": None if worker.cpus is None else sorted(worker.cpus)} for worker in self.workers
        ]
        return plan


def make_plan(inputs: PlanInput) -> Plan:
    """Work out a run.

    Args:
        inputs: Configuration, machine and data.

    Returns:
        The plan.

    Raises:
        UsageError: Fewer samples or a smaller batch than replicas, GPUs that are asked for but not there or cannot be
            shared equally, a collective that does not fit.
        ValueError: A port is missing, or local ranks are not given.
    """
    device = choose_device(inputs.device, inputs.gpus)
    if inputs.strategy == "mirrored":
        cluster = None
        size = 1
        gpu_shares, replicas_each = mirrored_devices(device, inputs.devices, inputs.gpus)
        local_ranks: tuple[int, ...] = (0,)
    else:
        cluster, local_ranks = _cluster(inputs)
        size = cluster.size
        gpu_shares = share_gpus(inputs.gpus if device == "gpu" else (), len(local_ranks))
        replicas_each = max(1, len(_names(gpu_shares[0])))
    replicas = size * replicas_each
    hosts = _hosts(cluster)
    collective = resolve_collective(
        inputs.collective,
        strategy=inputs.strategy,
        hosts=hosts,
        replicas=replicas,
        device=device,
    )
    batch = plan_batches(
        replicas=replicas,
        party="worker" if replicas == size else "replica",
        batch_size=inputs.batch_size,
        train_samples=inputs.train_samples,
        validation_samples=inputs.validation_samples,
        validation_batch_size=inputs.validation_batch_size,
        steps_per_epoch=inputs.steps_per_epoch,
        steps_per_execution=inputs.steps_per_execution,
        parameters=inputs.parameters,
    )
    workers = _workers(inputs, cluster, local_ranks, gpu_shares, replicas_each, batch, hide_gpus=device == "cpu")
    return Plan(
        strategy=inputs.strategy,
        device=device,
        replicas=replicas,
        collective=collective,
        batch=batch,
        epochs=inputs.epochs,
        workers=workers,
        warnings=_warnings(inputs, len(local_ranks)),
        hosts=hosts,
    )


def _hosts(cluster: ClusterSpec | None) -> tuple[int, ...]:
    if cluster is None:
        return (0,)
    names = [address.identity[0] for address in cluster.addresses]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def _cluster(inputs: PlanInput) -> tuple[ClusterSpec, tuple[int, ...]]:
    if inputs.cluster is not None:
        if not inputs.local_ranks:
            raise ValueError("expected the ranks of this machine (local_ranks), received none")
        return inputs.cluster, inputs.local_ranks
    if len(inputs.ports) != inputs.workers:
        raise ValueError(f"expected {inputs.workers} ports, received {len(inputs.ports)}")
    cluster = ClusterSpec(tuple(Address(inputs.host, port) for port in inputs.ports))
    return cluster, tuple(range(inputs.workers))


def _workers(
    inputs: PlanInput,
    cluster: ClusterSpec | None,
    local_ranks: tuple[int, ...],
    gpu_shares: tuple[str | None, ...],
    replicas_each: int,
    batch: BatchPlan,
    *,
    hide_gpus: bool,
) -> tuple[WorkerPlan, ...]:
    shared_env = thread_env(inputs.cores, len(local_ranks), inputs.environ, inputs.threads_per_worker)
    if cluster is not None:
        shared_env |= no_proxy_env(inputs.environ, cluster.hosts)
    if hide_gpus and inputs.gpus:
        shared_env[GPU_VARIABLE] = ""
    pins = cpu_sets(inputs.cores, len(local_ranks), inputs.cpus, inputs.numa_nodes)
    workers = []
    for rank in range(cluster.size if cluster else 1):
        task_type, task_index = cluster.task(rank) if cluster else ("worker", 0)
        tf_config = make_tf_config(cluster, task_type, task_index) if cluster else None
        place = local_ranks.index(rank) if rank in local_ranks else None
        gpus = gpu_shares[place] if place is not None else None
        env: dict[str, str] = {}
        if place is not None:
            env = dict(shared_env)
            if tf_config:
                env["TF_CONFIG"] = tf_config
            if gpus is not None:
                env[GPU_VARIABLE] = gpus
        workers.append(
            WorkerPlan(
                rank=rank,
                task_type=task_type,
                task_index=task_index,
                address=str(cluster.address(rank)) if cluster else None,
                tf_config=tf_config,
                local=place is not None,
                env=env,
                # An inherited cluster would make TensorFlow look for peers that have no part in this run.
                unset=() if cluster else ("TF_CONFIG",),
                cpus=pins[place] if place is not None else None,
                threads=env.get("TF_NUM_INTRAOP_THREADS"),
                gpus=_names(gpus),
                replicas=replicas_each,
                samples=sum(batch.shares[rank * replicas_each : (rank + 1) * replicas_each]),
            )
        )
    return tuple(workers)


def _warnings(inputs: PlanInput, local_workers: int) -> tuple[str, ...]:
    found = []
    if crowded := oversubscribed(inputs.cores, local_workers):
        found.append(crowded)
    if inputs.batch_size > inputs.train_samples:
        found.append(
            f"the global batch of {inputs.batch_size:,} is larger than the {inputs.train_samples:,} training samples: "
            "every step takes all of them"
        )
    return tuple(found)


def _cpu_text(worker: WorkerPlan) -> str:
    if not worker.local:
        return "-"
    return "any" if worker.cpus is None else ",".join(map(str, sorted(worker.cpus)))


def _names(gpus: str | None) -> tuple[str, ...]:
    return tuple(gpus.split(",")) if gpus else ()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
