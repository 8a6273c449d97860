"""What leader and member share: actions, time limits, reports, and the names of messages.

The worker of rank 0 is the leader. The others connect to its address and stay connected until the training ends.
Messages are JSON objects with a ``type``::

    hello     who I am (see Identity.to_message), when a connection is opened
    welcome   leader: you have joined
    present   a member, asked by the leader: I am up, but have not reached you
    refused   kind and text: you cannot join
    roll      leader: who is here, who is missing and why
    ready     member: TensorFlow is imported, I could start
    start     leader: all are here, agree and are ready; the cluster
    beat      I am alive; whether my worker process is stopped
    failed    member: my worker has failed, and how
    hang      leader: a worker waits for the others in vain; check where yours is
    done      member: my worker has ended well
    stop      leader: the group ends, and why (before the start, too)
    leave     leader: all workers have ended well
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast

from tfmp.ipc import NotOurs
from tfmp.rendezvous.identity import Identity, differences, printable
from tfmp.rendezvous.peer_status import EndReason, Roster

T = TypeVar("T")

_MAX_TEXT = 4000


@dataclass(frozen=True)
class Dial:
    """Connect to the address of ``rank``; answer with ``dialed`` or ``found``."""

    rank: int


@dataclass(frozen=True)
class Send:
    """Send a message over a connection."""

    link: int
    message: Mapping[str, Any]


@dataclass(frozen=True)
class Close:
    """Close a connection once all that was sent has left."""

    link: int


@dataclass(frozen=True)
class Say:
    """Tell the user a line."""

    text: str


Action = Dial | Send | Close | Say


@dataclass(frozen=True)
class Waits:
    """How long to wait for what, in seconds.

    Attributes:
        start_timeout_s: For all to join and be ready.
        heartbeat_timeout_s: Without a word from a peer, until it counts as lost.
        beat_every_s: Between two words.
        summary_every_s: Between two lists of missing workers.
        first_summary_s: Before the first: workers started together meet in less.
        first_answers_s: Before the first at the latest: the first attempt to reach each has ended by then.
        dial_every_s: Between two attempts to reach a worker.
        silence_s: Without a word, after which a peer is the likely cause of another's failure.
        explain_s: For the true cause to show after a failure that looks like a victim's.
        restart_s: That a training running at the leader's address may belong to a group that is about to end.
    """

    start_timeout_s: float = 300.0
    heartbeat_timeout_s: float = 30.0
    beat_every_s: float = 1.0
    summary_every_s: float = 10.0
    first_summary_s: float = 2.0
    first_answers_s: float = 4.0
    dial_every_s: float = 1.0
    silence_s: float = 3.5
    explain_s: float = 4.0
    restart_s: float = 10.0


@dataclass(frozen=True)
class Report:
    """How a worker process failed.

    Attributes:
        what: One sentence.
        where: The place, where the worker named one.
        hint: What to do, where it said so.
        exit_code: Its exit code as a shell shows it.
        victim: Whether the failure is of the kind that the loss of a peer causes.
        hang_s: For how long it has waited for the others in vain; ``None`` where it did not.
    """

    what: str
    where: str | None = None
    hint: str | None = None
    exit_code: int = 1
    victim: bool = False
    hang_s: float | None = None

    def to_message(self) -> dict[str, Any]:
        """Return it as a ``failed`` message."""
        return {"type": "failed", **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Report:
        """Read it back.

        Raises:
            NotOurs: A value is missing or of the wrong type.
        """
        return cls(
            what=take(message, "what", str),
            where=_optional_text(message, "where"),
            hint=_optional_text(message, "hint"),
            exit_code=_exit_code(message),
            victim=take(message, "victim", bool),
            hang_s=None if message.get("hang_s") is None else take(message, "hang_s", float),
        )


def take(message: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a message's value of exactly the given type; a text without control characters.

    Raises:
        NotOurs: It is missing or of another type.
    """
    value = message.get(name)
    if type(value) is not kind:
        raise NotOurs(f"a message {message['type'][:20]} without {name}")
    return cast(T, printable(value, _MAX_TEXT, keep="\n") if isinstance(value, str) else value)


def stop_message(end_reason: EndReason) -> dict[str, Any]:
    """Return the message that ends the group."""
    return {"type": "stop", **asdict(end_reason)}


def read_stop(message: Mapping[str, Any]) -> EndReason:
    """Read :func:`stop_message` back.

    Raises:
        NotOurs: A value is missing or of the wrong type.
    """
    culprit = message.get("culprit")
    return EndReason(
        what=take(message, "what", str),
        culprit=None if culprit is None else take(message, "culprit", int),
        where=_optional_text(message, "where"),
        hint=_optional_text(message, "hint"),
        exit_code=_exit_code(message),
    )


def disagreement(ours: Identity, theirs: Identity, roster: Roster) -> EndReason | None:
    """Return the reason to stop if two workers disagree, ``None`` if they agree.

    Args:
        ours: This launcher.
        theirs: The other.
        roster: The group as this one knows it.
    """
    first, second = sorted((ours, theirs), key=lambda identity: identity.rank)
    found = differences(first, second)
    if not found:
        return None
    names = [
        roster.names[identity.rank] if 0 <= identity.rank < roster.size else f"worker {identity.rank}"
        for identity in (first, second)
    ]
    if names[0] == names[1]:
        names = [f"{names[0]} on {identity.host} (pid {identity.pid})" for identity in (first, second)]
    listed = [f"{value.name}: {names[0]} has {value.ours}, {names[1]} has {value.theirs}" for value in found[:5]]
    more = f"\n  and {len(found) - 5} more" if len(found) > 5 else ""
    return EndReason(
        "the workers do not agree about " + "\n  also:  ".join(listed) + more,
        where=", ".join(value.name for value in found[:5]),
        hint="start every worker with the same configuration, options and versions",
        exit_code=2,
    )


def _exit_code(message: Mapping[str, Any]) -> int:
    """A failure's exit code; never one that would pass for success."""
    code = take(message, "exit_code", int)
    return code if 1 <= code <= 255 else 1


def _optional_text(message: Mapping[str, Any], name: str) -> str | None:
    return None if message.get(name) is None else take(message, name, str)
