"""The wait for a worker's own port: who holds it, and whether the user can fix that.

Pure, with the interface that :class:`~tfmp.rendezvous.leader.Leader` has, which follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfmp.ipc import NotOurs
from tfmp.rendezvous.end_reasons import taken
from tfmp.rendezvous.identity import Identity
from tfmp.rendezvous.peer_status import EndReason, Kind, PeerStatus, Roster
from tfmp.rendezvous.protocol import Action, Close, Dial, Send, read_stop, take

#: Processes of an earlier run that has just ended may hold the port for this long.
PATIENCE_S = 5.0
_ASK_EVERY_S = 0.5


class PortClaim:
    """Asks whoever listens on this worker's port: the same worker started twice, or one with another cluster.

    Args:
        identity: This launcher.
        roster: The group.
        now_s: When the port was found taken.

    Attributes:
        end_reason: Why this worker cannot start; ``None`` while it may get the port yet.
    """

    def __init__(self, identity: Identity, roster: Roster, now_s: float) -> None:
        self.end_reason: EndReason | None = None
        self._identity = identity
        self._roster = roster
        self._since_s = self._next_s = now_s
        self._asking = False
        self._status = PeerStatus(Kind.UNHEARD)

    def tick(self, now_s: float) -> list[Action]:
        """Return what the passing of time asks for."""
        if self.end_reason is None and now_s - self._since_s >= PATIENCE_S:
            self._in_use()
        if self._asking or now_s < self._next_s or self.end_reason is not None:
            return []
        self._asking = True
        return [Dial(self._identity.rank)]

    def dialed(self, link: int, rank: int, now_s: float) -> list[Action]:
        """Something accepts connections: greet it."""
        self._status = PeerStatus(Kind.FOREIGN)
        return [Send(link, {"type": "hello", **self._identity.to_message()})]

    def found(self, rank: int, status: PeerStatus, now_s: float) -> list[Action]:
        """The attempt had this result."""
        self._again(now_s)
        self._status = status
        return []

    def lost(self, link: int, now_s: float) -> list[Action]:
        """The connection has ended."""
        self._again(now_s)
        return []

    def received(self, link: int, message: Mapping[str, Any], peer: str, now_s: float) -> list[Action]:
        """Another launcher of tfmp has answered.

        Raises:
            NotOurs: Not with an answer.
        """
        match message["type"]:
            case "stop":
                self.end_reason = read_stop(message)
            case "refused":
                kind, text = take(message, "kind", str), take(message, "text", str)
                if kind == Kind.TAKEN.name:
                    self.end_reason = taken(self._roster, self._identity.rank, text)
                else:
                    self._status = PeerStatus(Kind.OTHER_RUN, text)
            case "present" | "welcome":
                # A worker of this cluster on this worker's port: two names that lead to one host, or a wrong --index.
                there = take(message, "rank", int) if message["type"] == "present" else 0
                self._status = PeerStatus(Kind.ELSEWHERE, f"worker {there}")
            case kind:
                raise NotOurs(f"a message {kind[:20]}")
        return [Close(link)]

    def refuse(self, link: int, peer: str, reason: str, now_s: float) -> list[Action]:
        """What came over a connection was no message."""
        return []

    def _again(self, now_s: float) -> None:
        self._asking = False
        self._next_s = now_s + _ASK_EVERY_S

    def _in_use(self) -> None:
        port = self._identity.port
        holder = {
            Kind.ALREADY_TRAINING: "a TensorFlow server, of another run or left over from an earlier one",
            Kind.OTHER_RUN: f"another run of tfmp ({self._status.detail})",
            Kind.OTHER_TOKEN: "a run of tfmp with another cluster.token",
            Kind.ELSEWHERE: f"{self._status.detail} of this cluster",
        }.get(self._status.kind, "another program")
        self.end_reason = EndReason(
            f"port {port} is in use by {holder}",
            self._identity.rank,
            self._roster.label(self._identity.rank),
            f"find it with `ss -ltnp 'sport = :{port}'`, or give this worker another port, on every host",
            2,
        )
