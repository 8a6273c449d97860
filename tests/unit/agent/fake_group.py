"""A group of workers without processes: scripted histories on a clock that a test moves, through the real lifecycle."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfmp.events import Ready, UncaughtException, WorkerEvent
from tfmp.workers.group import FromWorker, GroupEvent, Line, Tick
from tfmp.workers.lifecycle import Lifecycle, StopPolicy
from tfmp.workers.lifecycle_events import (
    Action,
    Exited,
    Failing,
    ForkServerLost,
    GiveUp,
    Kill,
    SignalReceived,
    Started,
    StopRequested,
    Terminate,
    WorkerReady,
)
from tfmp.workers.spec import GroupResult, WorkerSpec

TICK_S = 0.25
#: Above any process id that Linux gives.
_NO_PID = 1 << 23
_LONGEST_S = 4000.0


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Sends:
    rank: int
    event: WorkerEvent


@dataclass(frozen=True)
class Prints:
    rank: int
    text: str


@dataclass(frozen=True)
class Ends:
    """The worker ends by itself: an exit code, or -n for signal n."""

    rank: int
    code: int = 0


@dataclass(frozen=True)
class Stops:
    """Its process gets SIGSTOP."""

    rank: int


@dataclass(frozen=True)
class UserSends:
    """The launcher gets a stop signal."""

    signum: int


@dataclass(frozen=True)
class ServerDies:
    pass


Step = tuple[float, Any]


@dataclass
class Script:
    """What happens in one attempt.

    Args:
        steps: Seconds after the start, and what happens then.
        stacks: By rank, what a worker writes when it is asked for its stack.
        deaf: Ranks that do not end on SIGTERM.
        says_when_stopped: By rank, what a worker sends before it ends on SIGTERM, and its exit code.
    """

    steps: Sequence[Step]
    stacks: Mapping[int, str] = field(default_factory=dict)
    deaf: frozenset[int] = frozenset()
    says_when_stopped: Mapping[int, tuple[WorkerEvent, int]] = field(default_factory=dict)


class FakeGroup:
    """Plays one script an attempt. See :class:`tfmp.workers.group.WorkerGroup`.

    Args:
        clock: Moved by the group.
        scripts: One an attempt.
        policy: How long to wait for what.
        signal_while_waiting: A stop signal that comes between two attempts.
        tick_s: Seconds between two ticks.
    """

    def __init__(
        self,
        clock: Clock,
        scripts: Sequence[Script],
        policy: StopPolicy | None = None,
        signal_while_waiting: int | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self.waits_s: list[float] = []
        self.kills: list[int] = []
        self.stack_requests = 0
        self.closed_early = False
        self._clock = clock
        self._scripts = list(scripts)
        self._policy = policy or StopPolicy(grace_period_s=10.0, failure_grace_s=0.2, settle_s=0.4)
        self._signal_while_waiting = signal_while_waiting
        self._tick_s = tick_s
        self._result = GroupResult(exits=())

    def run(self, specs: Sequence[WorkerSpec]) -> Generator[GroupEvent, None, None]:
        self._script = self._scripts.pop(0)
        ranks = [spec.rank for spec in specs]
        self._lifecycle = Lifecycle(ranks, reporting=ranks, policy=self._policy, now_s=self._clock())
        self._states = dict.fromkeys(ranks, "S")
        self._tails: dict[int, list[str]] = {rank: [] for rank in ranks}
        self._stacks: dict[int, str] = {}
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, Any]] = []
        self._happened: list[GroupEvent] = []
        for after_s, happening in self._script.steps:
            self._plan(after_s, happening)
        for rank in ranks:
            self._lifecycle.handle(Started(rank, _NO_PID + rank), self._clock())
        next_tick_s = self._clock()
        ends_s = self._clock() + _LONGEST_S
        try:
            while not self._lifecycle.finished:
                times = [next_tick_s, *(entry[0] for entry in self._agenda[:1])]
                if self._lifecycle.deadline_s is not None:
                    times.append(self._lifecycle.deadline_s)
                self._clock.now_s = max(self._clock.now_s, min(times))
                while self._agenda and self._agenda[0][0] <= self._clock():
                    self._play(heapq.heappop(self._agenda)[2])
                self._act(self._lifecycle.tick(self._clock()))
                assert self._clock() <= ends_s, "nobody ended the group"
                happened, self._happened = self._happened, []
                yield from happened
                if self._clock() >= next_tick_s:
                    next_tick_s = self._clock() + self._tick_s
                    yield Tick()
        finally:
            self.closed_early = not self._lifecycle.finished
        tails = {rank: tuple(lines) for rank, lines in self._tails.items()}
        result = self._lifecycle.result()
        self._result = GroupResult(**{**vars(result), "tails": tails})

    def result(self) -> GroupResult:
        return self._result

    @property
    def pids(self) -> Mapping[int, int]:
        return {rank: _NO_PID + rank for rank in self._states}

    def states(self) -> Mapping[int, str]:
        return self._states

    def request_stacks(self) -> None:
        self.stack_requests += 1
        self._stacks = dict(self._script.stacks)

    def stacks(self) -> Mapping[int, str]:
        return {rank: self._stacks.get(rank, "") for rank in self._states}

    def stop(self, reason: str) -> None:
        self._act(self._lifecycle.handle(StopRequested(reason), self._clock()))

    def wait(self, delay_s: float) -> int | None:
        self.waits_s.append(delay_s)
        self._clock.now_s += delay_s
        return self._signal_while_waiting

    def _plan(self, after_s: float, happening: Any) -> None:
        heapq.heappush(self._agenda, (self._clock() + after_s, next(self._order), happening))

    def _play(self, happening: Any) -> None:
        now_s = self._clock()
        match happening:
            case Sends(rank, event) if rank in self._states:
                if isinstance(event, Ready):
                    self._act(self._lifecycle.handle(WorkerReady(rank), now_s))
                elif isinstance(event, UncaughtException):
                    self._act(self._lifecycle.handle(Failing(rank), now_s))
                self._happened.append(FromWorker(rank, event))
            case Prints(rank, text) if rank in self._states:
                self._tails[rank].append(text)
                self._happened.append(Line(rank, "stderr", text))
            case Ends(rank, code) if rank in self._states:
                del self._states[rank]
                self._act(self._lifecycle.handle(Exited(rank, code), now_s))
            case Stops(rank):
                self._states[rank] = "T"
            case UserSends(signum):
                self._act(self._lifecycle.handle(SignalReceived(signum), now_s))
            case ServerDies():
                self._states.clear()
                self._act(self._lifecycle.handle(ForkServerLost("the fork server was killed"), now_s))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Terminate(rank) if rank not in self._script.deaf and self._states.get(rank) == "S":
                    event, code = self._script.says_when_stopped.get(rank, (None, -15))
                    if event is not None:
                        self._plan(0.05, Sends(rank, event))
                    self._plan(0.05, Ends(rank, code))
                case Kill(rank):
                    self.kills.append(rank)
                    self._plan(0.0, Ends(rank, -9))
                case GiveUp():
                    raise AssertionError("a worker outlived SIGKILL")
