"""The hang_report of a hang: where each worker is, who is where the others are not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tfmp.agent.failures.watchdog import Hang

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

    A stopped process explains all. Else it is the one that is not in a collective while others are; else the one whose
    stack fewer share.

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
