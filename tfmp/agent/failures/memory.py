"""The memory evidence of a worker that ended without a word: was it out of memory, or killed from outside?

While it lives its memory is sampled, and the control group it belongs to is noted: after its death /proc no longer
tells. Files are read below a root that is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfmp import procfs
from tfmp.events import WorkerEvent
from tfmp.procfs import GroupMemory
from tfmp.workers.group import WorkerGroup

Conclusion = Literal["out of memory", "killed from outside", "unknown"]

_SAMPLES = 120
_NEAR_LIMIT = 0.9
_LITTLE_FREE = 0.03
_MIB = 1024 * 1024


@dataclass(frozen=True)
class MemoryEvidence:
    """What is known of the memory of a dead worker.

    Args:
        curve: (seconds before death, resident bytes), oldest first.
        before: Its control group at its start.
        after: The same after its death.
        machine_oom_kills: Processes of the whole machine that the kernel killed meanwhile; ``None``: not known.
        available_bytes: Memory that the machine had left at the last sample.
        total_bytes: Memory of the machine.
    """

    curve: tuple[tuple[float, int], ...]
    before: GroupMemory
    after: GroupMemory
    machine_oom_kills: int | None
    available_bytes: int | None
    total_bytes: int | None

    @property
    def last_rss_bytes(self) -> int | None:
        """Resident memory at the last sample."""
        return self.curve[-1][1] if self.curve else None

    @property
    def conclusion(self) -> Conclusion:
        """What killed it, as far as the evidence goes.

        The counter of its own control group is proof. The machine's counter is not: the kernel may have killed
        anything; together with exhausted memory it is enough.
        """
        group_kills = _difference(self.before.oom_kills, self.after.oom_kills)
        if group_kills:
            return "out of memory"
        exhausted = self.near_limit or self._little_is_free
        if self.machine_oom_kills and exhausted:
            return "out of memory"
        quiet = group_kills == 0 or self.machine_oom_kills == 0
        if quiet and not exhausted and self.curve:
            return "killed from outside"
        return "unknown"

    @property
    def near_limit(self) -> bool:
        """Whether it held most of what its control group may hold."""
        limit, last = self.before.limit_bytes, self.last_rss_bytes
        return limit is not None and last is not None and last >= _NEAR_LIMIT * limit

    @property
    def _little_is_free(self) -> bool:
        free, total = self.available_bytes, self.total_bytes
        return free is not None and total is not None and free < _LITTLE_FREE * total

    def describe(self) -> list[str]:
        """Return the memory evidence as lines for a person."""
        lines = [f"cause of death: {self.conclusion}"]
        if self.curve:
            first, last = self.curve[0], self.curve[-1]
            peak = max(size for _, size in self.curve)
            lines.append(
                f"resident memory: {_mib(first[1])} → {_mib(last[1])} in its last {first[0] - last[0]:.0f} s, "
                f"peak {_mib(peak)}"
            )
        limit = "none" if self.before.limit_bytes is None else _mib(self.before.limit_bytes)
        kills = _difference(self.before.oom_kills, self.after.oom_kills)
        lines.append(f"memory limit of its control group: {limit}; out-of-memory kills: {_known(kills)}")
        if self.available_bytes is not None:
            lines.append(f"free memory of the machine: {_mib(self.available_bytes)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the memory evidence for ``failure.json``."""
        return {
            "conclusion": self.conclusion,
            "resident_curve": [{"seconds_before": round(t, 2), "bytes": size} for t, size in self.curve],
            "limit_bytes": self.before.limit_bytes,
            "oom_kills_before": self.before.oom_kills,
            "oom_kills_after": self.after.oom_kills,
            "machine_oom_kills": self.machine_oom_kills,
            "available_bytes": self.available_bytes,
        }


class MemoryWatch:
    """Samples the memory of the workers of one group.

    Args:
        root: Where ``proc`` and ``sys`` lie.
    """

    def __init__(self, root: Path = procfs.ROOT) -> None:
        self._root = root
        self._curves: dict[int, deque[tuple[float, int]]] = {}
        self._groups: dict[int, tuple[Path | None, GroupMemory]] = {}
        self._machine_kills = procfs.machine_oom_kills(root)
        self._available: int | None = None

    def on_event(self, rank: int, event: WorkerEvent, now_s: float) -> None:
        """Nothing: memory is seen from outside."""

    def on_tick(self, group: WorkerGroup, now_s: float) -> None:
        """Take a sample of each living worker."""
        self._available = procfs.meminfo_bytes("MemAvailable", self._root)
        for rank, pid in group.pids.items():
            if rank not in self._groups:
                folder = procfs.memory_group(pid, self._root)
                self._groups[rank] = (folder, procfs.group_memory(folder))
            if (size := procfs.resident_bytes(pid, self._root)) is not None:
                self._curves.setdefault(rank, deque(maxlen=_SAMPLES)).append((now_s, size))

    def evidence(self, rank: int) -> MemoryEvidence:
        """Return what is known of a worker that has died."""
        curve = self._curves.get(rank, ())
        end_s = curve[-1][0] if curve else 0.0
        folder, before = self._groups.get(rank, (None, GroupMemory()))
        return MemoryEvidence(
            curve=tuple((end_s - when, size) for when, size in curve),
            before=before,
            after=procfs.group_memory(folder),
            machine_oom_kills=_difference(self._machine_kills, procfs.machine_oom_kills(self._root)),
            available_bytes=self._available,
            total_bytes=procfs.meminfo_bytes("MemTotal", self._root),
        )


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _known(number: int | None) -> str:
    return "not known" if number is None else str(number)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.0f} MiB"
