"""Prepared views of the shared memory, so that a call makes no array and computes no offset."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfmp.distribute.shm.segment import LINE_BYTES, Segment, round_up

DTYPES: dict[np.dtype[Any], int] = {np.dtype(np.float32): 1, np.dtype(np.float64): 2}
"""Element types that can be summed, and their code in a signature."""
_CODE_BITS = 4
_BROADCAST = 4
"""Set in the code of a broadcast."""

# Below, the second barrier costs more than the additions it saves. Measured on two cores, the sum left where it lies:
# with two ranks about even at 32,000 float32, at 100,000 26 µs against 58; with four even at 20,000, at 100,000 180 µs
# against 260.
_SHARE_FROM_BYTES = 128 * 1024


def signature(length: int, dtype: np.dtype[Any], *, broadcast: bool = False) -> int:
    """Return a call's kind, length and element type as one word, never 0."""
    return length << _CODE_BITS | DTYPES[dtype] | (_BROADCAST if broadcast else 0)


def describe(word: int) -> str:
    """Return what a rank called, from its signature."""
    names = {code: dtype.name for dtype, code in DTYPES.items()}
    call = "broadcast" if word & _BROADCAST else "all_reduce"
    return f"{call} of {word >> _CODE_BITS} {names.get(word & _BROADCAST - 1, 'unknown')}"


def shares_work(size: int, vector_bytes: int) -> bool:
    """Tell whether each rank sums a share and all collect the shares, or each rank sums everything.

    The result has the same bits either way. A function of what all ranks agree on, so that all choose alike.
    """
    return size > 1 and vector_bytes >= _SHARE_FROM_BYTES


class PieceViews:
    """The views for pieces of one length and element type. Pairs are indexed by turn, 0 or 1.

    Attributes:
        mine: This rank's slots, [length].
        first: Rank 0's slots, [length], read-only.
        slots: All ranks' slots in rank order, each [length].
        shared: Whether each rank sums a share.
        shares: All ranks' slots, cut to this rank's share.
        result_shares: The shared results, cut to this rank's share.
        results: The shared results, [length], read-only.
    """

    def __init__(self, segment: Segment, rank: int, length: int, dtype: np.dtype[Any]) -> None:
        size = segment.layout.size
        self.slots = [[segment.slot(turn, rank, length, dtype) for rank in range(size)] for turn in (0, 1)]
        self.mine = [slots[rank] for slots in self.slots]
        self.first = [read_only(slots[0]) for slots in self.slots]
        self.shared = shares_work(size, length * dtype.itemsize)
        # Whole cache lines, so that no two ranks write to one line.
        step = round_up(-(-length // size), LINE_BYTES // dtype.itemsize)
        share = slice(min(rank * step, length), min((rank + 1) * step, length))
        self.shares = [[slot[share] for slot in slots] for slots in self.slots]
        results = [segment.result(turn, length, dtype) for turn in (0, 1)]
        self.result_shares = [result[share] for result in results]
        self.results = [read_only(result) for result in results]


class VectorViews:
    """What calls of one length and element type need.

    Attributes:
        signature: A sum as one word.
        broadcast_signature: A broadcast as one word.
        pieces: What is summed at once: the place in the vector (``None``: all of it) and its views.
    """

    def __init__(self, segment: Segment, rank: int, length: int, dtype: np.dtype[Any]) -> None:
        self.signature = signature(length, dtype)
        self.broadcast_signature = signature(length, dtype, broadcast=True)
        self._length = length
        self._dtype = dtype
        longest = segment.layout.slot_bytes // dtype.itemsize
        whole = PieceViews(segment, rank, min(length, longest), dtype)
        self.pieces: list[tuple[slice | None, PieceViews]] = [(None, whole)]
        if length > longest:
            count, rest = divmod(length, longest)
            self.pieces = [(slice(i * longest, (i + 1) * longest), whole) for i in range(count)]
            if rest:
                self.pieces.append((slice(length - rest, length), PieceViews(segment, rank, rest, dtype)))
        # A sum that all ranks made together in one piece is handed out where it lies.
        self._stays = length <= longest and whole.shared
        self._outputs: list[NDArray[Any]] = []
        self._returned = whole.results if self._stays else []

    def output(self, turn: int) -> NDArray[Any] | None:
        """Return where the sum goes if the caller names no place; ``None``: it stays in the shared result."""
        if self._stays:
            return None
        if not self._outputs:
            self._outputs = [aligned_empty(self._length, self._dtype) for _ in range(2)]
            self._returned = [read_only(output) for output in self._outputs]
        return self._outputs[turn]

    def returned(self, turn: int) -> NDArray[Any]:
        """Return what the caller gets of :meth:`output`: read-only, as it may belong to all ranks."""
        return self._returned[turn]


def sum_in_rank_order(parts: list[NDArray[Any]], out: NDArray[Any]) -> None:
    """Add the vectors from rank 0 up, so that every rank gets the same bits."""
    if len(parts) == 1:
        np.copyto(out, parts[0])
        return
    np.add(parts[0], parts[1], out)
    for part in parts[2:]:
        np.add(out, part, out)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def aligned_empty(length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised vector that starts on a cache line."""
    raw = np.empty(length * dtype.itemsize + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + length * dtype.itemsize].view(dtype)


def check_out(out: NDArray[Any], vector: NDArray[Any], views: VectorViews) -> None:
    """Check that a sum of ``vector`` can be written to ``out``.

    Raises:
        ValueError: Another shape or type, read-only, or overlapping pieces that are still to be read.
    """
    if out.shape != vector.shape or out.dtype != vector.dtype or not out.flags.writeable:
        locked = "" if out.flags.writeable else ", read-only"
        raise ValueError(
            f"expected a writable out of {vector.shape} {vector.dtype}, received {out.shape} {out.dtype}{locked}"
        )
    same = out.ctypes.data == vector.ctypes.data and out.strides == vector.strides
    if len(views.pieces) > 1 and not same and np.may_share_memory(out, vector):
        raise ValueError("expected out to be the vector itself or apart from it, received an overlap")
