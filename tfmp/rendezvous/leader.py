"""The launcher of rank 0: waits for the others, starts all at once, watches them, lets all leave together.

Pure: takes events with the time at which they were seen, returns actions. See :mod:`protocol` for the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfmp.ipc import NotOurs
from tfmp.rendezvous.base import THIS_ONE, Side
from tfmp.rendezvous.end_reasons import failed, unequal_weights, vanished
from tfmp.rendezvous.identity import Identity
from tfmp.rendezvous.peer_status import EndReason, Kind, PeerStatus, Roster, missing_reason, missing_summary
from tfmp.rendezvous.protocol import (
    Action,
    Close,
    Dial,
    Report,
    Say,
    Send,
    Waits,
    read_stop,
    stop_message,
    take,
)

_OWN = 0

Peers = Mapping[int, tuple[Identity, str]]
"""By rank, who has joined and its IP address."""


def _nothing_more(peers: Peers) -> Mapping[str, Any]:
    return {}


@dataclass
class _Member:
    """One other worker that has joined."""

    link: int
    identity: Identity
    peer: str
    heard_s: float
    ready: bool = False
    done: str | None = None


class Leader(Side):
    """The state of a group as its leader sees it.

    Args:
        identity: This launcher.
        roster: The group.
        waits: How long to wait for what.
        now_s: The time, on the clock of all later calls.
        compose: Given who has joined, returns what all are told at the start.
    """

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        waits: Waits,
        now_s: float,
        compose: Callable[[Peers], Mapping[str, Any]] = _nothing_more,
    ) -> None:
        super().__init__(identity, roster, waits, now_s)
        self._compose = compose
        self._members: dict[int, _Member] = {}
        self._statuses: dict[int, PeerStatus] = {}
        self._dialing: dict[int, float] = {}
        self._probes: dict[int, tuple[int, float]] = {}  # by link: rank, and since when it is open
        self._done: str | None = None

    def dialed(self, link: int, rank: int, now_s: float) -> list[Action]:
        """A connection to a missing worker's address is open: ask who is there."""
        self._probes[link] = (rank, now_s)
        self._note(rank, PeerStatus(Kind.FOREIGN, "accepts connections but sends nothing"))
        return self._hello(link)

    def found(self, rank: int, status: PeerStatus, now_s: float) -> list[Action]:
        """An attempt to reach a worker had this result."""
        self._dialing[rank] = now_s + self._waits.dial_every_s
        self._note(rank, status)
        return []

    def received(self, link: int, message: Mapping[str, Any], peer: str, now_s: float) -> list[Action]:
        """Take a message.

        Raises:
            NotOurs: It is not expected now; close the connection.
        """
        if link in self._probes:
            return self._answered(link, message, now_s)
        rank = self._rank_of(link)
        if rank is None:
            if message["type"] != "hello":
                raise NotOurs("a message before the greeting")
            return self._greeted(link, Identity.from_message(message), peer, now_s)
        member = self._members[rank]
        member.heard_s = now_s
        self._heard(rank, now_s)
        match message["type"]:
            case "ready":
                member.ready = True
                return self._start_if_complete(now_s)
            case "beat":
                self._heard_stopped(rank, take(message, "stopped", bool), now_s)
            case "failed":
                return self._failed(rank, Report.from_message(message), now_s)
            case "done":
                member.done = take(message, "sha256", str)
                return self._leave_if_complete()
            case kind:
                raise NotOurs(f"a message {kind[:20]}")
        return []

    def lost(self, link: int, now_s: float) -> list[Action]:
        """A connection has ended."""
        if (probed := self._probes.pop(link, None)) is not None:
            self._dialing[probed[0]] = now_s + self._waits.dial_every_s
            return []
        rank = self._rank_of(link)
        if rank is None:
            return []
        if not self.started:
            del self._members[rank]
            self._note(rank, PeerStatus(Kind.REFUSED, "it was here and has left"))
            self._dialing[rank] = now_s + self._waits.dial_every_s
            return []
        if self.may_leave:
            return []
        return self._end(vanished(self._roster, rank))

    def ready(self, now_s: float) -> list[Action]:
        """This host's fork server has imported TensorFlow."""
        self._is_ready = True
        return self._start_if_complete(now_s)

    def failed(self, report: Report, now_s: float) -> list[Action]:
        """This host's worker has failed."""
        return self._failed(_OWN, report, now_s)

    def done(self, sha256: str, now_s: float) -> list[Action]:
        """This host's worker has ended well, with weights of this digest; it saves before it does."""
        self._done = sha256
        return self._leave_if_complete()

    # Before the start ------------------------------------------------------------------------------------------------

    def _gather(self, now_s: float) -> list[Action]:
        if now_s >= self._began_s + self._waits.start_timeout_s:
            return self._end(self._too_late())
        for rank, member in list(self._members.items()):
            if now_s - member.heard_s > self._waits.heartbeat_timeout_s:
                del self._members[rank]
                self._note(rank, PeerStatus(Kind.NO_ANSWER, f"it was here, silent for {now_s - member.heard_s:.0f} s"))
        old_s = now_s - self._waits.heartbeat_timeout_s
        actions: list[Action] = [Close(link) for link, (_, since_s) in self._probes.items() if since_s < old_s]
        probed = {rank for rank, _ in self._probes.values()}
        for rank in self._missing():
            waiting = rank in probed
            if not waiting and self._roster.addresses[rank] and now_s >= self._dialing.get(rank, 0.0):
                self._dialing[rank] = float("inf")  # until the attempt has ended
                actions.append(Dial(rank))
        actions += self._beat(now_s)
        unknown = any(rank not in self._statuses and self._roster.addresses[rank] for rank in self._missing())
        if now_s >= self._next_summary_s and not (unknown and now_s < self._began_s + self._waits.first_answers_s):
            self._next_summary_s = now_s + self._waits.summary_every_s
            actions += self._summarise()
        return actions

    def _summarise(self) -> list[Action]:
        here = [_OWN, *self._members]
        statuses = {rank: self._status_of(rank) for rank in self._missing()}
        if not statuses:
            return [Say(self._not_ready_line())]
        missing = [[rank, status.kind.name, status.detail] for rank, status in sorted(statuses.items())]
        roll = {"type": "roll", "here": here, "missing": missing}
        return [Say(missing_summary(self._roster, here, statuses, _OWN)), *self._tell(roll)]

    def _not_ready_line(self) -> str:
        names = [self._roster.label(rank) for rank, member in sorted(self._members.items()) if not member.ready]
        return f"all workers are here; still importing TensorFlow: {', '.join(names) or 'this one'}"

    def _too_late(self) -> EndReason:
        missing = {rank: self._status_of(rank) for rank in self._missing()}
        if missing:
            return missing_reason(self._roster, missing, self._waits.start_timeout_s)
        slow = [self._roster.label(rank) for rank, member in sorted(self._members.items()) if not member.ready]
        return EndReason(
            f"TensorFlow was not imported on every host within {self._waits.start_timeout_s:g} s",
            where=", ".join(slow) or "this host",
            hint="raise --start-timeout, or find out what slows the import down (a network file system?)",
        )

    def _greeted(self, link: int, other: Identity, peer: str, now_s: float) -> list[Action]:
        if ended := self._cannot_join(link, other):
            return ended
        if self.started or self.end_reason is not None:
            return self._turn_down(link, Kind.ALREADY_TRAINING, "the training has begun")
        taken = self._identity if other.rank == _OWN else None
        if other.rank in self._members:
            taken = self._members[other.rank].identity
        if taken is not None or not 0 < other.rank < self._roster.size:
            who = self._holder(taken) if taken else f"ranks are 0..{self._roster.size - 1}"
            return self._turn_down(link, Kind.TAKEN, who)
        self._members[other.rank] = _Member(link, other, peer, now_s)
        self._statuses.pop(other.rank, None)
        obsolete: list[Action] = [Close(probe) for probe, (rank, _) in self._probes.items() if rank == other.rank]
        return [*obsolete, Send(link, {"type": "welcome"})]

    def _answered(self, link: int, message: Mapping[str, Any], now_s: float) -> list[Action]:
        """A missing worker's address has answered to our greeting."""
        rank, _ = self._probes[link]
        match message["type"]:
            case "present":
                there = take(message, "rank", int)
                status = PeerStatus(Kind.UP, take(message, "text", str))
                if there != rank:
                    status = PeerStatus(Kind.ELSEWHERE, f"worker {there} on {take(message, 'host', str)}")
            case "refused":
                text = take(message, "text", str)
                status = PeerStatus(Kind.OTHER_RUN, text)
                if take(message, "kind", str) == Kind.TAKEN.name:  # it has this worker's --index, or is this worker
                    second = f"a second {self._roster.names[_OWN]}, {text}"
                    status = PeerStatus(Kind.ELSEWHERE, THIS_ONE if text == self._holder(self._identity) else second)
            case "stop" if not self.started and self.end_reason is None:
                # It knows what differs: both end with the same words.
                return [Close(link), *self._end(read_stop(message))]
            case kind:
                raise NotOurs(f"a message {kind[:20]}")
        self._note(rank, status)
        return [Close(link)]

    def _start_if_complete(self, now_s: float) -> list[Action]:
        everyone = self._is_ready and not self._missing() and all(member.ready for member in self._members.values())
        if not everyone or self.started or self.end_reason is not None:
            return []
        peers = {rank: (member.identity, member.peer) for rank, member in self._members.items()}
        message = {"type": "start", **self._compose(peers)}
        self._start(message, self._members, now_s, self._waits.explain_s)
        return [*(Close(link) for link in self._probes), *self._tell(message)]

    # During the training ---------------------------------------------------------------------------------------------

    def _failed(self, rank: int, report: Report, now_s: float) -> list[Action]:
        if self._watch is None:
            return self._end(failed(self._roster, rank, report))
        end_reason = self._watch.failed(rank, report, now_s)
        if end_reason is not None:
            return self._end(end_reason)
        if report.hang_s is None or self.hang_s is not None:
            return []
        # Who holds it up may not know: it has taken no step since, or none at all.
        self.hang_s = report.hang_s
        return self._tell({"type": "hang", "seconds": report.hang_s})

    def _leave_if_complete(self) -> list[Action]:
        digests = {_OWN: self._done, **{rank: member.done for rank, member in self._members.items()}}
        if self.end_reason is not None or self.may_leave or None in digests.values():
            return []
        if len(set(digests.values())) > 1:
            return self._end(unequal_weights(self._roster, {rank: str(sha) for rank, sha in digests.items()}))
        self.may_leave = True
        return self._tell({"type": "leave"})

    # Both ------------------------------------------------------------------------------------------------------------

    def _tell(self, message: Mapping[str, Any]) -> list[Action]:
        return [Send(member.link, message) for member in self._members.values()]

    def _pass_on(self, end_reason: EndReason) -> list[Action]:
        return self._tell(stop_message(end_reason))

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._roster.size) if rank not in self._members]

    def _status_of(self, rank: int) -> PeerStatus:
        return self._statuses.get(rank, PeerStatus(Kind.UNHEARD))

    def _note(self, rank: int, status: PeerStatus) -> None:
        if rank not in self._members:
            self._statuses[rank] = status

    def _rank_of(self, link: int) -> int | None:
        return next((rank for rank, member in self._members.items() if member.link == link), None)
