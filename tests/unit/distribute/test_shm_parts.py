"""The small parts: layout, signatures, masks, futex, counters beyond 32 bits."""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.shm_support import Ranks, needs_futex
from tfmp.distribute.shm import JoinFailed, PeerLost, SharedMemoryGroup, futex, group, segment
from tfmp.distribute.shm.barrier import FutexBarrier
from tfmp.distribute.shm.errors import from_mask, to_mask
from tfmp.distribute.shm.handshake import Kind, read_refusal, receive, refuse
from tfmp.distribute.shm.peers import Peers
from tfmp.distribute.shm.segment import Layout, Segment, Word, create_segment, word_index
from tfmp.distribute.shm.views import PieceViews, describe, signature


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 63)))
def test_ranks_go_through_a_64_bit_mask(ranks: set[int]) -> None:
    assert from_mask(to_mask(ranks)) == sorted(ranks)
    assert to_mask(ranks) < 2**64


def test_signatures_tell_calls_lengths_and_types_apart() -> None:
    words = {
        signature(n, np.dtype(d), broadcast=b)
        for n in (0, 1, 50_000_000)
        for d in (np.float32, np.float64)
        for b in (False, True)
    }
    assert len(words | {0}) == 13
    assert max(words) < 2**64
    assert describe(signature(50_000_000, np.dtype(np.float32))) == "all_reduce of 50000000 float32"
    assert describe(signature(7, np.dtype(np.float64), broadcast=True)) == "broadcast of 7 float64"


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 64), lines=st.integers(1, 100))
def test_parts_of_the_segment_start_on_cache_lines_and_do_not_overlap(size: int, lines: int) -> None:
    layout = Layout(size, lines * 64)
    assert size * 64 <= layout.slots_offset
    assert layout.slots_offset % 4096 == 0
    assert layout.results_offset == layout.slots_offset + 2 * size * lines * 64
    assert layout.total_bytes == layout.results_offset + 2 * lines * 64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("size", "length"), [(2, 1), (3, 16), (3, 100), (8, 1000), (7, 113), (64, 512)])
def test_shares_cover_the_vector_once_in_whole_cache_lines(tmp_path: Path, dtype: type, size: int, length: int) -> None:
    layout = Layout(size, 8192)
    mapped = Segment(create_segment(layout, tmp_path), layout)
    base = mapped.result(0, length, np.dtype(dtype)).ctypes.data
    starts, covered = [], 0
    for rank in range(size):
        share = PieceViews(mapped, rank, length, np.dtype(dtype)).result_shares[0]
        if len(share):
            starts.append(share.ctypes.data)
            assert share.ctypes.data == base + covered
        covered += share.nbytes
    assert covered == length * np.dtype(dtype).itemsize
    assert [start % 64 for start in starts] == [0] * len(starts)


def test_slots_of_all_ranks_and_turns_are_apart(tmp_path: Path) -> None:
    layout = Layout(3, 128)
    mapped = Segment(create_segment(layout, tmp_path), layout)
    places = [mapped.slot(turn, rank, 32, np.dtype(np.float32)) for turn in (0, 1) for rank in range(3)]
    places += [mapped.result(turn, 32, np.dtype(np.float32)) for turn in (0, 1)]
    for number, place in enumerate(places, start=1):
        place[:] = number
    assert [set(place.tolist()) for place in places] == [{float(n)} for n in range(1, 9)]
    assert mapped.words.tolist() == [0] * 24


def test_memory_of_another_size_is_refused(tmp_path: Path) -> None:
    fd = create_segment(Layout(2, 128), tmp_path)
    with pytest.raises(JoinFailed, match="expected 5,248 bytes of shared memory, received 4,864"):
        Segment(fd, Layout(2, 192))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_more_memory_than_there_is_is_an_error_before_any_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "meminfo_bytes", lambda _: 12_000)
    monkeypatch.setattr(segment, "_anonymous_file", lambda *_: os.open("/dev/null", os.O_RDONLY))
    os.close(create_segment(Layout(2, 1024), tmp_path))
    what = "cannot get 12,544 bytes of shared memory for 2 ranks: 12,000 bytes of memory are available"
    with pytest.raises(JoinFailed, match=what):
        create_segment(Layout(2, 1408), tmp_path)


def test_a_barrier_that_all_have_reached_is_complete_whoever_has_left_since() -> None:
    pairs = {rank: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for rank in (1, 2)}
    words = memoryview(bytearray(3 * 64)).cast("Q")
    peers = Peers(0, 3, {rank: pair[0] for rank, pair in pairs.items()}, {1: 11, 2: 22}, words)
    peers.check(5)
    pairs[2][1].close()
    words[word_index(2, Word.SEQUENCE)] = 5
    with pytest.raises(PeerLost, match=r"rank 2 \(process 22\) is gone") as caught:
        peers.check(5)
    assert caught.value.rank == 2
    words[word_index(1, Word.SEQUENCE)] = 6
    peers.check(5)
    with pytest.raises(PeerLost):
        peers.check(6)
    peers.close()
    pairs[1][1].close()


def test_the_last_words_of_a_rank_are_heard_though_it_left_ours_unread() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(Kind.ARRIVED.value)
    refuse(theirs, "rank 3 is missing", [3])
    theirs.close()
    kind, body, fd = receive(ours)
    assert (kind, read_refusal(body), fd) == (Kind.REFUSAL, ("rank 3 is missing", [3]), None)
    assert receive(ours)[0] is Kind.END
    ours.close()


@needs_futex
def test_futex_sleeps_only_while_the_word_has_the_value() -> None:
    word = ctypes.c_uint64(2**32 + 5)
    sleep, wake = futex.sleeper(ctypes.addressof(word)), futex.waker(ctypes.addressof(word))
    began_s = time.monotonic()
    sleep(4)
    assert time.monotonic() - began_s < futex.TICK_S / 2
    sleep(2**32 + 5)
    assert futex.TICK_S * 0.9 < time.monotonic() - began_s < futex.TICK_S + 0.3
    timer = threading.Timer(0.02, wake)
    timer.start()
    began_s = time.monotonic()
    sleep(2**32 + 5)
    assert 0.015 < time.monotonic() - began_s < futex.TICK_S * 0.9
    timer.join()


@needs_futex
def test_a_wrong_address_is_an_error_and_no_busy_loop() -> None:
    with pytest.raises(OSError, match="futex"):
        futex.sleeper(8)(0)


@needs_futex
@pytest.mark.parametrize("start", [2**31 - 20, 2**32 - 20, 2**63 - 20])
def test_counters_go_on_where_32_bits_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    monkeypatch.setattr(group, "FutexBarrier", functools.partial(FutexBarrier, start=start))

    def body(member: SharedMemoryGroup) -> float:
        return sum(float(member.all_reduce(np.full(3, i + member.rank, np.float32))[0]) for i in range(60))

    with Ranks(tmp_path, 3, body, kind="futex") as ranks:
        assert ranks.values() == [float(sum(3 * i + 3 for i in range(60)))] * 3
