"""Cores, CPU sets, NUMA nodes and GPUs, read from made-up machines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tfmp.errors import UsageError
from tfmp.planning.host import (
    Host,
    affinity_cpus,
    available_cores,
    choose_device,
    numa_nodes,
    oversubscribed,
    share_gpus,
    visible_gpus,
)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "5000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "rubbish\n"}, 16),
    ],
    ids=["no cgroup", "no quota", "2", "1.5", "0.05", "99", "unreadable"],
)
def test_the_quota_of_the_own_group_counts(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert available_cores(machine(tmp_path, files), affinity=16) == cores


@pytest.mark.parametrize(("outer", "inner"), [("300000 100000", "800000 100000"), ("800000 100000", "300000 100000")])
def test_the_smallest_quota_of_nested_groups_wins(tmp_path: Path, outer: str, inner: str) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b/c\n",
        "sys/fs/cgroup/a/cpu.max": outer,
        "sys/fs/cgroup/a/b/cpu.max": inner,
        "sys/fs/cgroup/a/b/c/cpu.max": "max 100000",
        "sys/fs/cgroup/other/cpu.max": "100000 100000",
    }
    assert available_cores(machine(tmp_path, files), affinity=16) == 3


@pytest.mark.parametrize("path", ["/docker/abc", "/../../x"])
def test_a_container_that_sees_the_hosts_path_still_finds_its_quota(tmp_path: Path, path: str) -> None:
    files = {"proc/self/cgroup": f"0::{path}\n", "sys/fs/cgroup/cpu.max": "400000 100000"}
    assert available_cores(machine(tmp_path, files), affinity=16) == 4


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1_groups_count_as_well(tmp_path: Path, mount: str) -> None:
    files = {
        "proc/self/cgroup": "12:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/docker/a\n",
        f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us": "-1\n",
        f"sys/fs/cgroup/{mount}/docker/a/cpu.cfs_quota_us": "250000\n",
        f"sys/fs/cgroup/{mount}/docker/a/cpu.cfs_period_us": "100000\n",
    }
    assert available_cores(machine(tmp_path, files), affinity=16) == 3


def test_affinity_below_the_quota_wins(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000"}
    assert available_cores(machine(tmp_path, files), affinity=1) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_the_real_affinity_is_asked(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        assert affinity_cpus() == (max(before),)
        assert available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_more_workers_than_cores_is_one_warning_with_both_numbers() -> None:
    assert oversubscribed(2, 8) == "8 workers share 2 cores: they will take turns, not run faster"
    assert oversubscribed(1, 2) == "2 workers share 1 core: they will take turns, not run faster"
    assert oversubscribed(2, 2) is None


def cpu_sets(
    cores: int, workers: int, cpus: Sequence[int] | None = None, nodes: tuple[frozenset[int], ...] = ()
) -> tuple[frozenset[int] | None, ...]:
    return Host(cores, tuple(range(cores) if cpus is None else cpus), numa_nodes=nodes).cpu_sets(workers)


def test_workers_are_pinned_only_beyond_one_a_core() -> None:
    assert cpu_sets(4, 4) == (None, None, None, None)
    assert cpu_sets(2, 3) == (frozenset({0}), frozenset({1}), frozenset({0}))
    assert cpu_sets(2, 3, cpus=(4, 7)) == (frozenset({4}), frozenset({7}), frozenset({4}))


def test_workers_stay_on_their_numa_node_in_proportion_to_its_cpus(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/node"
    for number, text in ((0, "0-3,8-11\n"), (1, "4-7\n"), (2, "\n"), (10, "12-13")):
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}" / "cpulist").write_text(text)
    (folder / "online").write_text("0-2")
    first, second = frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7})
    assert numa_nodes(range(12), tmp_path) == (first, second)
    assert numa_nodes((5, 12, 13), tmp_path) == (frozenset({5}), frozenset({12, 13}))
    assert numa_nodes((0, 1), tmp_path / "nowhere") == ()
    assert cpu_sets(12, 3, range(12), (first, second)) == (first, first, second)
    halves = (frozenset({0, 1}), frozenset({2, 3}))
    assert cpu_sets(4, 3, range(4), halves) == (halves[0], halves[0], halves[1])
    assert cpu_sets(12, 6, range(12), (first, second)) == (first,) * 4 + (second,) * 2
    assert cpu_sets(12, 12, range(12), (first, second)).count(second) == 4
    assert cpu_sets(12, 1, range(12), (first, second)) == (None,), "fewer workers than nodes: each may want more CPUs"
    assert cpu_sets(8, 2, range(8), (first,)) == (None, None)
    assert cpu_sets(2, 2, range(12), (first, second)) == (None, None), "a quota is the limit"
    assert cpu_sets(12, 24, range(12), (first, second))[:2] == (frozenset({0}), frozenset({1}))


def test_under_a_quota_nobody_is_pinned() -> None:
    assert cpu_sets(2, 3, cpus=range(16)) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("4,7", ("4", "7")),
        (" 4 , 7 ", ("4", "7")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-8932f937-d72c,GPU-1111", ("GPU-8932f937-d72c", "GPU-1111")),
        ("MIG-GPU-8932f937/1/0", ("MIG-GPU-8932f937/1/0",)),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(tmp_path: Path, value: str, gpus: tuple[str, ...]) -> None:
    machine(tmp_path, {f"proc/driver/nvidia/gpus/{i}/information": "" for i in range(3)})
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, tmp_path) == gpus


def test_without_the_variable_the_drivers_gpus_count(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path) == ()
    machine(tmp_path, {f"proc/driver/nvidia/gpus/0000:0{i}:00.0/information": "" for i in range(3)})
    assert visible_gpus({}, tmp_path) == ("0", "1", "2")


def test_a_gpu_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected each GPU once, received 4 twice"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "4,4"}, tmp_path)


def test_gpus_are_shared_in_equal_contiguous_parts() -> None:
    assert share_gpus(("4", "7"), 2) == (("4",), ("7",))
    assert share_gpus(("0", "1", "2", "3"), 2) == (("0", "1"), ("2", "3"))
    assert share_gpus(("4", "7"), 1) == (("4", "7"),)
    assert share_gpus((), 2) == ((), ())


@pytest.mark.parametrize(("gpus", "workers", "text"), [(2, 4, "2 GPUs for 4"), (1, 2, "1 GPU for 2"), (3, 2, "3 GPUs")])
def test_gpus_that_do_not_divide_are_refused_with_the_way_out(gpus: int, workers: int, text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        share_gpus(tuple(map(str, range(gpus))), workers)
    assert caught.value.hint == f"--workers {gpus}, or without GPUs: --set cluster.device=cpu"
    with pytest.raises(UsageError) as caught:
        share_gpus(("0", "1"), 4, workers_option="-n", cpu_option="CUDA_VISIBLE_DEVICES=''")
    assert caught.value.hint == "-n 2, or without GPUs: CUDA_VISIBLE_DEVICES=''"


@pytest.mark.parametrize(("gpus", "devices"), [((), ("cpu", "cpu")), (("0",), ("gpu", "cpu"))])
def test_gpus_are_taken_where_there_are_any(gpus: tuple[str, ...], devices: tuple[str, str]) -> None:
    assert (choose_device("auto", gpus), choose_device("cpu", gpus)) == devices


def test_a_gpu_that_is_asked_for_must_be_there() -> None:
    assert choose_device("gpu", ("0",)) == "gpu"
    with pytest.raises(UsageError, match="received none: no GPU is visible"):
        choose_device("gpu", ())


def test_planning_needs_neither_numpy_nor_tensorflow() -> None:
    code = (
        "import sys, tfmp.planning.plan, tfmp.planning.task, tfmp.data.cache; "
        "print([name for name in ('numpy', 'tensorflow', 'keras', 'pydantic', 'filelock') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30).stdout == "[]\n"
