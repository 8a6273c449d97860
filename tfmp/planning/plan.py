"""The plan of a run: what every worker gets, worked out before anything starts.

Pure: the same input gives the same plan. Host and environment are passed in; ports are added last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tfmp.cluster.spec import ClusterSpec
from tfmp.cluster.tf_config import make_tf_config
from tfmp.errors import UsageError
from tfmp.planning.batches import BatchPlan, Compiled, compiled_parts, plan_batches
from tfmp.planning.collective import Collective, resolve_collective
from tfmp.planning.environment import no_proxy_env, thread_env
from tfmp.planning.host import GPU_VARIABLE, Device, Host, choose_device, oversubscribed, share_gpus
from tfmp.planning.layout import Layout, mirrored_gpus
from tfmp.planning.mlp import check_task, count_parameters
from tfmp.text import count

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig
    from tfmp.data.entry import DatasetHeader

WORKER_COLUMNS = ("rank", "task", "address", "replicas", "samples a step", "threads", "CPUs", "GPUs")
_LOCAL_HOST = "127.0.0.1"


@dataclass(frozen=True)
class WorkerPlan:
    """One worker.

    Attributes:
        rank: Its rank.
        local: Whether it runs on this machine. Of other machines, only cluster and batch are known here.
        env: Variables to set over the inherited environment, TF_CONFIG among them.
        unset: Variables to remove from the inherited environment.
        cpus: CPUs it is pinned to; ``None`` for no pinning.
        gpus: Its GPUs.
        replicas: Its number of replicas.
        samples: Samples of a full step, over its replicas.
        task_type: ``chief`` or ``worker``.
        task_index: Its index among the tasks of that type.
        address: ``host:port``; ``None`` without a cluster, or before the ports are known.
        tf_config: Its TF_CONFIG; ``None`` if it has no address or is alone.
    """

    rank: int
    local: bool
    env: Mapping[str, str]
    unset: tuple[str, ...]
    cpus: frozenset[int] | None
    gpus: tuple[str, ...]
    replicas: int
    samples: int
    task_type: str = "worker"
    task_index: int = 0
    address: str | None = None
    tf_config: str | None = None

    @property
    def threads(self) -> str | None:
        """Threads of one operation of TensorFlow; ``None`` on another machine."""
        return self.env.get("TF_NUM_INTRAOP_THREADS")

    def in_cluster(self, cluster: ClusterSpec) -> WorkerPlan:
        """Return the same worker with its task, address and TF_CONFIG, which a lone worker does not get."""
        task_type, task_index = cluster.task(self.rank)
        if cluster.size == 1:  # with a TF_CONFIG, TensorFlow would start its server
            return replace(self, task_type=task_type, task_index=task_index, address=str(cluster.address(self.rank)))
        tf_config = make_tf_config(cluster, task_type, task_index)
        return replace(
            self,
            task_type=task_type,
            task_index=task_index,
            address=str(cluster.address(self.rank)),
            tf_config=tf_config,
            env={**self.env, "TF_CONFIG": tf_config} if self.local else self.env,
        )


@dataclass(frozen=True)
class Plan:
    """The whole run.

    Attributes:
        layout: Processes, devices and replicas.
        device: What the workers compute on.
        collective: What sums the gradients, and why.
        batch: Batches and steps.
        epochs: Epochs.
        compiled: Which parts of a step are compiled with XLA.
        workers: The workers, by rank.
        warnings: Warnings for the user.
        hosts: The host of each worker, as a number, judged by the addresses alone.
    """

    layout: Layout
    device: Device
    collective: Collective
    batch: BatchPlan
    epochs: int
    compiled: Compiled
    workers: tuple[WorkerPlan, ...]
    warnings: tuple[str, ...]
    hosts: tuple[int, ...]

    @property
    def strategy(self) -> str:
        """The strategy's name, to be shown."""
        return self.layout.kind

    @property
    def replicas(self) -> int:
        """Copies of the model that compute in step, over all workers."""
        return self.layout.replicas

    @property
    def port_count(self) -> int:
        """Number of ports that :meth:`with_ports` expects: one for each worker without an address."""
        return sum(worker.address is None for worker in self.workers) if self.layout.needs_server else 0

    def with_ports(self, ports: Sequence[int]) -> Plan:
        """Return the plan of a local run with a port for each worker, by rank.

        Raises:
            ValueError: More or fewer ports than :attr:`port_count`.
        """
        if len(ports) != self.port_count:
            raise ValueError(f"expected {self.port_count} ports, received {len(ports)}")
        return self._in_cluster(ClusterSpec.local(_LOCAL_HOST, ports)) if ports else self

    def _in_cluster(self, cluster: ClusterSpec) -> Plan:
        return replace(self, workers=tuple(worker.in_cluster(cluster) for worker in self.workers))

    def describe(self) -> list[tuple[str, str]]:
        """Return the run as rows of (label, value)."""
        batch = self.batch
        steps = f"{batch.steps_per_epoch:,}"
        if batch.steps_per_epoch != batch.steps_per_pass:
            steps += f" (one pass over the samples: {batch.steps_per_pass:,})"
        elif batch.last_batch_samples != batch.global_batch:
            steps += f" (the last with {batch.last_batch_samples:,} samples)"
        validation = f"{batch.validation_samples:,} samples in {count(batch.validation_steps, 'step')}"
        return [
            ("strategy", f"{self.strategy}, {count(len(self.workers), 'worker')}"),
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
        """Return a row of texts for each worker, in the order of :data:`WORKER_COLUMNS`; "-" for what is unknown."""
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
        """Return the plan as values for ``json.dumps``."""
        return {
            "strategy": self.strategy,
            "device": self.device,
            "replicas": self.replicas,
            "collective": self.collective._asdict(),
            "batch": asdict(self.batch),
            "epochs": self.epochs,
            "workers": [_worker_json(worker) for worker in self.workers],
            "warnings": self.warnings,
            "hosts": self.hosts,
        }


def make_plan(
    config: RunConfig, dataset: DatasetHeader, host: Host, cluster: ClusterSpec | None = None, ranks: Sequence[int] = ()
) -> Plan:
    """Work out a run.

    Args:
        config: The configuration.
        dataset: What the data set holds.
        host: What this machine offers the workers that run on it.
        cluster: The workers' addresses. ``None``: a local run with the configured number of workers, whose ports
            :meth:`Plan.with_ports` adds.
        ranks: With ``cluster``: the workers on this machine, which share what it offers.

    Raises:
        UsageError: Fewer samples or a smaller batch than replicas, GPUs that are missing or cannot be shared equally, a
            collective that does not fit, labels of one class, or a local run whose configuration lists addresses.
        ValueError: A cluster without ranks.
    """
    check_task(config, dataset)
    size = cluster.size if cluster else _local_workers(config)
    if cluster is None:
        ranks = range(size)
    elif not ranks:
        raise ValueError("expected the ranks of this machine, received none")
    device = choose_device(config.cluster.device, host.gpus)
    if config.cluster.is_multi_process:
        shares = share_gpus(host.gpus if device == "gpu" else (), len(ranks))
        devices_per_worker = max(1, len(shares[0]))
    else:
        gpus, devices_per_worker = mirrored_gpus(device, config.cluster.devices, host.gpus)
        shares = (gpus,)
    layout = Layout.data_parallel(config.cluster.strategy, size, devices_per_worker)
    hosts = cluster.host_numbers if cluster else (0,) * size
    collective = resolve_collective(config.cluster.collective, layout, hosts, device)
    train_samples = _limited(dataset.train_samples, config.data.limit_train)
    validation_samples = _limited(dataset.validation_samples, config.data.limit_validation)
    parameters = None if config.model.factory else count_parameters(config, dataset)
    batch = plan_batches(layout, config.training, train_samples, validation_samples, parameters)
    env = thread_env(host.cores, len(ranks), host.environ, config.cluster.threads_per_worker)
    if layout.is_multi_process:
        env |= no_proxy_env(host.environ, cluster.hosts if cluster else [_LOCAL_HOST])
    if device == "cpu" and host.gpus:
        env[GPU_VARIABLE] = ""
    made = Plan(
        layout=layout,
        device=device,
        collective=collective,
        batch=batch,
        epochs=config.training.epochs,
        compiled=compiled_parts(config, layout, device, batch.steps_per_epoch, parameters),
        workers=_workers(layout, batch, env, ranks, shares, host.cpu_sets(len(ranks))),
        warnings=_warnings(host, len(ranks), batch),
        hosts=hosts,
    )
    return made._in_cluster(cluster) if cluster else made


def _local_workers(config: RunConfig) -> int:
    if config.cluster.worker_addresses is not None:
        raise UsageError(
            "expected a number of workers, received addresses: tfmp train starts workers on this machine only",
            where="cluster.workers",
            hint="--workers 4, or run tfmp worker with its --index on each host",
        )
    return config.cluster.worker_count


def _workers(
    layout: Layout,
    batch: BatchPlan,
    env: Mapping[str, str],
    ranks: Sequence[int],
    gpu_shares: Sequence[tuple[str, ...]],
    pins: Sequence[frozenset[int] | None],
) -> tuple[WorkerPlan, ...]:
    workers = []
    for rank in range(layout.workers):
        local = ranks.index(rank) if rank in ranks else None
        gpus = gpu_shares[local] if local is not None else ()
        first = layout.first_replica(rank)
        workers.append(
            WorkerPlan(
                rank=rank,
                local=local is not None,
                env={} if local is None else {**env, GPU_VARIABLE: ",".join(gpus)} if gpus else dict(env),
                # With an inherited cluster TensorFlow would wait for peers that have no part in this run.
                unset=() if layout.needs_server else ("TF_CONFIG",),
                cpus=pins[local] if local is not None else None,
                gpus=gpus,
                replicas=layout.replicas_per_worker,
                samples=sum(batch.shares[first : first + layout.replicas_per_worker]),
            )
        )
    return tuple(workers)


def _warnings(host: Host, local_workers: int, batch: BatchPlan) -> tuple[str, ...]:
    found = []
    if crowded := oversubscribed(host.cores, local_workers):
        found.append(crowded)
    if batch.global_batch > batch.train_samples:
        found.append(
            f"the global batch of {batch.global_batch:,} is larger than the {batch.train_samples:,} training samples: "
            "every step takes all of them"
        )
    return tuple(found)


def _worker_json(worker: WorkerPlan) -> dict[str, Any]:
    cpus = None if worker.cpus is None else sorted(worker.cpus)
    return {**asdict(worker), "cpus": cpus, "threads": worker.threads}


def _cpu_text(worker: WorkerPlan) -> str:
    if not worker.local:
        return "-"
    return "any" if worker.cpus is None else ",".join(map(str, sorted(worker.cpus)))


def _limited(samples: int, limit: int | None) -> int:
    return samples if limit is None else min(samples, limit)
