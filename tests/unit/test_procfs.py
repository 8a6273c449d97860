"""Processes, memory and control groups, read from made-up trees and of this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfmp import procfs
from tfmp.procfs import GroupMemory, ProcessStat


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_name_with_parentheses_does_not_shift_the_fields(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/7/stat": "7 (a) b (c) T 1 6 5 0\n", "proc/8/stat": "8 (short) S\n", "proc/self/stat": "x"})
    assert procfs.process_stat(7, tmp_path) == ProcessStat("a) b (c", "T", 1, 6)
    assert procfs.process_stat(8, tmp_path) is None
    assert (procfs.state_of(7, tmp_path), procfs.state_of(9, tmp_path)) == ("T", "")
    assert sorted(procfs.pids(tmp_path)) == [7, 8]
    assert procfs.owner(7, tmp_path) == os.getuid()
    assert procfs.owner(9, tmp_path) is None


@pytest.mark.parametrize(("state", "stopped"), [("T", True), ("t", True), ("S", False), ("Z", False)])
def test_a_signal_and_a_debugger_stop_a_process(tmp_path: Path, state: str, stopped: bool) -> None:
    assert procfs.is_stopped(7, tree(tmp_path, {"proc/7/stat": f"7 (x) {state} 1 7"})) is stopped


def test_this_process() -> None:
    assert procfs.state_of(os.getpid()) == "R"
    assert procfs.group_alive(os.getpgrp())
    assert procfs.thread_count() >= 1
    assert (procfs.resident_bytes(os.getpid()) or 0) > 2**20
    assert (
        2**20 < (procfs.meminfo_bytes("MemAvailable") or 0) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )


def test_the_machine(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1048576 kB\n",
            "proc/vmstat": "nr_free_pages 1\noom_kill 5\n",
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: A: B\n",
            "proc/7/statm": "999 3 1\n",
            "proc/8/statm": "0 0 0\n",
        },
    )
    assert procfs.meminfo_bytes("MemAvailable", tmp_path) == 2**30
    assert procfs.meminfo_bytes("Mem", tmp_path) is None
    assert procfs.machine_oom_kills(tmp_path) == 5
    assert procfs.cpu_model(tmp_path) == "A: B"
    assert procfs.resident_bytes(7, tmp_path) == 3 * os.sysconf("SC_PAGE_SIZE")
    assert procfs.resident_bytes(8, tmp_path) is None, "a zombie"


@pytest.mark.parametrize(
    ("files", "folder"),
    [
        ({}, None),
        ({"proc/7/cgroup": "0::/a\n"}, None),
        ({"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/cgroup.controllers": "memory"}, "sys/fs/cgroup/a"),
        ({"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/unified/cgroup.controllers": ""}, "sys/fs/cgroup/unified/a"),
        ({"proc/7/cgroup": "4:cpu:/b\n3:memory,x:/a\n0::/c\n"}, "sys/fs/cgroup/memory/a"),
    ],
    ids=["none", "no hierarchy", "2", "2 beside 1", "1"],
)
def test_the_memory_group_of_a_process(tmp_path: Path, files: dict[str, str], folder: str | None) -> None:
    assert procfs.memory_group(7, tree(tmp_path, files)) == (None if folder is None else tmp_path / folder)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, GroupMemory()),
        ({"memory.max": "max\n", "memory.events": "oom 2\noom_kill 1\n"}, GroupMemory(None, 1)),
        ({"memory.max": "4096\n"}, GroupMemory(4096, None)),
        ({"memory.limit_in_bytes": "9223372036854771712\n", "memory.oom_control": "oom_kill 3"}, GroupMemory(None, 3)),
        ({"memory.limit_in_bytes": "4096\n"}, GroupMemory(4096, None)),
    ],
)
def test_limit_and_kills_of_a_memory_group(tmp_path: Path, files: dict[str, str], found: GroupMemory) -> None:
    assert procfs.group_memory(tree(tmp_path, files)) == found


def test_the_limit_of_a_container(tmp_path: Path) -> None:
    assert procfs.container_memory_limit_bytes(tmp_path) is None
    tree(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4096"})
    assert procfs.container_memory_limit_bytes(tmp_path) == 4096
    tree(tmp_path, {"sys/fs/cgroup/memory.max": "512"})
    assert procfs.container_memory_limit_bytes(tmp_path) == 512
