"""What this machine gives to its workers: cores, threads, CPU placement, GPUs.

Files are read below a root that is passed in, so that a container's or another machine's tree can stand in for ``/``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfmp.errors import UsageError
from tfmp.planning.numa import spread_over_nodes

THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
_ROOT = Path("/")


def affinity_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may run on (taskset, cpusets), ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def available_cores(root: Path = _ROOT, affinity: int | None = None) -> int:
    """Return how many cores this process can use: CPU affinity and the quota of its control group.

    Args:
        root: Where ``proc`` and ``sys`` lie.
        affinity: Number of CPUs it may run on; ``None`` asks the system.

    Returns:
        The smaller of the two, at least 1. A quota of 1.5 cores counts as 2.
    """
    cores = len(affinity_cpus()) if affinity is None else affinity
    quota = min(_quotas(root), default=math.inf)
    return max(1, cores if math.isinf(quota) else min(cores, math.ceil(quota)))


def _quotas(root: Path) -> Iterator[float]:
    """Yield each quota that holds for this process, in cores: its own group's and those of the groups above."""
    fs = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            for mount in (fs, fs / "unified"):
                yield from filter(None, map(_quota_v2, _group_folders(mount, path)))
        elif "cpu" in controllers.split(","):
            for mount in (fs / "cpu", fs / controllers):
                yield from filter(None, map(_quota_v1, _group_folders(mount, path)))


def _group_folders(mount: Path, path: str) -> list[Path]:
    # A container sees its own group as the mount's root while /proc may name the host's path: folders that are not
    # there simply read as no quota. ".." means a group outside of what can be seen.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    """Return quota / period; ``None`` for no quota ("max", -1) or unreadable text."""
    if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None


def thread_env(
    cores: int, local_workers: int, environ: Mapping[str, str], threads_per_worker: int | None = None
) -> dict[str, str]:
    """Return the thread variables of each local worker.

    Without them each process makes a pool as large as the machine, blind to its siblings and to quotas.

    Args:
        cores: Cores for all local workers together.
        local_workers: Number of workers on this machine.
        environ: The user's environment: what it sets is kept.
        threads_per_worker: The configuration's explicit number; it beats the environment.

    Returns:
        All three variables: max(1, cores // local_workers) threads each, unless said otherwise.
    """
    if threads_per_worker is not None:
        return dict.fromkeys(THREAD_VARIABLES, str(threads_per_worker))
    share = str(max(1, cores // local_workers))
    return {name: environ.get(name) or share for name in THREAD_VARIABLES}


def oversubscribed(cores: int, workers: int) -> str | None:
    """Return a warning where more workers than cores run here, else ``None``."""
    if workers <= cores:
        return None
    return f"{workers} workers share {cores} {'core' if cores == 1 else 'cores'}: they will take turns, not run faster"


def cpu_sets(
    cores: int, workers: int, cpus: Sequence[int] | None = None, nodes: Sequence[frozenset[int]] = ()
) -> tuple[frozenset[int] | None, ...]:
    """Return the CPUs that each local worker is pinned to; ``None`` leaves it to the scheduler.

    Up to one worker a core the scheduler places better than a pin, within the worker's NUMA node. Beyond, worker i
    runs on CPU i modulo cores, so that none moves. Where a quota, not the CPU set, is the limit, nobody is pinned:
    other groups' pins would fall on the same first CPUs.

    Args:
        cores: What :func:`available_cores` says.
        workers: Number of workers on this machine.
        cpus: Numbers of the allowed CPUs; ``None`` for 0..cores-1.
        nodes: The allowed CPUs of each NUMA node.
    """
    allowed = tuple(range(cores)) if cpus is None else tuple(cpus)
    if len(allowed) > cores:
        return (None,) * workers
    if workers <= cores:
        return spread_over_nodes(workers, nodes)
    return tuple(frozenset({allowed[worker % len(allowed)]}) for worker in range(workers))


def visible_gpus(environ: Mapping[str, str], root: Path = _ROOT) -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use, without asking a driver.

    Args:
        environ: ``CUDA_VISIBLE_DEVICES`` is taken as given: numbers, GPU UUIDs, MIG ids. As in CUDA, the list ends at
            a negative number, and an empty value hides every GPU.
        root: Where ``proc`` lies: the NVIDIA driver lists its GPUs there.

    Raises:
        UsageError: The variable names one GPU twice.
    """
    listed = environ.get(GPU_VARIABLE)
    if listed is None:
        folder = root / "proc/driver/nvidia/gpus"
        count = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
        return tuple(str(number) for number in range(count))
    gpus: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        if not entry or entry.startswith("-") or entry.lower() in ("nodevfiles", "none", "void"):
            break
        if entry in gpus:
            raise UsageError(f"expected each GPU once, received {entry} twice", where=GPU_VARIABLE)
        gpus.append(entry)
    return tuple(gpus)


def share_gpus(
    gpus: Sequence[str],
    local_workers: int,
    *,
    workers_option: str = "--workers",
    cpu_option: str = "--set cluster.device=cpu",
) -> tuple[str | None, ...]:
    """Return each local worker's ``CUDA_VISIBLE_DEVICES``.

    Args:
        gpus: What :func:`visible_gpus` says.
        local_workers: Number of workers on this machine.
        workers_option: The option that sets the number of workers, for the hint.
        cpu_option: What trains without GPUs, for the hint.

    Returns:
        Equal contiguous shares; ``None`` (leave the variable as it is) for every worker where there is no GPU.

    Raises:
        UsageError: The GPUs cannot be shared out equally. Two workers on one GPU would fight for its memory, and
            unequal workers cannot take part in one collective.
    """
    if not gpus:
        return (None,) * local_workers
    each, rest = divmod(len(gpus), local_workers)
    if rest:
        raise UsageError(
            f"expected the same number of GPUs for every worker, received {len(gpus)} "
            f"{'GPU' if len(gpus) == 1 else 'GPUs'} for {local_workers} workers",
            where=GPU_VARIABLE,
            hint=f"{workers_option} {len(gpus)}, or without GPUs: {cpu_option}",
        )
    return tuple(",".join(gpus[each * worker : each * (worker + 1)]) for worker in range(local_workers))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
