"""Checks of this machine or container: versions, cores, memory, shared memory, GPUs, ports, folders."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfmp import procfs
from tfmp.commands.doctor.line import Line
from tfmp.errors import UsageError
from tfmp.planning.host import affinity_cpus, available_cores, visible_gpus
from tfmp.rendezvous.identity import installed_versions

_GIB = 1024**3
_MIB = 1024**2
#: With less, the kernel is likely to kill a worker of the default model.
_LITTLE_MEMORY_BYTES = 512 * _MIB
_LITTLE_DISK_BYTES = 200 * _MIB
#: NCCL keeps its buffers there; Docker's default is too small for two GPUs.
_LITTLE_SHARED_BYTES = 256 * _MIB
_OLDEST = {"TensorFlow": (2, 18), "Keras": (3, 10)}
_PYTHONS = ((3, 10), (3, 13))


def python_line(version: tuple[int, int, int], system: str) -> Line:
    """Python and the operating system."""
    found = f"{'.'.join(map(str, version))} on {system}"
    first, last = (".".join(map(str, version)) for version in _PYTHONS)
    if system != "Linux":
        return Line("fail", "Python", f"{found}: tfmp needs Linux", "use a Linux machine, container or WSL")
    if not _PYTHONS[0] <= version[:2] <= _PYTHONS[1]:
        return Line(
            "fail", "Python", f"{found}: expected {first} to {last}", f"create an environment with Python {last}"
        )
    return Line("ok", "Python", found)


def versions_line(versions: Mapping[str, str]) -> Line:
    """Installed packages.

    Args:
        versions: See :func:`tfmp.rendezvous.identity.installed_versions`.
    """
    found = ", ".join(f"{name} {versions[name]}" for name in ("tfmp", *_OLDEST))
    for name, oldest in _OLDEST.items():
        text = ".".join(map(str, oldest))
        numbers = tuple(map(int, re.findall(r"\d+", versions[name])[:2]))
        if numbers < oldest:
            package = name.lower()
            return Line(
                "fail", "versions", f"{found}: expected {name} {text} or newer", f"pip install '{package}>={text}'"
            )
    return Line("ok", "versions", found)


def cores_line(cores: int, affinity: int, machine: int) -> Line:
    """Usable cores, out of those that exist."""
    reasons = []
    if affinity < machine:
        reasons.append(f"CPU affinity allows {affinity}")
    if cores < affinity:
        reasons.append("its cgroup has a quota")
    what = f"{cores} of {machine}" + (f" ({', '.join(reasons)})" if reasons else "")
    return Line("ok", "cores", what)


def memory_line(available_bytes: int | None, limit_bytes: int | None) -> Line:
    """Available memory, and the limit of the cgroup."""
    if available_bytes is None:
        return Line("warn", "memory", "cannot be read from /proc/meminfo")
    left = available_bytes if limit_bytes is None else min(available_bytes, limit_bytes)
    what = f"{_size(available_bytes)} available" + (f", limit {_size(limit_bytes)}" if limit_bytes else "")
    if left < _LITTLE_MEMORY_BYTES:
        return Line(
            "warn", "memory", what, "a worker needs at least 350 MiB: free memory, or raise the container's limit"
        )
    return Line("ok", "memory", what)


def shared_memory_line(size_bytes: int | None, gpus: Sequence[str]) -> Line:
    """``/dev/shm``, which only NCCL uses; CPU workers do not."""
    if size_bytes is None:
        return Line("warn" if len(gpus) > 1 else "ok", "/dev/shm", "missing")
    if len(gpus) > 1 and size_bytes < _LITTLE_SHARED_BYTES:
        return Line(
            "warn",
            "/dev/shm",
            f"{_size(size_bytes)}, too small for {len(gpus)} GPUs",
            "docker run --shm-size=1g, or shm_size: 1g in a Compose file",
        )
    return Line("ok", "/dev/shm", _size(size_bytes))


def gpus_line(gpus: Sequence[str]) -> Line:
    """GPUs that workers may use."""
    return Line("ok", "GPUs", ", ".join(gpus) or "none, workers train on CPUs")


def port_line() -> Line:
    """Whether a process can listen on a port."""
    try:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            return Line("ok", "ports", f"can listen (tried port {sock.getsockname()[1]})")
    except OSError as error:
        return Line("fail", "ports", f"cannot listen: {error.strerror}", "stop programs that occupy ports")


def folder_line(name: str, folder: Path, fix: str) -> Line:
    """Whether a folder, or its nearest existing parent, is writable."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    shown = str(folder) if place == folder.absolute() else f"{folder}, to be created in {place}"
    if not place.is_dir():
        return Line("fail", name, f"{shown}: expected a folder, found a file", fix)
    try:
        with tempfile.TemporaryFile(dir=place):
            free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        return Line("fail", name, f"{shown}: cannot write to it: {error.strerror}", fix)
    if free_bytes < _LITTLE_DISK_BYTES:
        return Line("warn", name, f"{shown}: {_size(free_bytes)} free", f"free some space, or {fix}")
    return Line("ok", name, f"{shown}: {_size(free_bytes)} free")


def machine_lines(environ: Mapping[str, str], root: Path = procfs.ROOT) -> list[Line]:
    """Check this machine; takes milliseconds."""
    try:
        gpus: Sequence[str] = visible_gpus(environ, root)
        gpu = gpus_line(gpus)
    except UsageError as error:
        gpus, gpu = (), Line("fail", "GPUs", error.what, f"correct {error.where}")
    shm = root / "dev/shm"
    size = os.statvfs(shm) if shm.is_dir() else None
    major, minor, micro = (int(part) for part in platform.python_version_tuple()[:3] if part.isdecimal())
    return [
        python_line((major, minor, micro), platform.system()),
        versions_line(installed_versions()),
        cores_line(available_cores(root), len(affinity_cpus()), os.cpu_count() or 1),
        memory_line(procfs.meminfo_bytes("MemAvailable", root), procfs.container_memory_limit_bytes(root)),
        shared_memory_line(None if size is None else size.f_blocks * size.f_frsize, gpus),
        gpu,
        port_line(),
    ]


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.0f} MiB"
