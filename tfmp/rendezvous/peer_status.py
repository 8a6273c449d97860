"""The status of a worker as another one sees it, with one message and one hint for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tfmp.errors import TfmpError

_MAX_LISTED = 8


class Kind(Enum):
    """Why a worker is not here, as far as another one can see."""

    UNHEARD = "not heard from yet"
    UNRESOLVED = "its name does not resolve"
    REFUSED = "connection refused"
    NO_ANSWER = "no answer"
    FOREIGN = "answers but did not join"
    ALREADY_TRAINING = "answers but did not join: a TensorFlow server is running there already"
    OTHER_TOKEN = "answers but did not join: it has another cluster.token"
    OTHER_RUN = "answers but did not join: it belongs to another run"
    ELSEWHERE = "its address leads to another worker"
    UP = "is up but did not join"
    TAKEN = "already taken by another worker"


@dataclass(frozen=True)
class PeerStatus:
    """The result of one attempt to reach a worker.

    Args:
        kind: The kind.
        detail: More about it, as the system's words for an error; empty for none.
    """

    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} ({self.detail})" if self.detail else self.kind.value


@dataclass(frozen=True)
class Roster:
    """Who belongs to the group: for each rank its name (``worker 1``, ``chief 0``) and address.

    Args:
        names: By rank.
        addresses: By rank, ``host:port``; ``None`` where it is not known before the workers have met.
    """

    names: Sequence[str]
    addresses: Sequence[str | None]

    @property
    def size(self) -> int:
        """Number of workers, the chief among them."""
        return len(self.names)

    def label(self, rank: int) -> str:
        """``worker 1 (h1:2222)``; the name alone where no address is known."""
        address = self.addresses[rank]
        return f"{self.names[rank]} ({address})" if address else self.names[rank]


@dataclass(frozen=True)
class EndReason:
    """Why the group does not start, or ends.

    Args:
        what: One sentence.
        culprit: The rank at fault; ``None`` where it is nobody's or more than one's.
        where: Worker and address, or a key.
        hint: What to do.
        exit_code: This program's exit code.
    """

    what: str
    culprit: int | None = None
    where: str | None = None
    hint: str | None = None
    exit_code: int = 1

    def to_error(self) -> TfmpError:
        """Return it as the error to raise."""
        return TfmpError(self.what, where=self.where, hint=self.hint, exit_code=self.exit_code)


def missing_summary(roster: Roster, here: Iterable[int], missing: Mapping[int, PeerStatus], own: int) -> str:
    """Return the line that says who is here and who is missing.

    Args:
        roster: The group.
        here: Ranks that have joined.
        missing: By rank, what was found at its address.
        own: This launcher's rank.
    """
    present = ["this one" if rank == own else roster.names[rank] for rank in sorted(here)]
    absent = [f"{roster.label(rank)}: {status}" for rank, status in sorted(missing.items())]
    line = f"waiting for {len(absent)} of {roster.size} workers: {_listed(absent, '; ')}"
    return f"{line}. Here: {_listed(present, ', ')}" if present else line


def missing_reason(roster: Roster, missing: Mapping[int, PeerStatus], timeout_s: float) -> EndReason:
    """Return the reason for workers that did not join in time."""
    absent = [f"{roster.label(rank)}: {status}" for rank, status in sorted(missing.items())]
    first, status = min(missing.items())
    return EndReason(
        f"{len(absent)} of {roster.size} workers did not join within {timeout_s:g} s: {_listed(absent, '; ')}",
        culprit=first if len(missing) == 1 else None,
        where=", ".join(roster.label(rank) for rank in sorted(missing)[:_MAX_LISTED]),
        hint=way_out(roster, first, status.kind),
    )


def way_out(roster: Roster, rank: int, kind: Kind) -> str:
    """Return what to do about a worker that is missing for a reason of this kind."""
    address = roster.addresses[rank] or "its address"
    host, _, port = address.rpartition(":")
    return {
        Kind.UNHEARD: f"start {roster.names[rank]} with the same --rendezvous",
        Kind.UNRESOLVED: f"check the spelling of {host}; it must resolve on every host (DNS or /etc/hosts)",
        Kind.REFUSED: f"nothing listens at {address}: start {roster.names[rank]} there; after a failure the whole "
        "group must be restarted, every worker of it",
        Kind.NO_ANSWER: f"check that the host is up and that firewalls let TCP port {port} through, both ways",
        Kind.FOREIGN: f"another program uses {address}: give {roster.names[rank]} another port, on every host",
        Kind.ALREADY_TRAINING: "a training is running there: the whole group must be restarted, every worker of it",
        Kind.OTHER_TOKEN: "give every worker the same cluster.token",
        Kind.OTHER_RUN: "give each run its own ports",
        Kind.ELSEWHERE: f"check --index on {host}, and that it leads to the same host everywhere (DNS, /etc/hosts)",
        Kind.UP: f"{roster.names[rank]} cannot reach {roster.label(0)}: check names and firewalls there",
        Kind.TAKEN: "give each worker its own --index",
    }[kind]


def _listed(items: Sequence[str], separator: str) -> str:
    more = len(items) - _MAX_LISTED
    return separator.join([*items[:_MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])
