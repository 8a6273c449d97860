"""The memory that the ranks share: who has arrived, each rank's slot, and the shared result.

Layout, all parts starting on a cache line (64 bytes), the slots on a page::

    one line a rank    eight 64-bit words, written by that rank alone: see Word
    slots              2 turns × size ranks × slot_bytes
    results            2 turns × slot_bytes
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfmp.distribute.shm.errors import JoinFailed
from tfmp.procfs import meminfo_bytes

MAX_RANKS = 64
LINE_BYTES = 64
WORDS_A_LINE = 8
_PAGE_BYTES = 4096


class Word(IntEnum):
    """The words of a rank's line. A second signature follows: one for each turn."""

    SEQUENCE = 0  # barriers this rank has arrived at; 64 bits, so it never wraps
    STATE = 1
    BLAME = 2  # the ranks that made it give up, a bit each
    SIGNATURE = 3


class State(IntEnum):
    """What a rank says about itself before it goes."""

    TAKES_PART = 0
    CLOSED = 1
    LOST_A_PEER = 2


def word_index(rank: int, word: int) -> int:
    """Return the index of a rank's word among all words of the segment."""
    return rank * WORDS_A_LINE + word


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Layout(NamedTuple):
    """Where things lie in the segment. ``slot_bytes`` is a multiple of 64."""

    size: int
    slot_bytes: int

    @property
    def slots_offset(self) -> int:
        return round_up(self.size * LINE_BYTES, _PAGE_BYTES)

    @property
    def results_offset(self) -> int:
        return self.slots_offset + 2 * self.size * self.slot_bytes

    @property
    def total_bytes(self) -> int:
        return self.results_offset + 2 * self.slot_bytes


def create_segment(layout: Layout, directory: Path) -> int:
    """Return the descriptor of new, zeroed shared memory that has no name: it goes with its last user.

    An anonymous memory file is not bounded by the size of ``/dev/shm`` (64 MB in a Docker container by default). Where
    the system has none, it is a file in ``directory`` without a name.

    Raises:
        JoinFailed: Not enough memory, or disk.
    """
    available_bytes = meminfo_bytes("MemAvailable")
    # Asked first: the kernel would rather kill a process of its choice than refuse.
    if available_bytes is not None and layout.total_bytes > available_bytes:
        raise _too_much(layout, f"{available_bytes:,} bytes of memory are available")
    try:
        return _anonymous_file(layout.total_bytes, directory)
    except OSError as error:
        raise _too_much(layout, str(error.strerror)) from error


def _too_much(layout: Layout, reason: str) -> JoinFailed:
    return JoinFailed(
        f"cannot get {layout.total_bytes:,} bytes of shared memory for {layout.size} ranks: {reason}",
        hint="give the job more memory, or use fewer workers",
    )


def _anonymous_file(length_bytes: int, directory: Path) -> int:
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # refused by a sandbox, or by the sysctl vm.memfd_noexec
            fd = os.memfd_create("tfmp-collective", os.MFD_CLOEXEC)
            os.ftruncate(fd, length_bytes)
            return fd
    with tempfile.TemporaryFile(dir=directory) as file:
        # Taken now, so that a full disk is an error here and not a bus error in the middle of a sum.
        os.posix_fallocate(file.fileno(), 0, length_bytes)
        return os.dup(file.fileno())


class Segment:
    """The segment mapped into this process.

    The mapping lasts as long as anything refers to it: arrays that were handed out stay readable after the group is
    closed.

    Args:
        fd: Descriptor of the memory; closed here.
        layout: Where things lie; the same on every rank.

    Raises:
        JoinFailed: The memory has another size than the layout's.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        try:
            found_bytes = os.fstat(fd).st_size
            if found_bytes != layout.total_bytes:
                raise JoinFailed(f"expected {layout.total_bytes:,} bytes of shared memory, received {found_bytes:,}")
            # Populated: otherwise the first sums would pay for a page fault every 4 KB.
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._map = mmap.mmap(fd, layout.total_bytes, flags)
        except OSError as error:
            raise JoinFailed(f"cannot map {layout.total_bytes:,} bytes of shared memory: {error.strerror}") from error
        finally:
            os.close(fd)
        self.layout = layout
        self.words: memoryview[int] = memoryview(self._map)[: layout.size * LINE_BYTES].cast("Q")
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    def slot(self, turn: int, rank: int, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the first ``length`` elements of a rank's slot, for ``turn`` 0 or 1."""
        layout = self.layout
        offset = layout.slots_offset + (turn * layout.size + rank) * layout.slot_bytes
        return np.frombuffer(self._map, dtype, length, offset)

    def result(self, turn: int, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the first ``length`` elements of the shared result, for ``turn`` 0 or 1."""
        return np.frombuffer(self._map, dtype, length, self.layout.results_offset + turn * self.layout.slot_bytes)
