"""Memory evidence: what the kernel's files said before and after."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.agent.failures.memory import MemoryEvidence, MemoryWatch
from tfmp.procfs import GroupMemory

MIB = 1024 * 1024


def memory_evidence(
    *,
    limit: int | None = None,
    kills: tuple[int | None, int | None] = (0, 0),
    machine: int | None = 0,
    last: int = 100 * MIB,
    available: int = 8000 * MIB,
) -> MemoryEvidence:
    curve = ((1.0, 50 * MIB), (0.0, last))
    before, after = (GroupMemory(limit, count) for count in kills)
    return MemoryEvidence(curve, before, after, machine, available, 16000 * MIB)


@pytest.mark.parametrize(
    ("evidence", "conclusion"),
    [
        (memory_evidence(kills=(3, 4)), "out of memory"),
        (memory_evidence(kills=(3, 3), machine=1), "killed from outside"),
        (memory_evidence(), "killed from outside"),
        (memory_evidence(kills=(None, None), machine=1), "unknown"),
        (memory_evidence(kills=(None, None), machine=1, available=100 * MIB), "out of memory"),
        (memory_evidence(kills=(None, None), machine=0, available=100 * MIB), "unknown"),
        (memory_evidence(kills=(None, None), machine=None), "unknown"),
        (memory_evidence(kills=(0, 0), limit=110 * MIB), "unknown"),
        (memory_evidence(kills=(0, 0), limit=110 * MIB, machine=1), "out of memory"),
        (MemoryEvidence((), GroupMemory(), GroupMemory(), None, None, None), "unknown"),
    ],
)
def test_the_conclusion_goes_as_far_as_the_evidence(evidence: MemoryEvidence, conclusion: str) -> None:
    assert evidence.conclusion == conclusion
    assert evidence.describe()[0] == f"cause of death: {conclusion}"
    assert evidence.to_json()["conclusion"] == conclusion


def test_it_reads_well() -> None:
    assert memory_evidence(limit=400 * MIB, kills=(0, 1)).describe()[1:] == [
        "resident memory: 50 MiB → 100 MiB in its last 1 s, peak 100 MiB",
        "memory limit of its control group: 400 MiB; out-of-memory kills: 1",
        "free memory of the machine: 8,000 MiB",
    ]


class Machine:
    """A /proc and /sys with one process."""

    def __init__(self, root: Path, version: int) -> None:
        self.root, self.version = root, version
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 5\n")
        self.pages(10)
        if version == 2:
            self.write("proc/7/cgroup", "0::/job/step\n")
            self.write("sys/fs/cgroup/cgroup.controllers", "memory")
        else:
            self.write("proc/7/cgroup", "4:cpu:/other\n3:memory:/job/step\n0::/\n")
        self.limit("max" if version == 2 else "9223372036854771712")
        self.oom_kills(0)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def pages(self, resident: int) -> None:
        self.write("proc/7/statm", f"999 {resident} 3 1 0 4 0\n")

    @property
    def group(self) -> str:
        return "sys/fs/cgroup/job/step" if self.version == 2 else "sys/fs/cgroup/memory/job/step"

    def limit(self, text: str) -> None:
        self.write(f"{self.group}/{'memory.max' if self.version == 2 else 'memory.limit_in_bytes'}", text + "\n")

    def oom_kills(self, count: int) -> None:
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        self.write(f"{self.group}/{name}", f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")


def group(pids: Mapping[int, int]) -> Any:
    return SimpleNamespace(pids=pids)


@pytest.mark.parametrize("version", [1, 2])
def test_the_group_is_noted_while_the_process_lives(tmp_path: Path, version: int) -> None:
    machine = Machine(tmp_path, version)
    watch = MemoryWatch(tmp_path)
    for second in range(140):
        machine.pages(10 + second)
        watch.on_tick(group({3: 7}), float(second))
    (tmp_path / "proc/7/cgroup").unlink()
    (tmp_path / "proc/7/statm").unlink()
    watch.on_tick(group({}), 140.0)
    machine.oom_kills(1)
    found = watch.evidence(3)
    page = os.sysconf("SC_PAGE_SIZE")
    assert found.conclusion == "out of memory"
    assert found.before == GroupMemory(None, 0)
    assert found.after == GroupMemory(None, 1)
    assert found.last_rss_bytes == 149 * page
    assert found.curve[0] == (119.0, 30 * page)
    assert (found.machine_oom_kills, found.available_bytes) == (0, 900 * 1024)
    machine.limit(str(400 * MIB))
    assert MemoryWatch(tmp_path).evidence(9).conclusion == "unknown", "a worker nobody has seen"


def test_this_process_can_be_looked_at() -> None:
    watch = MemoryWatch()
    watch.on_tick(group({0: os.getpid()}), 0.0)
    assert (watch.evidence(0).last_rss_bytes or 0) > MIB
