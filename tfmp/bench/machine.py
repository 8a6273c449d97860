"""The machine that a benchmark ran on, without which its figures mean nothing."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tfmp import __version__, procfs

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy")


def describe_machine(cores: int, root: Path = procfs.ROOT) -> dict[str, Any]:
    """Describe processor, cores, memory, system and the load before the first run.

    Args:
        cores: Cores that may be used.
        root: Where ``proc`` lies.
    """
    return {
        "cpu": procfs.cpu_model(root) or platform.machine(),
        "architecture": platform.machine(),
        "cores": cores,
        "memory_bytes": procfs.meminfo_bytes("MemTotal", root),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Versions of tfmp, Python and the libraries that compute."""
    found = {"tfmp": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def busy(load: float, cores: int) -> str | None:
    """Return a warning if other programs use a good part of the machine, else ``None``."""
    if load < 0.25 * cores:
        return None
    return f"this machine is busy (load {load:.1f} on {cores} cores): expect noise and fewer clear results"


def busy_s(cpus: Sequence[int]) -> float:
    """CPU seconds that these CPUs have been busy since boot."""
    import psutil

    times = psutil.cpu_times(percpu=True)
    # By name: "guest" is part of "user", and "iowait" is idle. Stolen time is used by other virtual machines.
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times[cpu], kind, 0.0) for cpu in cpus if cpu < len(times) for kind in kinds)


def own_s() -> float:
    """CPU seconds of this process and of all descendants that were waited for."""
    return sum(os.times()[:4])


def crowded(foreign_cores: Sequence[float], cores: int) -> str | None:
    """Return a warning if other programs used more than a tenth of the machine during the runs, else ``None``.

    Args:
        foreign_cores: The cores that they kept busy on average, for each run.
        cores: Cores of this machine that may be used.
    """
    if not foreign_cores or statistics.median(foreign_cores) <= 0.1 * cores:
        return None
    usual, most = statistics.median(foreign_cores), max(foreign_cores)
    return f"other programs kept {usual:.1f} of {cores} cores busy during the runs (at most {most:.1f}): expect noise"
