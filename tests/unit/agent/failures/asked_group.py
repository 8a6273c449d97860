"""A group whose workers answer with stacks when they are asked for them."""

from __future__ import annotations

from collections.abc import Mapping


class AskedGroup:
    """What detectors see of a group. See :class:`tfmp.workers.group.WorkerGroup`.

    Attributes:
        answers: By rank, the stacks that workers have written.
        requests: How often they were asked.
        stopped: The reasons of the stops.
    """

    def __init__(self, ranks: int, *, states: Mapping[int, str] | None = None) -> None:
        self.pids = {rank: 100 + rank for rank in range(ranks)}
        self.answers: Mapping[int, str] = {}
        self.requests = 0
        self.stopped: list[str] = []
        self._states = states or {}

    def states(self) -> Mapping[int, str]:
        return {rank: self._states.get(rank, "S") for rank in self.pids}

    def request_stacks(self) -> None:
        self.requests += 1

    def stacks(self) -> Mapping[int, str]:
        return self.answers

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)
