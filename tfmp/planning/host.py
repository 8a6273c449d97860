"""What a machine offers its workers: cores, CPU placement, GPUs.

Files are read below a root that is passed in, so that a made-up tree can stand in for ``/``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tfmp import procfs
from tfmp.errors import UsageError

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Host:
    """What a machine offers the workers that run on it.

    Attributes:
        cores: Cores that may be used, quotas included.
        cpus: Numbers of the CPUs that may be used.
        gpus: Visible GPUs, by the names that CUDA_VISIBLE_DEVICES knows.
        environ: The environment that the workers inherit.
        numa_nodes: The usable CPUs of each NUMA node.
    """

    cores: int
    cpus: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    numa_nodes: tuple[frozenset[int], ...] = ()

    @classmethod
    def here(cls) -> Host:
        """Return the machine that this process runs on, as far as it may be used.

        Raises:
            UsageError: ``CUDA_VISIBLE_DEVICES`` names one GPU twice.
        """
        cpus = affinity_cpus()
        return cls(available_cores(), cpus, visible_gpus(os.environ), dict(os.environ), numa_nodes(cpus))

    def cpu_sets(self, workers: int) -> tuple[frozenset[int] | None, ...]:
        """Return the CPUs that each of several workers is pinned to; ``None`` leaves it to the scheduler.

        With at most one worker per core the scheduler places them better than a pin, within the worker's NUMA node.
        With more, worker i runs on CPU i modulo cores and never moves. If a quota is the limit rather than the CPU set,
        nobody is pinned: other groups would pin theirs to the same first CPUs.
        """
        if len(self.cpus) > self.cores:
            return (None,) * workers
        if workers <= self.cores:
            return _spread_over_nodes(workers, self.numa_nodes)
        return tuple(frozenset({self.cpus[worker % len(self.cpus)]}) for worker in range(workers))


def affinity_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may run on (taskset, cpusets), in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def available_cores(root: Path = procfs.ROOT, affinity: int | None = None) -> int:
    """Return how many cores this process can use, given CPU affinity and the quota of its control group.

    Args:
        root: Where ``proc`` and ``sys`` lie.
        affinity: Number of CPUs that it may run on; ``None`` asks the system.

    Returns:
        The smaller of the two, at least 1. A quota of 1.5 cores counts as 2.
    """
    cores = len(affinity_cpus()) if affinity is None else affinity
    quota = procfs.cpu_quota(root)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def oversubscribed(cores: int, workers: int) -> str | None:
    """Return a warning if more workers than cores run here, else ``None``."""
    if workers <= cores:
        return None
    return f"{workers} workers share {cores} {'core' if cores == 1 else 'cores'}: they will take turns, not run faster"


def numa_nodes(cpus: Sequence[int], root: Path = procfs.ROOT) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each NUMA node that this process may run on; nodes without any are left out.

    A worker's memory lies on the node that first wrote it. A worker that stays on one node finds its weights, gradients
    and optimizer state nearby, and shares its cache with workers of the same node.

    Args:
        cpus: Numbers of the allowed CPUs.
        root: Where ``sys`` lies.
    """
    folder = root / "sys/devices/system/node"
    names = (path.name for path in folder.glob("node*")) if folder.is_dir() else ()
    numbers = sorted(int(name[4:]) for name in names if name[4:].isdecimal())
    allowed = frozenset(cpus)
    nodes = (_parse_cpu_list(procfs.read_text(folder / f"node{number}" / "cpulist")) & allowed for number in numbers)
    return tuple(filter(None, nodes))


def _parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers in a kernel's list such as ``0-3,8,10-11``; anything else is skipped."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def _spread_over_nodes(workers: int, nodes: Sequence[frozenset[int]]) -> tuple[frozenset[int] | None, ...]:
    """Return the CPUs that each worker of this machine is pinned to; ``None`` leaves it to the scheduler.

    Neighbouring ranks share a node, the number of workers on a node is proportional to its CPUs, and a worker may use
    all CPUs of its node. Nobody is pinned on a single node, with fewer workers than nodes (a worker may want more
    threads than a node has CPUs), or with more workers than CPUs.

    Args:
        workers: Number of workers on this machine.
        nodes: What :func:`numa_nodes` says.
    """
    total = sum(map(len, nodes))
    if len(nodes) < 2 or workers < len(nodes) or workers > total:
        return (None,) * workers
    ends, counted = [], 0
    for node in nodes:
        counted += len(node)
        ends.append(counted / total)
    # With all CPUs, and all workers, laid out from 0 to 1: a worker belongs to the node that its middle falls into.
    places = [next(i for i, end in enumerate(ends) if (worker + 0.5) / workers <= end) for worker in range(workers)]
    return tuple(nodes[place] for place in places)


def visible_gpus(environ: Mapping[str, str], root: Path = procfs.ROOT) -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use, without asking the driver.

    Args:
        environ: ``CUDA_VISIBLE_DEVICES`` may hold numbers, GPU UUIDs or MIG ids. As in CUDA, the list ends at a
            negative number, and an empty value hides every GPU.
        root: Where ``proc`` lies: the NVIDIA driver lists its GPUs there.

    Raises:
        UsageError: The variable names one GPU twice.
    """
    listed = environ.get(GPU_VARIABLE)
    if listed is None:
        return tuple(map(str, range(procfs.nvidia_gpus(root))))
    gpus: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        if not entry or entry.startswith("-") or entry.lower() in ("nodevfiles", "none", "void"):
            break
        if entry in gpus:
            raise UsageError(f"expected each GPU once, received {entry} twice", where=GPU_VARIABLE)
        gpus.append(entry)
    return tuple(gpus)


def choose_device(requested: str, gpus: Sequence[str]) -> Device:
    """Return what the workers compute on.

    Args:
        requested: ``auto`` (GPUs where any is visible), ``cpu`` or ``gpu``.
        gpus: Visible GPUs.

    Raises:
        UsageError: GPUs are requested and none is visible.
    """
    if requested == "gpu" and not gpus:
        raise UsageError(
            "expected a GPU for cluster.device=gpu, received none: no GPU is visible",
            where="cluster.device",
            hint=f"--set cluster.device=cpu, or check {GPU_VARIABLE} and the driver",
        )
    return "gpu" if gpus and requested != "cpu" else "cpu"


def share_gpus(
    gpus: Sequence[str],
    workers: int,
    *,
    workers_option: str = "--workers",
    cpu_option: str = "--set cluster.device=cpu",
) -> tuple[tuple[str, ...], ...]:
    """Return each local worker's GPUs: equal, contiguous shares.

    Args:
        gpus: What :func:`visible_gpus` says; may be empty.
        workers: Number of workers on this machine.
        workers_option: The option that sets the number of workers, for the hint.
        cpu_option: How to run without GPUs, for the hint.

    Raises:
        UsageError: The GPUs cannot be shared equally. Two workers on one GPU would compete for its memory, and unequal
            workers cannot join one collective.
    """
    each, rest = divmod(len(gpus), workers)
    if rest:
        raise UsageError(
            f"expected the same number of GPUs for every worker, received {len(gpus)} "
            f"{'GPU' if len(gpus) == 1 else 'GPUs'} for {workers} workers",
            where=GPU_VARIABLE,
            hint=f"{workers_option} {len(gpus)}, or without GPUs: {cpu_option}",
        )
    return tuple(tuple(gpus[each * worker : each * (worker + 1)]) for worker in range(workers))
