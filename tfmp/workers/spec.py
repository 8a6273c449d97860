"""What a group of workers is asked to be, and what became of it. Values only, no processes."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tfmp.errors import EXIT_FAILED, EXIT_OK

Cause = Literal["done", "failed", "stopped by tfmp"]
Stream = Literal["stdout", "stderr", "tfmp"]
"""Where a line comes from: the worker's own streams, or tfmp itself speaking about that worker."""

EXIT_CANNOT_EXECUTE = 126
EXIT_NOT_FOUND = 127


def signal_name(signum: int) -> str:
    """Return ``"SIGKILL"`` for 9, and ``"signal 77"`` for a number without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


@dataclass(frozen=True)
class WorkerSpec:
    """One worker to start: either a program (``argv``) or a function of the fork server (``target``).

    Args:
        rank: The worker's number in the group, from 0. Unique in a group.
        env: Variables set on top of the environment that the fork server was started with.
        log_path: File that receives every byte the worker prints. Replaced if it exists; parent folders are made.
        unset: Variables removed before ``env`` is applied.
        argv: Program and arguments. The program is looked up in the worker's own ``PATH``.
        target: ``"package.module:function"``, called in the forked process as ``function(payload, channel)`` with a
            :class:`tfmp.events.EventChannel`. The exit code is 0 when it returns, 1 when it raises.
        payload: Anything JSON can carry, for ``target``.
        cpus: CPU numbers the worker may run on. ``None``: those of the launcher.

    Raises:
        ValueError: Not exactly one of ``argv`` and ``target``, or one of them is malformed.
    """

    rank: int
    env: Mapping[str, str]
    log_path: Path
    unset: tuple[str, ...] = ()
    argv: tuple[str, ...] | None = None
    target: str | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    cpus: frozenset[int] | None = None

    def __post_init__(self) -> None:
        if (self.argv is None) == (self.target is None):
            raise ValueError(f"worker {self.rank}: expected exactly one of argv and target")
        if self.argv is not None and not self.argv:
            raise ValueError(f"worker {self.rank}: expected a program in argv, received nothing")
        if self.target is not None and not all(self.target.partition(":")):
            raise ValueError(f'worker {self.rank}: expected target "module:function", received {self.target!r}')

    def to_json(self) -> dict[str, Any]:
        """What the fork server needs to start it, as JSON values."""
        return {
            "rank": self.rank,
            "env": dict(self.env),
            "unset": list(self.unset),
            "argv": None if self.argv is None else list(self.argv),
            "target": self.target,
            "payload": dict(self.payload),
            "cpus": None if self.cpus is None else sorted(self.cpus),
        }


@dataclass(frozen=True)
class WorkerExit:
    """How one worker ended.

    Args:
        rank: The worker's number.
        pid: Its process id; ``None`` if it could not be forked.
        exit_code: Its exit code; ``None`` if a signal killed it.
        signal: The signal that killed it; ``None`` if it exited.
        cause: ``"done"`` (exit 0), ``"failed"`` (by itself), or ``"stopped by tfmp"`` (after tfmp told it to stop,
            whatever its exit code).
        peak_rss_bytes: Largest resident memory, from ``wait4``; a forked worker's includes what it shares with the
            fork server. ``None`` if unknown.
        seconds: Life time. 0 if it could not be forked.
        reason: What the exit code alone does not say, as ``"command not found: trian.py"``. ``None`` if nothing.
    """

    rank: int
    pid: int | None
    exit_code: int | None
    signal: int | None
    cause: Cause
    peak_rss_bytes: int | None = None
    seconds: float = 0.0
    reason: str | None = None

    @property
    def shell_code(self) -> int:
        """The exit code a shell would show: the program's own, or 128 + n for death by signal n."""
        if self.signal is not None:
            return 128 + self.signal
        return EXIT_FAILED if self.exit_code is None else self.exit_code

    def describe(self) -> str:
        """Return ``"exit code 7"`` or ``"signal 9 (SIGKILL)"``, and the reason where one is known."""
        text = f"exit code {self.exit_code}"
        if self.signal is not None:
            text = f"signal {self.signal} ({signal_name(self.signal)})"
        return f"{text}: {self.reason}" if self.reason else text


@dataclass(frozen=True)
class GroupResult:
    """How a group ended.

    Args:
        exits: One entry a worker, by rank. Empty if the group was stopped before any worker was started.
        first_failure: The worker that failed first; ``None`` if none failed by itself.
        stopped_by: The signal by which the user stopped a group that had not failed; ``None`` otherwise.
        problem: One sentence for a failure that is not one worker's: late start, fork server gone, stop asked
            for by the caller. ``None`` otherwise.
        not_ready: Ranks that had not reported ready when the start timeout ran out.
        tails: The last lines each worker printed.
        order: Ranks by the order of the first sign of failure, victims among them.
        fork_server_lost: Whether the fork server is gone: the next group needs a new one.
        signalled: The first stop signal of the user, whether the group had failed before or not.
    """

    exits: tuple[WorkerExit, ...]
    first_failure: WorkerExit | None = None
    stopped_by: int | None = None
    problem: str | None = None
    not_ready: tuple[int, ...] = ()
    tails: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    fork_server_lost: bool = False
    signalled: int | None = None

    @property
    def exit_code(self) -> int:
        """0, the first failing worker's own code (128 + n for signal n), 128 + n if stopped by signal n, else 1."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        if self.first_failure is not None:
            return self.first_failure.shell_code
        return EXIT_FAILED if self.problem is not None else EXIT_OK

    def tail(self, rank: int) -> list[str]:
        """Return the last lines (at most 20) that worker ``rank`` printed, standard error among them."""
        return list(self.tails.get(rank, ()))
