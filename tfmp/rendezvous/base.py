"""What leader and member have in common: time, signs of life, who is turned away, how the group ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from tfmp.rendezvous.end_reasons import cut_off, failed, frozen
from tfmp.rendezvous.identity import Identity
from tfmp.rendezvous.peer_status import EndReason, Kind, PeerStatus, Roster
from tfmp.rendezvous.protocol import Action, Close, Report, Say, Send, Waits, disagreement, stop_message

#: Where another worker's address leads when --index is that of another host.
THIS_ONE = "this one"
_MAX_TURNED_AWAY = 100


class Watch:
    """Watches for signs of life during the training, and tells whose fault a failure is.

    A worker that fails because a peer was lost often reports it before anybody has noticed the loss itself. Its report
    is held back until the cause shows, or does not.

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
        """A launcher has given a sign of life."""
        self._heard_s[rank] = now_s

    def stopped(self, rank: int, is_stopped: bool, now_s: float) -> None:
        """Note whether a worker's process is stopped, as by SIGSTOP."""
        if is_stopped:
            self._stopped_since_s.setdefault(rank, now_s)
        else:
            self._stopped_since_s.pop(rank, None)

    def is_stopped(self, rank: int) -> bool:
        """Return what :meth:`stopped` was told last."""
        return rank in self._stopped_since_s

    def failed(self, rank: int, report: Report, now_s: float) -> EndReason | None:
        """A worker has failed; return the reason, or ``None`` while another worker may be at fault."""
        if not report.victim:
            return failed(self._roster, rank, report)
        if (cause := self._likely_cause(rank, now_s)) is not None:
            return cause
        if self._victim is None:
            self._victim = (rank, report, now_s)
        return None

    def look(self, now_s: float) -> EndReason | None:
        """Return the reason to end that is due, if any."""
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


class Side(ABC):
    """The state of a group as one launcher sees it. Pure: takes events with their time, returns actions.

    Args:
        identity: This launcher.
        roster: The group.
        waits: How long to wait for what.
        now_s: The time, on the clock of all later calls.

    Attributes:
        end_reason: Why the group ends; ``None`` while it does not.
        started: Whether all are to start, or have.
        may_leave: Whether all workers have ended well and know it.
        start_message: What all start with.
        hang_s: For how long a worker has waited for the others in vain; ``None``: none has.
    """

    def __init__(self, identity: Identity, roster: Roster, waits: Waits, now_s: float) -> None:
        self.end_reason: EndReason | None = None
        self.started = False
        self.may_leave = False
        self.start_message: Mapping[str, Any] = {}
        self.hang_s: float | None = None
        self._identity = identity
        self._roster = roster
        self._waits = waits
        self._began_s = now_s
        self._next_summary_s = now_s + waits.first_summary_s
        self._next_beat_s = now_s
        self._is_ready = False
        self._watch: Watch | None = None
        self._turned_away: set[str] = set()

    @abstractmethod
    def dialed(self, link: int, rank: int, now_s: float) -> list[Action]:
        """A connection to a worker's address is open: greet."""

    @abstractmethod
    def found(self, rank: int, status: PeerStatus, now_s: float) -> list[Action]:
        """An attempt to reach a worker had this result."""

    @abstractmethod
    def received(self, link: int, message: Mapping[str, Any], peer: str, now_s: float) -> list[Action]:
        """Take a message.

        Raises:
            NotOurs: It is not expected now; close the connection.
        """

    @abstractmethod
    def lost(self, link: int, now_s: float) -> list[Action]:
        """A connection has ended."""

    @abstractmethod
    def ready(self, now_s: float) -> list[Action]:
        """This host's fork server has imported TensorFlow."""

    @abstractmethod
    def failed(self, report: Report, now_s: float) -> list[Action]:
        """This host's worker has failed."""

    @abstractmethod
    def done(self, sha256: str, now_s: float) -> list[Action]:
        """This host's worker has ended well, with weights of this digest; the chief saves before it does."""

    @abstractmethod
    def _gather(self, now_s: float) -> list[Action]:
        """Return what is due before the start."""

    @abstractmethod
    def _tell(self, message: Mapping[str, Any]) -> list[Action]:
        """Return a message to every launcher that has joined this one."""

    def tick(self, now_s: float) -> list[Action]:
        """Return what is due."""
        if self.end_reason is not None or self.may_leave:
            return []
        if self._watch is None:
            return self._gather(now_s)
        end_reason = self._watch.look(now_s)
        return self._beat(now_s) if end_reason is None else self._end(end_reason)

    def stopped(self, is_stopped: bool, now_s: float) -> None:
        """Note whether this host's worker process is stopped, as by SIGSTOP."""
        if self._watch is not None:
            if is_stopped != self._watch.is_stopped(self._identity.rank):
                self._next_beat_s = now_s  # news
            self._watch.stopped(self._identity.rank, is_stopped, now_s)

    def refuse(self, link: int, peer: str, reason: str, now_s: float) -> list[Action]:
        """A connection was rejected because of what it sent; reported once for each address."""
        if peer in self._turned_away or len(self._turned_away) > _MAX_TURNED_AWAY or self.started:
            return []
        self._turned_away.add(peer)
        return [Say(f"note: turned away a connection from {peer}: {reason}")]

    def _hello(self, link: int) -> list[Action]:
        return [Send(link, {"type": "hello", **self._identity.to_message()})]

    def _beat(self, now_s: float) -> list[Action]:
        if now_s < self._next_beat_s:
            return []
        self._next_beat_s = now_s + self._waits.beat_every_s
        stopped = self._watch is not None and self._watch.is_stopped(self._identity.rank)
        return self._tell({"type": "beat", "stopped": stopped})

    def _start(self, message: Mapping[str, Any], others: Iterable[int], now_s: float, explain_s: float) -> None:
        """Begin to watch the launchers that this one is connected to."""
        self.started = True
        self.start_message = message
        self._watch = Watch(self._roster, self._waits, others, now_s, explain_s)

    def _heard(self, rank: int, now_s: float) -> None:
        if self._watch is not None:
            self._watch.heard(rank, now_s)

    def _heard_stopped(self, rank: int, is_stopped: bool, now_s: float) -> None:
        if self._watch is not None:
            self._watch.stopped(rank, is_stopped, now_s)

    def _cannot_join(self, link: int, other: Identity) -> list[Action]:
        """Reject a worker of another run; end if one is configured differently. Empty if it may join."""
        if self._identity.run and other.run and self._identity.run != other.run:
            return self._turn_down(link, Kind.OTHER_RUN, f"this port belongs to {self._identity.run}")
        if not self.started and self.end_reason is None:
            end_reason = disagreement(self._identity, other, self._roster)
            return [Send(link, stop_message(end_reason)), Close(link), *self._end(end_reason)] if end_reason else []
        return []

    @staticmethod
    def _turn_down(link: int, kind: Kind, text: str) -> list[Action]:
        return [Send(link, {"type": "refused", "kind": kind.name, "text": text}), Close(link)]

    @staticmethod
    def _holder(identity: Identity) -> str:
        return f"by process {identity.pid} on {identity.host}"

    def _end(self, end_reason: EndReason) -> list[Action]:
        """End the group, or learn that it ends; the first reason counts."""
        if self.end_reason is not None:
            return []
        self.end_reason = end_reason
        return self._pass_on(end_reason)

    def _pass_on(self, end_reason: EndReason) -> list[Action]:
        """Tell the others a reason; only the leader does."""
        return []
