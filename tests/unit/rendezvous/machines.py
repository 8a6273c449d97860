"""Leaders and members in a given state, and what they send and say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfmp.rendezvous.identity import Identity
from tfmp.rendezvous.leader import Leader
from tfmp.rendezvous.member import Member
from tfmp.rendezvous.peer_status import Roster
from tfmp.rendezvous.protocol import Action, Dial, Report, Say, Send, Waits

ROSTER = Roster(("worker 0", "worker 1", "worker 2"), ("h0:1", "h1:1", "h2:1"))
WAITS = Waits(start_timeout_s=60.0, heartbeat_timeout_s=30.0)
VICTIM = Report("UnavailableError: connection reset by peer", victim=True)


def identity(rank: int, **changes: Any) -> Identity:
    fields = {"agreed": {"training.epochs": 5}, "host": f"h{rank}", "pid": 100 + rank, "port": 1, **changes}
    return Identity(rank, **fields)


def hello(rank: int, **changes: Any) -> dict[str, Any]:
    return {"type": "hello", **identity(rank, **changes).to_message()}


def sent(actions: Sequence[Action]) -> list[tuple[int, str]]:
    return [(action.link, action.message["type"]) for action in actions if isinstance(action, Send)]


def said(actions: Sequence[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def leader(joined: Sequence[int] = (), *, start: bool = False, waits: Waits = WAITS, **more: Any) -> Leader:
    """A leader at 0 s; link 10 + rank belongs to each worker that has joined."""
    machine = Leader(identity(0), ROSTER, waits, 0.0, **more)
    for rank in joined:
        assert sent(machine.received(10 + rank, hello(rank), f"10.0.0.{rank}", 0.0)) == [(10 + rank, "welcome")]
    if start:
        machine.ready(0.0)
        for rank in joined:
            machine.received(10 + rank, {"type": "ready"}, "", 0.0)
        assert machine.started
    return machine


def member(*, joined: bool = True, start: bool = False) -> Member:
    """Worker 1 at 0 s; link 7 leads to the leader."""
    machine = Member(identity(1), ROSTER, WAITS, 0.0)
    assert machine.tick(0.0) == [Dial(0)]
    if joined:
        assert sent(machine.dialed(7, 0, 0.0)) == [(7, "hello")]
        assert said(machine.received(7, {"type": "welcome"}, "", 0.0)) == ["joined worker 0 (h0:1)"]
    if start:
        machine.received(7, {"type": "start"}, "", 0.0)
        assert machine.started
    return machine


def live(machine: Leader | Member, seconds: range, links: Sequence[int]) -> None:
    """Let time pass while these connections give a sign of life every second."""
    for now_s in seconds:
        for link in links:
            machine.received(link, {"type": "beat", "stopped": False}, "", now_s)
        machine.tick(now_s)
