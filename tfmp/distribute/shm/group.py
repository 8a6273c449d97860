"""The group: what a worker calls to sum its vectors with those of the other ranks."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfmp.distribute.shm.barrier import Barrier, BarrierKind, FutexBarrier, SocketBarrier, resolve_kind
from tfmp.distribute.shm.errors import CallMismatch, GroupError, PeerLost
from tfmp.distribute.shm.handshake import Terms
from tfmp.distribute.shm.join import connect_ranks
from tfmp.distribute.shm.peers import Peers
from tfmp.distribute.shm.segment import (
    LINE_BYTES,
    MAX_RANKS,
    Layout,
    Segment,
    State,
    Word,
    create_segment,
    round_up,
    word_index,
)
from tfmp.distribute.shm.views import (
    DTYPES,
    PieceViews,
    VectorViews,
    check_out,
    describe,
    sum_in_rank_order,
)

DEFAULT_CAPACITY_BYTES = 1 << 20
_REMEMBERED_LENGTHS = 32


class SharedMemoryGroup:
    """The worker processes of one host, summing vectors through memory they share.

    All ranks must make the same calls in the same order. A call that fails leaves the group unusable: close it and
    join a new one. One thread at a time may call; a second one gets an error. A process forked from a worker does not
    belong to the group.

    Subnormal numbers: TensorFlow's threads flush them to zero, Python's own do not. Call from the same kind of thread
    on all ranks and in all runs that are to have the same bits.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        kind: The barrier in use, ``futex`` or ``socket``.
    """

    def __init__(self, rank: int, kind: BarrierKind, segment: Segment, peers: Peers, barrier: Barrier) -> None:
        self.rank = rank
        self.size = segment.layout.size
        self.kind = kind
        self._segment = segment
        self._peers = peers
        self._barrier = barrier
        self._words = segment.words
        self._turn = 0  # of the slots: changes with every piece
        self._calls = 0  # its last bit is the turn of the results
        self._own_signature = word_index(rank, Word.SIGNATURE)
        self._other_signatures = [word_index(other, Word.SIGNATURE) for other in peers.sockets]
        self._views: dict[tuple[tuple[int, ...], np.dtype[Any]], VectorViews] = {}
        self._guard = _CallGuard(f"rank {rank} of {self.size}")
        self._closed = False
        _groups.add(self)

    @classmethod
    def join(
        cls,
        directory: Path,
        rank: int,
        size: int,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        *,
        token: bytes,
        timeout_s: float,
        spin: bool,
        kind: Literal["auto"] | BarrierKind = "auto",
    ) -> SharedMemoryGroup:
        """Join the other ranks and share memory with them. All ranks call it, in any order.

        A rank that gives up tells all ranks it is connected to, so that they give up as well. One that comes later
        finds nobody and waits its time.

        Args:
            directory: A folder for this group alone, mode 0700, on a file system of this host. Empty again afterwards.
            rank: This process's rank, from 0.
            size: Number of ranks, 1 to 64.
            capacity_bytes: What one rank can hand over at once; a longer vector goes in pieces of that size. The
                memory taken is about ``2 * (size + 1)`` times as much.
            token: A secret that the ranks share and nobody else knows.
            timeout_s: How long to wait for late ranks.
            spin: Whether to look for some microseconds before sleeping in a barrier. Only where every rank has a core
                of its own: elsewhere it delays the rank that is waited for.
            kind: The barrier: ``futex``, ``socket``, or ``auto`` for futex where it is right (x86-64).

        Raises:
            JoinFailed: Ranks are missing (named), left, have another token, or disagree on size, capacity or kind.
            UsageError: The folder cannot be used.
            ValueError: An argument is out of range.
        """
        if not 1 <= size <= MAX_RANKS or not 0 <= rank < size:
            raise ValueError(f"expected 1 to {MAX_RANKS} ranks and a rank below that, received rank {rank} of {size}")
        if capacity_bytes < 1 or not token:
            raise ValueError("expected a capacity of at least 1 byte and a token that is not empty")
        layout = Layout(size, round_up(capacity_bytes, LINE_BYTES))
        resolved = resolve_kind(kind)
        segment_fd = create_segment(layout, directory) if rank == 0 else None
        try:
            mesh = connect_ranks(
                directory,
                rank,
                Terms(size, layout.slot_bytes, resolved),
                token=token,
                timeout_s=timeout_s,
                segment_fd=segment_fd,
            )
        except BaseException:
            if segment_fd is not None:
                os.close(segment_fd)
            raise
        try:
            segment = Segment(mesh.segment_fd, layout)
        except BaseException:
            for peer in mesh.sockets.values():
                peer.close()
            raise
        peers = Peers(rank, size, mesh.sockets, mesh.pids, segment.words)
        barrier: Barrier = (
            FutexBarrier(segment, peers, spin=spin) if resolved == "futex" else SocketBarrier(segment.words, peers)
        )
        return cls(rank, resolved, segment, peers, barrier)

    @property
    def peers(self) -> dict[int, int]:
        """The other ranks and their process ids."""
        return dict(self._peers.pids)

    def all_reduce(self, vector: NDArray[Any], *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Sum a vector over all ranks, in rank order: every rank gets the same bits.

        Args:
            vector: [length], float32 or float64, the same length and type on all ranks.
            out: Where to write the sum, [length], of the same type; may be ``vector`` itself.

        Returns:
            ``out``; without it a read-only vector that starts on a cache line and is **overwritten by the next but one
            call**. TensorFlow takes such a vector without copying it (``tf.numpy_function``): pass a copy or ``out``
            where the tensor lives longer.

        Raises:
            CallMismatch: The ranks called different things; all ranks raise it.
            PeerLost: A rank is gone; noticed within about 0.1 s.
            ValueError: The vector or ``out`` does not fit; nothing was sent.
        """
        views = self._views.get((vector.shape, vector.dtype)) or self._prepare(vector)
        if out is not None:
            check_out(out, vector, views)
        self._guard.enter()
        try:
            self._calls += 1
            turn = self._calls & 1
            target = views.output(turn) if out is None else out
            # Whatever the caller's settings: an overflow must not end one rank's call in the middle.
            with np.errstate(all="ignore"):
                for where, piece in views.pieces:
                    if where is None:
                        self._sum_piece(views.signature, piece, vector, target, turn)
                    else:
                        part = None if target is None else target[where]
                        self._sum_piece(views.signature, piece, vector[where], part, turn)
        except BaseException as error:
            self._fail(error)
            raise
        self._guard.leave()
        return views.returned(turn) if out is None else out

    def broadcast(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Hand rank 0's vector to all ranks.

        Args:
            vector: [length], float32 or float64, the same length and type on all ranks; above rank 0 its values do
                not matter.

        Returns:
            A read-only vector that is **overwritten by the next but one call**, as that of :meth:`all_reduce`.

        Raises:
            CallMismatch: The ranks called different things; all ranks raise it.
            PeerLost: A rank is gone; noticed within about 0.1 s.
            ValueError: The vector does not fit; nothing was sent.
        """
        views = self._views.get((vector.shape, vector.dtype)) or self._prepare(vector)
        self._guard.enter()
        try:
            self._calls += 1
            parts = []
            for where, piece in views.pieces:
                turn = self._turn = self._turn ^ 1
                if self.rank == 0:
                    np.copyto(piece.mine[turn], vector if where is None else vector[where])
                self._agree(views.broadcast_signature)
                parts.append(piece.first[turn] if where is None else piece.first[turn].copy())
        except BaseException as error:
            self._fail(error)
            raise
        self._guard.leave()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def close(self) -> None:
        """Leave the group. Ranks that still wait for this one get :class:`PeerLost`. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._guard.shut("the group is closed"):
            self._peers.leave_word(State.CLOSED)
        self._peers.close()

    def __enter__(self) -> SharedMemoryGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sum_piece(
        self,
        signature: int,
        views: PieceViews,
        vector: NDArray[Any],
        target: NDArray[Any] | None,
        result_turn: int,
    ) -> None:
        """Sum a vector that fits a slot, into ``target`` or, where that is ``None``, the shared result.

        Two turns of slots and results keep the next call of a fast rank away from what a slow one still reads: to
        come back to the same turn it has to pass a barrier that the slow one reaches only when it has finished.
        """
        turn = self._turn = self._turn ^ 1
        np.copyto(views.mine[turn], vector)
        self._agree(signature)
        if not views.shared:
            assert target is not None
            sum_in_rank_order(views.slots[turn], target)
            return
        sum_in_rank_order(views.shares[turn], views.result_shares[result_turn])
        self._barrier.wait()
        if target is not None:
            np.copyto(target, views.results[result_turn])

    def _agree(self, signature: int) -> None:
        """Wait for the other ranks and check that they called the same."""
        words, turn = self._words, self._turn
        words[self._own_signature + turn] = signature
        self._barrier.wait()
        for index in self._other_signatures:
            if words[index + turn] != signature:
                raise self._mismatch(turn)

    def _prepare(self, vector: NDArray[Any]) -> VectorViews:
        if vector.ndim != 1 or vector.dtype not in DTYPES:
            raise ValueError(
                f"expected a vector of float32 or float64, received shape {vector.shape} of {vector.dtype.str}"
            )
        if len(self._views) >= _REMEMBERED_LENGTHS:
            self._views.clear()
        views = VectorViews(self._segment, self.rank, len(vector), vector.dtype)
        self._views[vector.shape, vector.dtype] = views
        return views

    def _fail(self, error: BaseException) -> None:
        """Make the group unusable: after a call cut short the ranks may disagree about which call comes next."""
        reason = error.what if isinstance(error, GroupError) else repr(error)
        self._guard.shut(f"a call of this group has failed: {reason}")
        if isinstance(error, PeerLost):
            self._peers.leave_word(State.LOST_A_PEER, error.ranks)
        elif not isinstance(error, CallMismatch):
            self._peers.leave_word(State.CLOSED)

    def _mismatch(self, turn: int) -> CallMismatch:
        calls = [self._words[word_index(rank, Word.SIGNATURE) + turn] for rank in range(self.size)]
        common = max(calls, key=calls.count)
        majority = 2 * calls.count(common) > self.size
        return CallMismatch(
            "the ranks called different things: " + "; ".join(f"rank {i}: {describe(c)}" for i, c in enumerate(calls)),
            ranks=[rank for rank, call in enumerate(calls) if call != common or not majority],
            where=f"rank {self.rank} of {self.size}",
            hint="all workers must run the same program with the same configuration",
        )

    def _disown(self) -> None:
        """In a forked child: let go of the sockets, or the parent's death would stay unseen while the child lives."""
        self._closed = True
        self._guard.shut("the group belongs to the process that joined it, not to its children")
        self._peers.close()


class _CallGuard:
    """Allows one call at a time, and none after a call that failed: the ranks must agree on the order of calls."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._reason: str | None = None
        # Held during a call, and for ever once there may be none.
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Begin a call, or raise ``GroupError``: another thread is in a call, or no call is allowed any more."""
        if not self._lock.acquire(blocking=False):
            raise GroupError(
                self._reason or "two threads call the group of one worker at the same time",
                where=self._where,
                hint="join a new group" if self._reason else "order the calls: all ranks must make them alike",
            )

    def leave(self) -> None:
        """End a call that succeeded. Harmless after :meth:`shut`."""
        if self._reason is None:
            self._lock.release()

    def shut(self, reason: str) -> bool:
        """Allow no further call. The first reason counts.

        Returns:
            Whether calls were allowed until now.
        """
        if self._reason is not None:
            return False
        self._reason = reason
        self._lock.acquire(blocking=False)
        return True


_groups: weakref.WeakSet[SharedMemoryGroup] = weakref.WeakSet()


def _disown_all() -> None:
    for group in list(_groups):
        group._disown()


os.register_at_fork(after_in_child=_disown_all)
