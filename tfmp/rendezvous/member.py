"""The launcher of a rank other than 0: finds the leader, joins it, watches it, and starts and leaves when it says so.

Pure: takes events with the time at which they were seen, returns actions. See :mod:`protocol` for the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfmp.ipc import NotOurs
from tfmp.rendezvous.base import THIS_ONE, Side
from tfmp.rendezvous.end_reasons import already_training, failed, other_token, taken, vanished
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
    take,
)

_LEADER = 0


class Member(Side):
    """The state of a group as seen by one of its members."""

    def __init__(self, identity: Identity, roster: Roster, waits: Waits, now_s: float) -> None:
        super().__init__(identity, roster, waits, now_s)
        self._leader_link: int | None = None  # since it said welcome
        self._dialing: int | None = None
        self._next_dial_s = now_s
        self._status = PeerStatus(Kind.UNHEARD)
        self._training_since_s: float | None = None
        self._missing: dict[int, PeerStatus] = {}
        self._heard_s = now_s

    @property
    def _joined(self) -> bool:
        return self._leader_link is not None

    def dialed(self, link: int, rank: int, now_s: float) -> list[Action]:
        """A connection to the leader's address is open: greet."""
        self._dialing = link
        self._heard_s = now_s
        self._status = PeerStatus(Kind.FOREIGN, "accepts connections but sends nothing")
        return self._hello(link)

    def found(self, rank: int, status: PeerStatus, now_s: float) -> list[Action]:
        """An attempt to reach the leader had this result."""
        self._next_dial_s = now_s + self._waits.dial_every_s
        self._status = status
        if status.kind is Kind.OTHER_TOKEN:
            return self._end(other_token(self._roster, _LEADER))
        if status.kind is not Kind.ALREADY_TRAINING:
            self._training_since_s = None
            return []
        # A group that is about to end, because this worker was in it and died, goes within seconds.
        self._training_since_s = self._training_since_s if self._training_since_s is not None else now_s
        if now_s - self._training_since_s >= min(self._waits.restart_s, 0.8 * self._waits.start_timeout_s):
            return self._end(already_training(self._roster, self._identity.rank))
        return []

    def received(self, link: int, message: Mapping[str, Any], peer: str, now_s: float) -> list[Action]:
        """Take a message.

        Raises:
            NotOurs: It is not expected now; close the connection.
        """
        if link == self._leader_link:
            self._heard_s = now_s
            self._heard(_LEADER, now_s)
            return self._from_leader(message, now_s)
        if link == self._dialing:
            self._heard_s = now_s
            return self._answered(link, message, now_s)
        if message["type"] != "hello":
            raise NotOurs("a message before the greeting")
        return self._greeted(link, Identity.from_message(message))

    def lost(self, link: int, now_s: float) -> list[Action]:
        """A connection has ended."""
        if link == self._dialing:
            self._dialing = None
            self._next_dial_s = now_s + self._waits.dial_every_s
        if link != self._leader_link:
            return []
        self._leader_link = None
        if self.started and not self.may_leave:
            return self._end(vanished(self._roster, _LEADER))
        self._status = PeerStatus(Kind.REFUSED, "it was here and has left")
        self._next_dial_s = now_s + self._waits.dial_every_s
        return []

    def ready(self, now_s: float) -> list[Action]:
        """This host's fork server has imported TensorFlow."""
        self._is_ready = True
        return self._tell({"type": "ready"})

    def failed(self, report: Report, now_s: float) -> list[Action]:
        """This host's worker has failed."""
        if self.end_reason is not None:
            return []
        told = self._tell(report.to_message())
        end_reason: EndReason | None = failed(self._roster, self._identity.rank, report)
        if self._watch is not None:
            end_reason = self._watch.failed(self._identity.rank, report, now_s)
        return told if end_reason is None else [*told, *self._end(end_reason)]

    def done(self, sha256: str, now_s: float) -> list[Action]:
        """This host's worker has ended well, with weights of this digest."""
        return self._tell({"type": "done", "sha256": sha256})

    # Before the start ------------------------------------------------------------------------------------------------

    def _gather(self, now_s: float) -> list[Action]:
        if now_s >= self._began_s + self._waits.start_timeout_s:
            return self._end(self._too_late())
        if self._joined:
            actions = self._beat(now_s)
            if now_s - self._heard_s > self._waits.heartbeat_timeout_s and self._leader_link is not None:
                return [Close(self._leader_link), *self.lost(self._leader_link, now_s)]
            return actions
        actions = []
        if self._dialing is not None and now_s - self._heard_s > self._waits.heartbeat_timeout_s:
            actions.append(Close(self._dialing))
        if self._dialing is None and now_s >= self._next_dial_s:
            self._next_dial_s = float("inf")  # until the attempt has ended
            actions.append(Dial(_LEADER))
        unknown = self._status.kind is Kind.UNHEARD and now_s < self._began_s + self._waits.first_answers_s
        if now_s >= self._next_summary_s and not unknown:
            self._next_summary_s = now_s + self._waits.summary_every_s
            own = self._identity.rank
            others = {_LEADER: self._status}
            actions.append(Say(missing_summary(self._roster, [own], others, own)))
        return actions

    def _too_late(self) -> EndReason:
        if not self._joined:
            return missing_reason(self._roster, {_LEADER: self._status}, self._waits.start_timeout_s)
        if self._missing:
            return missing_reason(self._roster, self._missing, self._waits.start_timeout_s)
        return EndReason(
            f"the group did not start within {self._waits.start_timeout_s:g} s",
            where=self._roster.label(_LEADER),
            hint="raise --start-timeout, or check the output of the other workers",
        )

    def _answered(self, link: int, message: Mapping[str, Any], now_s: float) -> list[Action]:
        """The leader's address has answered to our greeting."""
        match message["type"]:
            case "welcome":
                self._leader_link, self._dialing = link, None
                self._training_since_s = None
                self._missing = {}
                joined: list[Action] = [Say(f"joined {self._roster.label(_LEADER)}")]
                return [*joined, *(self._tell({"type": "ready"}) if self._is_ready else [])]
            case "refused":
                return [*self._refused(message, now_s), Close(link)]
            case "present":
                there = take(message, "rank", int)
                other = f"worker {there} on {take(message, 'host', str)}"
                # Another process with this rank would have refused.
                self._status = PeerStatus(Kind.ELSEWHERE, THIS_ONE if there == self._identity.rank else other)
                return [Close(link)]
            case "stop":
                return [*self._end(read_stop(message)), Close(link)]
            case kind:
                raise NotOurs(f"a message {kind[:20]}")

    def _refused(self, message: Mapping[str, Any], now_s: float) -> list[Action]:
        kind, text = take(message, "kind", str), take(message, "text", str)
        if kind == Kind.TAKEN.name:
            return self._end(taken(self._roster, self._identity.rank, text))
        if kind == Kind.ALREADY_TRAINING.name:
            return self.found(_LEADER, PeerStatus(Kind.ALREADY_TRAINING, text), now_s)
        self._status = PeerStatus(Kind.OTHER_RUN, text)
        return []

    def _greeted(self, link: int, other: Identity) -> list[Action]:
        """Somebody connected to this worker's address: the leader looking for it, or one that meant another worker."""
        if ended := self._cannot_join(link, other):
            return ended
        if other.rank == self._identity.rank and (other.host, other.pid) != (self._identity.host, self._identity.pid):
            return self._turn_down(link, Kind.TAKEN, self._holder(self._identity))
        text = "it has joined" if self._joined else f"it says of {self._roster.label(_LEADER)}: {self._status}"
        me = self._identity
        return [Send(link, {"type": "present", "rank": me.rank, "host": me.host, "text": text}), Close(link)]

    # Joined ----------------------------------------------------------------------------------------------------------

    def _from_leader(self, message: Mapping[str, Any], now_s: float) -> list[Action]:
        match message["type"]:
            case "roll":
                return self._heard_summary(message)
            case "start":
                # The leader, which hears more, judges first: two beats are for its word to arrive.
                explain_s = self._waits.explain_s + 2 * self._waits.beat_every_s
                self._start(message, [_LEADER], now_s, explain_s)
            case "beat":
                self._heard_stopped(_LEADER, take(message, "stopped", bool), now_s)
            case "hang":
                self.hang_s = take(message, "seconds", float)
            case "stop":
                return self._end(read_stop(message))
            case "leave":
                self.may_leave = True
            case kind:
                raise NotOurs(f"a message {kind[:20]}")
        return []

    def _heard_summary(self, message: Mapping[str, Any]) -> list[Action]:
        here = [rank for rank in take(message, "here", list) if type(rank) is int and 0 <= rank < self._roster.size]
        self._missing = {}
        for entry in take(message, "missing", list):
            match entry:
                case [int(rank), str(kind), str(detail)] if 0 <= rank < self._roster.size and kind in Kind.__members__:
                    self._missing[rank] = PeerStatus(Kind[kind], detail)
        own = self._identity.rank
        return [Say(missing_summary(self._roster, here, self._missing, own))] if self._missing else []

    def _tell(self, message: Mapping[str, Any]) -> list[Action]:
        return [Send(self._leader_link, message)] if self._leader_link is not None else []
