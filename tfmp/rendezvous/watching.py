"""Signs of life during the training, and whose fault a failure was.

A worker that fails because a peer was lost often says so before anybody has noticed the loss itself: its word is held
back until the cause shows, or does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from tfmp.rendezvous.end_reasons import cut_off, failed, frozen
from tfmp.rendezvous.peer_status import EndReason, Roster
from tfmp.rendezvous.protocol import Report, Waits


class Watch:
    """Watches the launchers that this one is connected to, and the worker process of this host.

    Args:
        roster: The group.
        waits: How long to wait for what.
        others: Ranks of the launchers that give signs of life.
        now_s: The time, on the clock of all later calls.
        explain_s: For the cause to show after a failure that looks like a victim's.
    """

    def __init__(self, roster: Roster, waits: Waits, others: Iterable[int], now_s: float, explain_s: float) -> None:
        self._roster = roster
        self._waits = waits
        self._explain_s = explain_s
        self._heard_s = dict.fromkeys(others, now_s)
        self._stopped_since_s: dict[int, float] = {}
        self._victim: tuple[int, Report, float] | None = None

    def heard(self, rank: int, now_s: float) -> None:
        """A launcher gave a sign of life."""
        self._heard_s[rank] = now_s

    def stopped(self, rank: int, is_stopped: bool, now_s: float) -> None:
        """Whether a worker's process is stopped, as by SIGSTOP."""
        if is_stopped:
            self._stopped_since_s.setdefault(rank, now_s)
        else:
            self._stopped_since_s.pop(rank, None)

    def is_stopped(self, rank: int) -> bool:
        """What :meth:`stopped` was told last."""
        return rank in self._stopped_since_s

    def failed(self, rank: int, report: Report, now_s: float) -> EndReason | None:
        """A worker has failed; return the end_reason, ``None`` while it may yet be another's fault."""
        if not report.victim:
            return failed(self._roster, rank, report)
        if (cause := self._likely_cause(rank, now_s)) is not None:
            return cause
        if self._victim is None:
            self._victim = (rank, report, now_s)
        return None

    def look(self, now_s: float) -> EndReason | None:
        """Return the end_reason that the passing of time brings."""
        for rank, heard_s in self._heard_s.items():
            if now_s - heard_s > self._waits.heartbeat_timeout_s:
                return cut_off(self._roster, rank, now_s - heard_s)
        for rank, since_s in self._stopped_since_s.items():
            if now_s - since_s > self._waits.heartbeat_timeout_s:
                return frozen(self._roster, rank, now_s - since_s)
        if self._victim is None:
            return None
        rank, report, since_s = self._victim
        if (cause := self._likely_cause(rank, now_s)) is not None:
            return cause
        return failed(self._roster, rank, report) if now_s >= since_s + self._explain_s else None

    def _likely_cause(self, victim: int, now_s: float) -> EndReason | None:
        """The peer that has been silent longest, or one that is stopped."""
        silent = [(heard_s, rank) for rank, heard_s in self._heard_s.items() if rank != victim]
        if silent and now_s - min(silent)[0] > self._waits.silence_s:
            heard_s, rank = min(silent)
            return cut_off(self._roster, rank, now_s - heard_s)
        for rank, since_s in self._stopped_since_s.items():
            if rank != victim:
                return frozen(self._roster, rank, now_s - since_s)
        return None
