"""What runs a group of workers: the events it yields, and the interface that the controller uses."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tfmp.events import WorkerEvent
from tfmp.workers.fork_client import ForkServerReady
from tfmp.workers.spec import GroupResult, Stream, WorkerSpec


@dataclass(frozen=True)
class FromWorker:
    """An event that a worker sent."""

    rank: int
    event: WorkerEvent


@dataclass(frozen=True)
class Line:
    """A line that a worker printed, without its end; ``stream`` is ``"tfmp"`` for a remark of the launcher's own."""

    rank: int
    stream: Stream
    text: str


@dataclass(frozen=True)
class ServerReady:
    """The fork server has imported everything; the workers are being started."""

    server: ForkServerReady


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


GroupEvent = FromWorker | Line | ServerReady | Tick


class WorkerGroup(Protocol):
    """The workers of this machine, for one attempt after another."""

    def run(self, specs: Sequence[WorkerSpec]) -> Generator[GroupEvent, None, None]:
        """Start the workers and yield what happens until all have ended and nothing they started is left.

        If one worker fails, all are stopped. Closing the iterator early kills them.
        """

    def result(self) -> GroupResult:
        """How the last run ended."""

    @property
    def pids(self) -> Mapping[int, int]:
        """Process ids of the workers that are alive, by rank."""

    def states(self) -> Mapping[int, str]:
        """State letters (see proc(5)) of the workers that are alive, by rank."""

    def request_stacks(self) -> None:
        """Ask the workers that are functions to write down their Python stacks."""

    def stacks(self) -> Mapping[int, str]:
        """What they have written so far, by rank."""

    def stop(self, reason: str) -> None:
        """Stop the group as failed, quickly; ``reason`` becomes the result's ``problem``."""

    def wait(self, delay_s: float) -> int | None:
        """Wait between two attempts. A stop signal ends the wait and is returned."""
