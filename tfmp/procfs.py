"""Processes, memory and control groups (versions 1 and 2), as Linux shows them in ``/proc`` and ``/sys``.

No other module reads these files. ``root`` stands in for ``/`` in tests. What cannot be read is ``None`` or empty,
never an error: a kernel may lack it, and a process may end at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
#: States of a process that was stopped by a signal or a debugger, and of one that has ended: proc(5).
STOPPED, TRACED = "T", "t"
ENDED = ("Z", "X")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Version 1 writes the largest number of whole pages for "no limit".
_NO_LIMIT_BYTES = 2**62


class ProcessStat(NamedTuple):
    """The first fields of ``/proc/PID/stat``."""

    name: str
    state: str
    parent: int
    group: int


class GroupMemory(NamedTuple):
    """What a memory control group reports.

    Attributes:
        limit_bytes: Its limit; ``None`` for no limit.
        oom_kills: Number of its processes that the kernel killed for memory; ``None`` if unknown.
    """

    limit_bytes: int | None = None
    oom_kills: int | None = None


def read_text(path: Path) -> str:
    """Return a file's text, ``""`` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def pids(root: Path = ROOT) -> list[int]:
    """Return the ids of all processes that can be seen."""
    return [int(folder.name) for folder in (root / "proc").glob("[0-9]*")]


def process_stat(pid: int, root: Path = ROOT) -> ProcessStat | None:
    """Return name, state, parent and process group of a process; ``None`` if it is gone."""
    # The name is in parentheses and may itself hold parentheses and spaces: the last one ends it.
    name, _, rest = read_text(root / f"proc/{pid}/stat").partition("(")[2].rpartition(")")
    try:
        state, parent, group = rest.split()[:3]
        return ProcessStat(name, state, int(parent), int(group))
    except ValueError:
        return None


def owner(pid: int, root: Path = ROOT) -> int | None:
    """Return the id of the user that a process belongs to; ``None`` if it is gone."""
    with suppress(OSError):
        return (root / f"proc/{pid}").stat().st_uid
    return None


def state_of(pid: int, root: Path = ROOT) -> str:
    """Return the state letter of a process (``R``, ``S``, ``D``, ``T``, …), ``""`` if it is gone."""
    found = process_stat(pid, root)
    return found.state if found else ""


def is_stopped(pid: int, root: Path = ROOT) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    return state_of(pid, root) in (STOPPED, TRACED)


def children() -> list[int]:
    """Return the process ids of this process's children, zombies included."""
    found: list[int] = []
    for task in (ROOT / "proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except ProcessLookupError:
            continue  # a thread that has just ended
        except FileNotFoundError:
            return children_by_scan()
    return found


def children_by_scan() -> list[int]:
    """Do the same on kernels without CONFIG_PROC_CHILDREN: look at the parent of every process."""
    me = os.getpid()
    return [pid for pid in pids() if (found := process_stat(pid)) and found.parent == me]


def group_alive(group: int) -> bool:
    """Whether a process group has a member that is not a zombie."""
    return any((found := process_stat(pid)) and found.group == group and found.state not in ENDED for pid in pids())


def thread_count() -> int:
    """Return the number of threads of this process."""
    return len(list((ROOT / "proc/self/task").iterdir()))


def environ_has(pid: int, entry: str) -> bool:
    """Whether a process was started with the variable ``entry`` (``"NAME=value"``) in its environment."""
    with suppress(OSError):
        return os.fsencode(entry) in (ROOT / f"proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def resident_bytes(pid: int, root: Path = ROOT) -> int | None:
    """Return the resident memory of a process; ``None`` if it is gone, or a zombie, which has none."""
    try:
        return int(read_text(root / f"proc/{pid}/statm").split()[1]) * _PAGE_BYTES or None
    except (IndexError, ValueError):
        return None


def meminfo_bytes(name: str, root: Path = ROOT) -> int | None:
    """Return an entry of ``/proc/meminfo``, such as ``MemAvailable`` or ``MemTotal``."""
    kib = _field(root / "proc/meminfo", f"{name}:")
    return None if kib is None else kib * 1024


def machine_oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes the kernel has killed for memory since it booted, in all groups."""
    return _field(root / "proc/vmstat", "oom_kill")


def cpu_model(root: Path = ROOT) -> str | None:
    """Return the processor's name."""
    lines = read_text(root / "proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def boot_id(root: Path = ROOT) -> str:
    """Return the id of this boot, the same in all containers of a machine; ``""`` if there is none."""
    return read_text(root / "proc/sys/kernel/random/boot_id")


def nvidia_gpus(root: Path = ROOT) -> int:
    """Return the number of GPUs that NVIDIA's driver lists."""
    folder = root / "proc/driver/nvidia/gpus"
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def memory_group(pid: int, root: Path = ROOT) -> Path | None:
    """Return the folder of a process's memory control group: version 1's own hierarchy, else version 2's.

    Must be called while the process lives.
    """
    found = None
    for controllers, path in _groups(str(pid), root):
        relative = path.lstrip("/")
        if "memory" in controllers:
            return root / "sys/fs/cgroup/memory" / relative
        if not controllers:
            mounts = (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified")
            found = next((mount / relative for mount in mounts if (mount / "cgroup.controllers").exists()), None)
    return found


def group_memory(folder: Path | None) -> GroupMemory:
    """Return what a memory control group reports; nothing for ``None``.

    Args:
        folder: What :func:`memory_group` returned; its processes may have ended since.
    """
    if folder is None:
        return GroupMemory()
    kills = _field(folder / "memory.events", "oom_kill")
    if kills is None:
        kills = _field(folder / "memory.oom_control", "oom_kill")
    limits = (read_text(folder / name).strip() for name in ("memory.max", "memory.limit_in_bytes"))
    limit = next((int(text) for text in limits if text.isdecimal()), None)
    return GroupMemory(limit if limit is not None and limit < _NO_LIMIT_BYTES else None, kills)


def container_memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Return the limit of the topmost visible memory control group: in a container, the container's."""
    top = root / "sys/fs/cgroup"
    return group_memory(top).limit_bytes or group_memory(top / "memory").limit_bytes


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the smallest CPU quota, in cores, of this process's control group and those above it."""
    return min(_cpu_quotas(root), default=None)


def _cpu_quotas(root: Path) -> Iterator[float]:
    top = root / "sys/fs/cgroup"
    for controllers, path in _groups("self", root):
        if not controllers:
            for mount in (top, top / "unified"):
                yield from filter(None, map(_quota_v2, _group_folders(mount, path)))
        elif "cpu" in controllers:
            for mount in (top / "cpu", top / ",".join(controllers)):
                yield from filter(None, map(_quota_v1, _group_folders(mount, path)))


def _groups(pid: str, root: Path) -> Iterator[tuple[list[str], str]]:
    """Yield (controllers, path) of each control group of a process; version 2 has no controllers here."""
    for line in read_text(root / f"proc/{pid}/cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        yield controllers.split(",") if controllers else [], path


def _group_folders(mount: Path, path: str) -> list[Path]:
    # A container sees its own group as the mount's root, while /proc may give the host's path: folders that do not
    # exist simply have no quota. ".." stands for a group outside of what is visible.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    return _ratio(read_text(folder / "cpu.cfs_quota_us").strip(), read_text(folder / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    """Return quota / period; ``None`` for no quota ("max", -1) or unreadable text."""
    if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None


def _field(path: Path, name: str) -> int | None:
    """The number behind a name in a file of ``name number`` lines."""
    for line in read_text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
