"""A group that does not get on: noticed by signs of progress, explained by where each worker is."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tfmp.events import (
    CheckpointFailed,
    CheckpointSaved,
    EpochEnd,
    FirstStep,
    ModelSaved,
    Progress,
    Ready,
    Saving,
    Validating,
    WeightsDigest,
    WorkerEvent,
)
from tfmp.workers.group import WorkerGroup

STOPPED = "T"
"""State in /proc/PID/stat of a process that SIGSTOP has stopped. (A debugger's is ``t``.)"""

_LEAST_S = 60.0
_FACTOR = 10.0
_RECENT = 50
# Long enough for someone who stops and continues a process on purpose in one go.
_STOPPED_PATIENCE_S = 2.0
# Between two looks. If it was longer, this process itself stood still (Ctrl-Z, a stopped container).
_OWN_PAUSE_S = 5.0


@dataclass(frozen=True)
class Hang:
    """A group that does not get on.

    Args:
        waited_s: Seconds since the last sign of progress, or since a worker was seen stopped.
        stopped: Ranks that SIGSTOP has stopped.
    """

    waited_s: float
    stopped: tuple[int, ...] = ()

    def describe(self) -> str:
        """Say it in one sentence."""
        if self.stopped:
            names = ", ".join(map(str, self.stopped))
            noun, verb = ("worker", "is") if len(self.stopped) == 1 else ("workers", "are")
            return f"{noun} {names} {verb} stopped (SIGSTOP), and the others wait"
        return f"no step has finished for {self.waited_s:.0f} s"


class Watchdog:
    """Notices that a group hangs.

    Args:
        timeout_s: Without progress; ``None``: ten times the slowest recent interval, at least a minute.
        first_timeout_s: From :meth:`arm` to the first step: TensorFlow traces and compiles.
        now_s: The time.
    """

    def __init__(self, timeout_s: float | None, first_timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._first_timeout_s = first_timeout_s
        self._intervals: deque[float] = deque(maxlen=_RECENT)
        self._progress_s = self._look_s = now_s
        self._armed = self._stepped = False
        self._stopped_since: dict[int, float] = {}

    @property
    def timeout_s(self) -> float:
        """The longest wait for the next sign of progress."""
        if not self._stepped:
            return max(self._first_timeout_s, self._timeout_s or 0.0)
        if self._timeout_s is not None:
            return self._timeout_s
        return max(_LEAST_S, _FACTOR * max(self._intervals, default=0.0))

    def arm(self, now_s: float) -> None:
        """All workers are ready: from now on steps are expected. Before, only stopped processes are noticed."""
        self._armed = True
        self._progress_s = now_s

    def progress(self, now_s: float, *, step: bool) -> None:
        """Take note that something has happened: a step, or else evaluation or saving."""
        if step:
            if self._stepped:
                self._intervals.append(now_s - self._progress_s)
            self._stepped = True
        self._progress_s = now_s

    def look(self, now_s: float, states: Mapping[int, str]) -> Hang | None:
        """Return a hang, if there is one.

        Args:
            now_s: The time.
            states: State letter of each living worker's process, by rank.
        """
        pause_s, self._look_s = now_s - self._look_s, now_s
        if pause_s > _OWN_PAUSE_S:
            self._progress_s += pause_s
            self._stopped_since.clear()
        stopped = [rank for rank, state in states.items() if state == STOPPED]
        self._stopped_since = {rank: self._stopped_since.get(rank, now_s) for rank in stopped}
        if stopped:
            waited_s = now_s - min(self._stopped_since.values())
            if waited_s >= _STOPPED_PATIENCE_S:
                return Hang(waited_s, tuple(sorted(stopped)))
        waited_s = now_s - self._progress_s
        return Hang(waited_s) if self._armed and waited_s >= self.timeout_s else None


_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.*)$')
#: Where a worker that waits for its peers is, in Python: TensorFlow runs an operation, and collectives are those.
_IN_COLLECTIVE = "quick_execute"
_COLLECTIVES_FILE = "cross_device_ops.py"
_SHOWN_FRAMES = 8


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({PurePath(self.file).name}:{self.line})"


Stack = tuple[Frame, ...]
"""The innermost call first."""


@dataclass(frozen=True)
class HangReport:
    """What was found.

    Args:
        hang: What was noticed.
        stacks: Main thread of each worker; empty where it did not answer.
        odd: Ranks that are where the others are not; empty if that cannot be told.
    """

    hang: Hang
    stacks: Mapping[int, Stack]
    odd: tuple[int, ...]

    def groups(self) -> list[tuple[tuple[int, ...], Stack]]:
        """Return ranks by equal stacks, the largest group first."""
        by_stack: dict[Stack, list[int]] = {}
        for rank, stack in sorted(self.stacks.items()):
            by_stack.setdefault(stack, []).append(rank)
        return sorted(((tuple(ranks), stack) for stack, ranks in by_stack.items()), key=lambda g: (-len(g[0]), g[0]))

    def describe(self) -> list[str]:
        """Return lines for a person."""
        lines = [self.hang.describe()]
        for ranks, stack in self.groups():
            noun = "worker" if len(ranks) == 1 else "workers"
            where = " < ".join(map(str, stack[:_SHOWN_FRAMES])) or "no answer: stopped, or stuck in native code"
            lines.append(f"{noun} {', '.join(map(str, ranks))}: {where}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return it for ``failure.json``."""
        return {
            "what": self.hang.describe(),
            "odd_workers": list(self.odd),
            "stacks": [{"workers": list(ranks), "frames": [str(f) for f in stack]} for ranks, stack in self.groups()],
        }


def examine(hang: Hang, dumps: Mapping[int, str]) -> HangReport:
    """Find the odd worker.

    A stopped process explains all. Otherwise it is the worker that is not in a collective while others are, or the
    worker whose stack fewer share.

    Args:
        hang: What was noticed.
        dumps: What ``faulthandler`` wrote, by rank.
    """
    stacks = {rank: main_stack(text) for rank, text in dumps.items()}
    hang_report = HangReport(hang, stacks, hang.stopped)
    if hang.stopped or len(stacks) < 2:
        return hang_report
    waiting = [rank for rank, stack in stacks.items() if in_collective(stack)]
    elsewhere = [rank for rank in stacks if rank not in waiting]
    if waiting and elsewhere:
        return HangReport(hang, stacks, tuple(sorted(elsewhere)))
    sizes = hang_report.groups()
    few = [ranks for ranks, _ in sizes[1:] if len(ranks) < len(sizes[0][0])]
    return HangReport(hang, stacks, tuple(sorted(rank for ranks in few for rank in ranks)))


def in_collective(stack: Stack) -> bool:
    """Whether a worker with this stack waits for its peers: in an operation, or for the threads that run one."""
    runs_operation = any(frame.function == _IN_COLLECTIVE for frame in stack[:3])
    return runs_operation or any(PurePath(frame.file).name == _COLLECTIVES_FILE for frame in stack)


def main_stack(dump: str) -> Stack:
    """The main thread's stack in the last dump of a text: the one that ends in the worker's entry, else the longest."""
    threads = _threads(dump)
    entered = [stack for stack in threads if any(f.file.endswith("tfmp/workers/child.py") for f in stack)]
    if entered:
        return entered[-1]
    return max(threads, key=len, default=())


def _threads(dump: str) -> Sequence[Stack]:
    threads: list[list[Frame]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            threads[-1].append(Frame(match[1], int(match[2]), match[3]))
    return [tuple(frames) for frames in threads]


#: Signs that a worker gets on although no step ends.
_OTHER_PROGRESS = (Validating, EpochEnd, Saving, CheckpointSaved, CheckpointFailed, ModelSaved, WeightsDigest)
#: For the workers to write down their stacks.
STACKS_WAIT_S = 0.5


class HangDetector:
    """Notices a hang, asks the workers where they are, and stops them once it is known.

    Args:
        ranks: The workers; the progress of the first stands for all, as they go in step.
        timeout_s: See :class:`Watchdog`.
        start_timeout_s: Bound of the time to the first step.
        now_s: The time.

    Attributes:
        report: What was found; ``None`` while nothing hangs.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float | None, start_timeout_s: float, now_s: float) -> None:
        self.report: HangReport | None = None
        self._ranks = ranks
        self._watchdog = Watchdog(timeout_s, start_timeout_s, now_s)
        self._ready: set[int] = set()
        self._hang: Hang | None = None
        self._asked_s = 0.0

    def on_event(self, rank: int, event: WorkerEvent, now_s: float) -> None:
        """Take an event of a worker as a sign of progress."""
        if isinstance(event, Ready):
            self._ready.add(rank)
            if len(self._ready) == len(self._ranks):
                self._watchdog.arm(now_s)
        elif rank == self._ranks[0]:
            if isinstance(event, (FirstStep, Progress)):
                self._watchdog.progress(now_s, step=True)
            elif isinstance(event, _OTHER_PROGRESS):
                self._watchdog.progress(now_s, step=False)

    def on_tick(self, group: WorkerGroup, now_s: float) -> None:
        """Look at the workers; stop them if they hang, once it is known where."""
        if self._hang is None:
            hang = self._watchdog.look(now_s, group.states())
            if hang is not None:
                self._ask(hang, group, now_s)
        elif self.report is None and now_s - self._asked_s >= STACKS_WAIT_S:
            self.report = examine(self._hang, group.stacks())
            group.stop(self._hang.describe())

    def suspect(self, waited_s: float, group: WorkerGroup, now_s: float) -> None:
        """Workers elsewhere have waited for so long in vain for these: find out where they are, and stop them."""
        if self._hang is None:
            self._ask(Hang(waited_s), group, now_s)

    def _ask(self, hang: Hang, group: WorkerGroup, now_s: float) -> None:
        self._hang, self._asked_s = hang, now_s
        group.request_stacks()
