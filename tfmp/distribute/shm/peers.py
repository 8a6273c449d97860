"""The other ranks: who has arrived, whose process still runs, and why somebody left.

A connected socket to every other rank tells of its end (the kernel closes it, however the process dies). The lines in
shared memory tell the rest: a rank that leaves because of another names it there first, so that all name the same
culprit and not its victims.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress

from tfmp.distribute.shm.errors import GroupError, PeerLost, from_mask, ranks_text, to_mask
from tfmp.distribute.shm.handshake import Kind, Refusal, read_refusal, receive
from tfmp.distribute.shm.segment import State, Word, word_index

_HINT = "read its log for the cause; dmesg names a process that was killed for want of memory"


class Peers:
    """The other ranks of a group.

    Args:
        rank: This process's rank.
        size: Number of ranks.
        sockets: A connected socket to each other rank.
        pids: The process id of each other rank.
        words: The words of the segment.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        sockets: Mapping[int, socket.socket],
        pids: Mapping[int, int],
        words: memoryview[int],
    ) -> None:
        self.rank = rank
        self.size = size
        self.sockets = sockets
        self.pids = pids
        self._words = words
        self._refusals: dict[int, Refusal] = {}
        self._closed = False
        self._rank_of = {peer.fileno(): rank for rank, peer in sockets.items()}
        self._poll = select.poll()
        for fd in self._rank_of:
            # Without input: what a peer has sent must not hide that it is gone.
            self._poll.register(fd, select.POLLRDHUP)

    def gone(self) -> list[int]:
        """Return the ranks that have closed their socket or died, ascending."""
        return sorted(self._rank_of[fd] for fd, _ in self._poll.poll(0))

    def behind(self, sequence: int) -> list[int]:
        """Return the other ranks that have not arrived at barrier ``sequence``, ascending."""
        return [rank for rank in self.sockets if self._words[word_index(rank, Word.SEQUENCE)] < sequence]

    def check(self, sequence: int) -> None:
        """Look whether waiting at barrier ``sequence`` still makes sense.

        A barrier that everybody has reached is complete, whoever has left since: that is how the last barrier of a
        run ends.

        Raises:
            PeerLost: A rank is gone and the barrier cannot complete, or will be the last one.
            GroupError: Another thread has closed the group.
        """
        if self._closed:
            raise GroupError("the group was closed during a call", where=self._where(sequence))
        # In this order: a rank that arrives and then leaves is seen to have arrived.
        gone = self.gone()
        if gone and self.behind(sequence):
            raise self.lost(gone, sequence)

    def leave_word(self, state: State, blamed: Iterable[int] = ()) -> None:
        """Tell the others why this rank goes; they read it when its socket closes."""
        self._words[word_index(self.rank, Word.BLAME)] = to_mask(blamed)
        self._words[word_index(self.rank, Word.STATE)] = state

    def name(self, ranks: Iterable[int]) -> str:
        """Return the ranks as text, a single one with its process id."""
        numbers = list(ranks)
        text = ranks_text(numbers)
        return f"{text} (process {self.pids[numbers[0]]})" if len(numbers) == 1 else text

    def close(self) -> None:
        """Close the sockets: the others see this rank as gone."""
        self._closed = True
        self._poll = select.poll()
        for peer in self.sockets.values():
            peer.close()

    def note_last_words(self, rank: int, kind: Kind | None, body: bytes) -> None:
        """Remember why a rank left, if it says so in its last message: it was not yet sure that the group stands."""
        if kind is Kind.REFUSAL:
            self._refusals[rank] = read_refusal(body)

    def lost(self, gone: Iterable[int], sequence: int) -> PeerLost:
        """Return the error for ranks that are gone: it names those at fault, as far as the gone ones told."""
        sentences: dict[int, str] = {}
        for rank in gone:
            state = self._words[word_index(rank, Word.STATE)]
            blamed = from_mask(self._words[word_index(rank, Word.BLAME)])
            for culprit in blamed:
                if culprit == self.rank:
                    sentences[rank] = f"{self.name([rank])} has given up waiting for this rank"
                else:
                    sentences.setdefault(culprit, f"{self.name([culprit])} is gone, as rank {rank} has noticed")
            refusal = self._refusal(rank)
            if refusal is not None:
                for culprit in refusal.ranks or [rank]:
                    sentences.setdefault(culprit, f"rank {rank} has left while the group formed: {refusal.text}")
            elif not blamed:
                closed = state == State.CLOSED
                reason = "has left before the others were done" if closed else "is gone: its process has ended"
                sentences[rank] = f"{self.name([rank])} {reason}"
        what = "; ".join(sentences[rank] for rank in sorted(sentences))
        return PeerLost(what, ranks=sentences, where=self._where(sequence), hint=_HINT)

    def _refusal(self, rank: int) -> Refusal | None:
        """Return a gone rank's last message, if it is a refusal that nobody has read yet."""
        with suppress(OSError):
            while rank not in self._refusals:
                kind, body, _ = receive(self.sockets[rank])
                if kind is Kind.END:
                    break
                self.note_last_words(rank, kind, body)
        return self._refusals.get(rank)

    def _where(self, sequence: int) -> str:
        return f"rank {self.rank} of {self.size}, barrier {sequence}"
