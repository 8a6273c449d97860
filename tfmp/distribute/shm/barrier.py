"""Barriers between the processes of one host: none passes before all have arrived.

Both kinds also order memory: what a rank wrote before it arrived is seen by every rank that has passed. A rank can be
at most one barrier ahead of another, since passing needs everybody.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping
from typing import Literal, Protocol

from tfmp.distribute.shm import futex
from tfmp.distribute.shm.errors import JoinFailed
from tfmp.distribute.shm.handshake import Kind, receive
from tfmp.distribute.shm.peers import Peers
from tfmp.distribute.shm.segment import LINE_BYTES, Segment, Word, word_index

BarrierKind = Literal["futex", "socket"]

_FEWEST_SPINS = 300
"""Looks at a peer's word before sleeping; together about 20 µs, what falling asleep and waking up costs."""
_MOST_SPINS = 6000
"""About 400 µs: in a step of the same length on all ranks, they seldom wait longer for each other."""


class Barrier(Protocol):
    """What a group needs of a barrier."""

    sequence: int

    def wait(self) -> None:
        """Arrive, and return once every rank has arrived.

        Raises:
            PeerLost: A rank is gone; noticed within about 0.1 s.
        """


def resolve_kind(requested: Literal["auto"] | BarrierKind) -> BarrierKind:
    """Choose the barrier: futex where it is right, else sockets.

    Raises:
        JoinFailed: ``futex`` was asked for where it would not be right.
    """
    if requested == "socket" or futex.available():
        return "socket" if requested == "socket" else "futex"
    if requested == "futex":
        raise JoinFailed(
            "the futex barrier needs Linux on x86-64 and the system call futex",
            hint='kind="socket" works everywhere, kind="auto" chooses',
        )
    return "socket"


class FutexBarrier:
    """Counters in shared memory, one a rank, and futex to sleep on those of the ranks that are late.

    Each rank writes its own counter only. The counters have 64 bits and never wrap; futex compares the low 32, which
    is enough to see a change by one or two.

    Args:
        segment: The shared memory.
        peers: The other ranks.
        spin: Whether to look for some microseconds before sleeping: only right where every rank has a core of its own.
        start: The count to start from, the same on all ranks.
    """

    def __init__(self, segment: Segment, peers: Peers, *, spin: bool, start: int = 0) -> None:
        self.sequence = start
        self._words = segment.words
        self._check = peers.check
        self._own = word_index(peers.rank, Word.SEQUENCE)
        self._may_spin = spin
        self._spins = _FEWEST_SPINS if spin else 0
        self._wake = futex.waker(segment.address + peers.rank * LINE_BYTES)
        # Each rank starts with its neighbour, so that they do not all queue on one word.
        order = [(peers.rank + step) % peers.size for step in range(1, peers.size)]
        self._others = [
            (word_index(rank, Word.SEQUENCE), futex.sleeper(segment.address + rank * LINE_BYTES)) for rank in order
        ]
        self._words[self._own] = start

    def wait(self) -> None:
        sequence = self.sequence = self.sequence + 1
        words = self._words
        words[self._own] = sequence
        self._wake()
        for index, sleep in self._others:
            if words[index] >= sequence:
                continue
            for _ in range(self._spins):
                if words[index] >= sequence:
                    self._spins = min(self._spins * 2, _MOST_SPINS)
                    break
            else:
                if self._may_spin:
                    # It did not help: the peer may even wait for this core.
                    self._spins = max(self._spins // 2, _FEWEST_SPINS)
                next_check_s = time.monotonic() + futex.TICK_S
                while (value := words[index]) < sequence:
                    sleep(value)
                    # By the clock: signals that arrive all the time must not put the check off.
                    if time.monotonic() >= next_check_s:
                        self._check(sequence)
                        next_check_s = time.monotonic() + futex.TICK_S


class SocketBarrier:
    """A message from every rank to every other one; right on every processor, at two system calls a peer or more.

    The message of a rank that arrived and then left stays readable, so its barrier still completes.

    Args:
        words: The words of the segment: the counts written there only serve to name who is late.
        peers: The other ranks.
    """

    def __init__(self, words: memoryview[int], peers: Peers) -> None:
        self.sequence = 0
        self._words = words
        self._peers = peers
        self._own = word_index(peers.rank, Word.SEQUENCE)
        self._polls = {rank: _input_poll(peer) for rank, peer in peers.sockets.items()}
        self._sockets: Mapping[int, socket.socket] = peers.sockets

    def wait(self) -> None:
        sequence = self.sequence = self.sequence + 1
        self._words[self._own] = sequence
        for peer in self._sockets.values():
            try:
                # Never blocks: at most two messages lie unread between two ranks.
                peer.send(Kind.ARRIVED.value, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                pass  # gone: whether that matters shows below
        for rank, peer in self._sockets.items():
            self._receive(rank, peer, sequence)

    def _receive(self, rank: int, peer: socket.socket, sequence: int) -> None:
        poll = self._polls[rank]
        next_check_s = time.monotonic() + futex.TICK_S
        while not poll.poll(futex.TICK_S * 1000):
            if time.monotonic() >= next_check_s:
                self._peers.check(sequence)
                next_check_s = time.monotonic() + futex.TICK_S
        kind, body, _ = receive(peer)
        if kind is not Kind.ARRIVED:
            self._peers.note_last_words(rank, kind, body)
            raise self._peers.lost({rank, *self._peers.gone()}, sequence)


def _input_poll(peer: socket.socket) -> select.poll:
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    return poll
