"""What the state machine of a group hears (events) and says (actions). Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """A worker was forked."""

    rank: int
    pid: int


@dataclass(frozen=True)
class NotForked:
    """A worker could not be forked."""

    rank: int
    reason: str


@dataclass(frozen=True)
class WorkerReady:
    """A worker reported that it is about to work."""

    rank: int


@dataclass(frozen=True)
class Failing:
    """A worker reported its failure; its exit follows. The first such sign, not the first exit, is the culprit's."""

    rank: int


@dataclass(frozen=True)
class Reason:
    """Why a worker's exit code is what it is, for a person."""

    rank: int
    reason: str


@dataclass(frozen=True)
class Exited:
    """A worker ended: ``code`` is its exit code, or -n for death by signal n."""

    rank: int
    code: int
    peak_rss_bytes: int | None = None


@dataclass(frozen=True)
class SignalReceived:
    """The launcher got a stop signal."""

    signum: int


@dataclass(frozen=True)
class StopRequested:
    """The caller wants the group to end; the run has failed for this reason."""

    reason: str


@dataclass(frozen=True)
class ForkServerLost:
    """The fork server is gone, and all workers with it."""

    reason: str


WorkerProcessEvent = Started | NotForked | WorkerReady | Failing | Reason | Exited

Event = WorkerProcessEvent | SignalReceived | StopRequested | ForkServerLost


@dataclass(frozen=True)
class Terminate:
    """Ask a worker to end: SIGTERM."""

    rank: int


@dataclass(frozen=True)
class Kill:
    """End a worker and its process group: SIGKILL."""

    rank: int


@dataclass(frozen=True)
class GiveUp:
    """Workers outlive SIGKILL: end the fork server and answer with :class:`ForkServerLost`."""

    ranks: tuple[int, ...]


Action = Terminate | Kill | GiveUp
