"""Sums over forked ranks: right to the last bit, the same on all ranks, whatever the barrier, length or pieces."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.shm_support import TOKEN, Ranks, meet, names, needs_futex
from tfmp.distribute.shm import CallMismatch, SharedMemoryGroup, views

LENGTHS = [0, 1, 2, 1023, 100_000]


@functools.cache
def vector(rank: int, length: int, dtype: Any = np.float32) -> np.ndarray:
    """A rank's vector; magnitudes so different that another order of adding gives other bits."""
    rng = np.random.default_rng((rank, length))
    made = np.ldexp(rng.random(length) - 0.5, rng.integers(-20, 20, length)).astype(dtype)
    made.flags.writeable = False
    return made


@functools.cache
def expected(size: int, length: int, dtype: Any = np.float32) -> np.ndarray:
    total = vector(0, length, dtype)
    for rank in range(1, size):
        total = total + vector(rank, length, dtype)
    return total


def test_another_order_of_adding_would_be_noticed() -> None:
    parts = [vector(rank, 1000) for rank in range(3)]
    assert (parts[0] + parts[1] + parts[2]).tobytes() != (parts[2] + parts[1] + parts[0]).tobytes()


@pytest.mark.parametrize(
    ("size", "kind"),
    [pytest.param(size, "futex", marks=needs_futex) for size in range(1, 9)]
    + [(size, "socket") for size in (1, 2, 3, 8)],
)
def test_every_rank_gets_the_sum_in_rank_order(tmp_path: Path, size: int, kind: str) -> None:
    cases = [(length, dtype) for dtype in (np.float32, np.float64) for length in LENGTHS]
    right = [expected(size, *case).tobytes() for case in cases]  # before the fork: the ranks need not make it again

    def body(group: SharedMemoryGroup) -> list[bool]:
        assert group.kind == kind
        sums = [group.all_reduce(vector(group.rank, *case)).tobytes() for case in cases]
        return [a == b for a, b in zip(sums, right, strict=True)]

    capacity_bytes = 1 << 20 if size < 5 else 1 << 18
    with Ranks(tmp_path, size, body, kind=kind, capacity_bytes=capacity_bytes) as ranks:
        assert ranks.values() == [[True] * len(cases)] * size


@pytest.mark.parametrize(("capacity_bytes", "kind"), [(1 << 20, "auto"), (4096, "auto"), (4096, "socket")])
def test_rank_0_hands_its_vector_to_all_between_sums(tmp_path: Path, capacity_bytes: int, kind: str) -> None:
    lengths = [0, 1, 1024, 1025, 100_000]

    def body(group: SharedMemoryGroup) -> list[bytes]:
        found = []
        for length in lengths:
            total = group.all_reduce(vector(group.rank, length))
            handed = group.broadcast(total * 2 if group.rank == 0 else total)
            assert not handed.flags.writeable or len(handed) * 4 > capacity_bytes
            found.append(handed.tobytes())
        return found

    with Ranks(tmp_path, 3, body, kind=kind, capacity_bytes=capacity_bytes) as ranks:
        assert ranks.values() == [[(expected(3, length) * 2).tobytes() for length in lengths]] * 3


def test_a_sum_and_a_broadcast_at_once_are_told_apart(tmp_path: Path) -> None:
    def body(group: SharedMemoryGroup) -> str:
        call = group.broadcast if group.rank == 1 else group.all_reduce
        with pytest.raises(CallMismatch) as caught:
            call(np.ones(5, np.float32))
        return caught.value.what

    with Ranks(tmp_path, 3, body) as ranks:
        assert set(ranks.values()) == {
            "the ranks called different things: rank 0: all_reduce of 5 float32; rank 1: broadcast of 5 float32; "
            "rank 2: all_reduce of 5 float32"
        }


@pytest.mark.parametrize(("capacity_bytes", "kind"), [(1, "auto"), (4096, "auto"), (200_000, "auto"), (4096, "socket")])
def test_a_vector_longer_than_a_slot_goes_in_pieces(tmp_path: Path, capacity_bytes: int, kind: str) -> None:
    lengths = [0, 15, 16, 17, 1024, 1025, 5000] + [120_000] * (capacity_bytes > 1)

    def body(group: SharedMemoryGroup) -> list[bytes]:
        found = []
        for length in lengths:
            given = vector(group.rank, length).copy()
            found.append(group.all_reduce(given).tobytes())
            assert group.all_reduce(given, out=given) is given
            found.append(given.tobytes())
        return found

    with Ranks(tmp_path, 3, body, kind=kind, capacity_bytes=capacity_bytes) as ranks:
        values = ranks.values()
    right = [expected(3, length).tobytes() for length in lengths for _ in range(2)]
    assert [value == right for value in values] == [True] * 3


def test_both_ways_of_sharing_the_work_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: SharedMemoryGroup) -> bytes:
        return group.all_reduce(vector(group.rank, 10_001)).tobytes()

    results = set()
    for from_bytes in (0, 1 << 40):
        monkeypatch.setattr(views, "_SHARE_FROM_BYTES", from_bytes)
        with Ranks(tmp_path, 4, body) as ranks:
            results.update(ranks.values())
    assert results == {expected(4, 10_001).tobytes()}


def test_a_result_lasts_until_the_next_but_one_call(tmp_path: Path) -> None:
    """Whatever comes between: another length, a sum in pieces, a sum to another place."""
    lengths = [100, 60_000, 100, 300_000, 60_000, 60_000, 100, 100, 300_000, 300_000]

    def body(group: SharedMemoryGroup) -> list[bool]:
        previous: tuple[np.ndarray, np.ndarray] | None = None
        intact = []
        for number, length in enumerate(lengths * 2):
            scale = np.float32(2**number)  # exact, and another sum in each call
            given = vector(group.rank, length) * scale
            out = np.empty_like(given) if number % 5 == 4 else None
            result = group.all_reduce(given, out=out)
            if previous is not None:
                intact.append(previous[0].tobytes() == previous[1].tobytes())
            previous = (result, expected(3, length) * scale)
        return intact

    with Ranks(tmp_path, 3, body, capacity_bytes=1 << 18) as ranks:
        assert ranks.values() == [[True] * (2 * len(lengths) - 1)] * 3


def test_a_result_is_read_only_aligned_and_outlives_the_group(tmp_path: Path) -> None:
    kept = []

    def body(group: SharedMemoryGroup) -> tuple[bool, bool, int]:
        small, large = (group.all_reduce(np.ones(length)) for length in (10, 100_000))
        kept.append(large)
        meet(group)
        group.close()
        writable = small.flags.writeable or large.flags.writeable
        return writable, bool((large == 2.0).all()), small.ctypes.data % 64 + large.ctypes.data % 64

    with Ranks(tmp_path, 2, body) as ranks:
        assert ranks.values() == [(False, True, 0)] * 2


def test_infinities_and_strict_settings_of_numpy_do_not_end_a_call(tmp_path: Path) -> None:
    def body(group: SharedMemoryGroup) -> list[str]:
        np.seterr(all="raise")
        return [
            str(x) for x in group.all_reduce(np.array([3e38, np.inf, -np.inf if group.rank else np.inf], np.float32))
        ]

    with Ranks(tmp_path, 2, body) as ranks:
        assert ranks.values() == [["inf", "inf", "nan"]] * 2


def test_strided_and_unaligned_vectors(tmp_path: Path) -> None:
    def body(group: SharedMemoryGroup) -> tuple[list[float], list[float]]:
        raw = np.zeros(41, np.uint8)
        unaligned = raw[1:].view(np.float32)
        unaligned[:] = np.arange(10)
        spread = np.zeros(20, np.float32)
        return group.all_reduce(np.arange(20, dtype=np.float32)[::2]).tolist(), group.all_reduce(
            unaligned, out=spread[::2]
        ).tolist()

    with Ranks(tmp_path, 2, body) as ranks:
        assert ranks.values() == [([4.0 * i for i in range(10)], [2.0 * i for i in range(10)])] * 2


@pytest.mark.parametrize(
    ("given", "out", "message"),
    [
        (np.zeros((2, 2), np.float32), None, "expected a vector of float32 or float64"),
        (np.zeros(3, np.int32), None, "expected a vector of float32 or float64"),
        (np.zeros(3, ">f4"), None, "expected a vector of float32 or float64"),
        (np.zeros(3), np.zeros(4), "expected a writable out"),
        (np.zeros(3), np.zeros(3, np.float32), "expected a writable out"),
        (np.zeros(3), np.broadcast_to(np.float64(0), 3), "read-only"),
        (np.zeros(101)[1:], None, "overlap"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused_and_the_group_goes_on(
    tmp_path: Path, given: np.ndarray, out: np.ndarray | None, message: str
) -> None:
    tmp_path.chmod(0o700)
    with SharedMemoryGroup.join(tmp_path, 0, 1, 64, token=TOKEN, timeout_s=1, spin=False) as group:
        if message == "overlap":
            assert given.base is not None
            out = given.base[:-1]
        with pytest.raises(ValueError, match=message):
            group.all_reduce(given, out=out)
        assert group.all_reduce(np.arange(3.0)).tolist() == [0.0, 1.0, 2.0]


def test_nothing_is_left_on_disk_or_in_dev_shm(tmp_path: Path) -> None:
    before = set(names("/dev/shm"))

    def body(group: SharedMemoryGroup) -> list[str]:
        return sorted(set(names("/dev/shm")) - before) + names(tmp_path / "group")

    with Ranks(tmp_path, 3, body) as ranks:
        found = ranks.values()
        # The memory is an anonymous file of the kernel's own, so a 64 MB /dev/shm is no limit.
        assert found == [[]] * 3
        assert names(ranks.folder) == []


def test_without_anonymous_memory_files_a_nameless_file_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")

    def body(group: SharedMemoryGroup) -> tuple[list[str], float]:
        return names(tmp_path / "group"), float(group.all_reduce(np.ones(100_000))[-1])

    with Ranks(tmp_path, 2, body) as ranks:
        assert ranks.values() == [([], 2.0)] * 2
