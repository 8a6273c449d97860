"""From a configuration, this machine and a data set to a plan, and to the workers to start."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tfmp.errors import UsageError
from tfmp.planning.host import affinity_cpus, available_cores, visible_gpus
from tfmp.planning.numa import numa_nodes
from tfmp.planning.plan import Plan, PlanInput, make_plan

if TYPE_CHECKING:
    from tfmp.agent.shm_setup import ShmSetup
    from tfmp.cluster.spec import ClusterSpec
    from tfmp.config import RunConfig
    from tfmp.data.entry import CachedDataset, DatasetHeader


#: From so many updated parameters on, over all steps, compiling pays for itself (see :func:`compiled_parts`).
COMPILE_FROM_UPDATES = 600_000_000


@dataclass(frozen=True)
class Machine:
    """What this machine offers a run."""

    cores: int
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    environ: Mapping[str, str]
    numa_nodes: tuple[frozenset[int], ...] = ()

    @classmethod
    def here(cls) -> Machine:
        """The machine this process runs on, as far as it may be used."""
        cpus = affinity_cpus()
        return cls(available_cores(), cpus, visible_gpus(os.environ), dict(os.environ), numa_nodes(cpus))


def local_port_count(config: RunConfig) -> int:
    """Ports that a local run of ``config`` needs: one a worker, none for the mirrored strategy.

    Raises:
        UsageError: The workers are given by address: such a cluster is started host by host.
    """
    if config.cluster.worker_addresses is not None:
        raise UsageError(
            "tfmp train starts workers on this machine only: expected a number of workers, received addresses",
            where="cluster.workers",
            hint="give a number (--workers 4), or run tfmp worker with its --index on each host",
        )
    return 0 if config.cluster.strategy == "mirrored" else config.cluster.worker_count


def plan_local_run(config: RunConfig, header: DatasetHeader, machine: Machine, ports: tuple[int, ...]) -> Plan:
    """The plan of a run whose workers are all on this machine.

    Raises:
        UsageError: The configuration does not fit the machine or the data (see :func:`tfmp.planning.plan.make_plan`).
    """
    return make_plan(replace(_inputs(config, header, machine), workers=config.cluster.worker_count, ports=ports))


def plan_cluster_run(
    config: RunConfig, header: DatasetHeader, machine: Machine, cluster: ClusterSpec, rank: int
) -> Plan:
    """The plan of a run over several hosts, of which this machine is one.

    Args:
        config: The configuration.
        header: The data.
        machine: This worker's share of its machine.
        cluster: All workers.
        rank: The worker on this machine.

    Raises:
        UsageError: The configuration does not fit the machine or the data (see :func:`tfmp.planning.plan.make_plan`).
    """
    return make_plan(replace(_inputs(config, header, machine), cluster=cluster, local_ranks=(rank,)))


def _inputs(config: RunConfig, header: DatasetHeader, machine: Machine) -> PlanInput:
    cluster, training, data = config.cluster, config.training, config.data
    if header.classes < 2 and config.model.factory is None:  # one output of a softmax is always 1: a loss of 0
        raise UsageError(
            "expected labels of two classes or more, found one class only",
            where=f"data set {header.name}",
            hint="check the labels; a model of your own (model.factory) may do without classes",
        )
    return PlanInput(
        batch_size=training.batch_size,
        train_samples=_limited(header.train_samples, data.limit_train),
        validation_samples=_limited(header.validation_samples, data.limit_validation),
        cores=machine.cores,
        strategy=cluster.strategy,
        devices=cluster.devices,
        device=cluster.device,
        collective=cluster.collective,
        gpus=machine.gpus,
        cpus=machine.cpus,
        numa_nodes=machine.numa_nodes,
        environ=machine.environ,
        threads_per_worker=cluster.threads_per_worker,
        epochs=training.epochs,
        steps_per_epoch=training.steps_per_epoch,
        steps_per_execution=training.steps_per_execution,
        parameters=None if config.model.factory else count_parameters(config, header),
        validation_batch_size=training.validation_batch_size,
    )


def compiled_parts(config: RunConfig, plan: Plan, header: DatasetHeader) -> Literal["none", "apply", "all"]:
    """Which parts of a step are compiled with XLA, by a rule that pays. A function of what all workers know alone: it
    changes bits of the result.

    On CPUs (`benchmarks/step.py`) a compiled *apply* saves 0.6 ns a parameter and step, and costs 0.35 s at the start;
    a compiled *forward and backward* is no faster at 16 rows and slower at 128.
    """
    if config.training.jit_compile is not None:
        return "all" if config.training.jit_compile else "none"
    if config.model.factory is not None or plan.strategy != "multi-worker" or plan.device != "cpu":
        return "none"
    updates = plan.epochs * plan.batch.steps_per_epoch * count_parameters(config, header)
    return "apply" if updates >= COMPILE_FROM_UPDATES else "none"


def count_parameters(config: RunConfig, header: DatasetHeader) -> int:
    """Trainable parameters of the built-in MLP."""
    widths = [math.prod(header.image_shape), *config.model.units, header.classes]
    normalized = 2 * sum(config.model.units) if config.model.batch_normalization else 0
    return sum(a * b + b for a, b in itertools.pairwise(widths)) + normalized


def worker_payload(
    config: RunConfig,
    plan: Plan,
    rank: int,
    run_dir: str,
    dataset: CachedDataset,
    *,
    meeting: ShmSetup | None,
    resume: Mapping[str, str] | None,
) -> dict[str, Any]:
    """What worker ``rank`` is told: the fields of :class:`tfmp.trainer.worker.WorkerTask`."""
    worker = plan.workers[rank]
    return {
        "run_dir": run_dir,
        "data_header": str(dataset.path),
        "rank": rank,
        "replicas": plan.replicas,
        "first_replica": sum(other.replicas for other in plan.workers[:rank]),
        "local_replicas": worker.replicas,
        "gpus": plan.device == "gpu",
        "collective": plan.collective.name,
        "steps_per_epoch": plan.batch.steps_per_epoch,
        "steps_per_execution": plan.batch.steps_per_execution,
        "compiled": compiled_parts(config, plan, dataset.header),
        "meeting": meeting.of(rank, plan) if meeting else None,
        "resume": resume,
    }


def _limited(samples: int, limit: int | None) -> int:
    return samples if limit is None else min(samples, limit)
