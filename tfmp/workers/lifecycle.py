"""What to do about a group of workers, and when: a state machine without processes, clocks or I/O.

Events go in, each with the time at which it was seen; actions come out. The phases of a group::

    RUNNING ──a worker fails──▶ SETTLING ──settle_s, or the user stops it──▶ STOPPING ──grace──▶ KILLING ──▶ given up
       └────────── the user stops it, the start takes too long ────────────────▲

Whatever the phase, the group is finished once every worker has ended. SETTLING lets the peers of a failed worker
report their own failures before tfmp ends them, so that the result tells first failure, later failures and workers
that were fine apart.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tfmp.workers.lifecycle_events import (
    Action,
    Event,
    Exited,
    Failing,
    ForkServerLost,
    GiveUp,
    Kill,
    NotForked,
    Reason,
    SignalReceived,
    Started,
    StopRequested,
    Terminate,
    WorkerProcessEvent,
    WorkerReady,
)
from tfmp.workers.spec import EXIT_CANNOT_EXECUTE, Cause, GroupResult, WorkerExit

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A terminal's Ctrl-C can arrive twice at once: from the terminal and again from a wrapper (make, uv run, timeout)
# that passes it on. Only a later one is a person who has lost patience.
_SECOND_SIGNAL_AFTER_S = 0.5
_KILL_CONFIRM_S = 5.0


class Phase(Enum):
    """Where a group stands; see the module's text."""

    RUNNING = auto()
    SETTLING = auto()
    STOPPING = auto()
    KILLING = auto()


@dataclass(frozen=True)
class StopPolicy:
    """How long to wait for what, in seconds.

    Args:
        grace_period_s: Between SIGTERM and SIGKILL when the user stops a group that works.
        failure_grace_s: The same when there is nothing to save: a worker has failed, or not all were ready yet.
        settle_s: Between the first failure and SIGTERM for the others.
        start_timeout_s: For all workers to report ready. ``None``: no limit.
    """

    grace_period_s: float = 10.0
    failure_grace_s: float = 2.0
    settle_s: float = 1.0
    start_timeout_s: float | None = None


@dataclass
class _Worker:
    rank: int
    pid: int | None = None
    started_s: float = 0.0
    told_to_stop: bool = False
    reason: str | None = None
    exit: WorkerExit | None = None


class Lifecycle:
    """The state of one group from its start to its end.

    Args:
        ranks: All workers.
        reporting: Those that will report :class:`WorkerReady`.
        policy: The waits.
        now_s: The time, on the clock of all later calls.
    """

    def __init__(self, ranks: Sequence[int], *, reporting: Collection[int], policy: StopPolicy, now_s: float) -> None:
        self._workers = {rank: _Worker(rank) for rank in ranks}
        self._unready = set(reporting)
        self._policy = policy
        self._phase = Phase.RUNNING
        self._deadline_s = None if policy.start_timeout_s is None else now_s + policy.start_timeout_s
        self._failing: list[int] = []  # by the order of the first sign of it
        self._not_ready: tuple[int, ...] = ()
        self._problem: str | None = None
        self._fork_server_lost = False
        self._stopped_by: int | None = None
        self._signalled_s: float | None = None
        self._signal: int | None = None

    @property
    def deadline_s(self) -> float | None:
        """When :meth:`tick` has something to do; ``None`` while nothing is timed."""
        return self._deadline_s

    @property
    def finished(self) -> bool:
        """Whether every worker has ended."""
        return all(w.exit is not None for w in self._workers.values())

    def result(self) -> GroupResult:
        """Return how the group ended; complete once :attr:`finished`."""
        exits = {w.rank: w.exit for w in self._workers.values() if w.exit is not None}
        failed = (exits[r] for r in self._failing if r in exits and exits[r].cause == "failed")
        return GroupResult(
            exits=tuple(exits[rank] for rank in sorted(exits)),
            first_failure=next(failed, None),
            stopped_by=self._stopped_by,
            problem=self._problem,
            not_ready=self._not_ready,
            order=tuple(rank for rank in self._failing if rank in exits and exits[rank].cause == "failed"),
            fork_server_lost=self._fork_server_lost,
            signalled=self._signal,
        )

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take note of an event and return what to do now."""
        match event:
            case SignalReceived(signum):
                return self._signalled(signum, now_s)
            case StopRequested(reason):
                return self._fail_group(reason, now_s)
            case ForkServerLost(reason):
                self._all_died(reason, now_s)
                return []
            case _:
                return self._handle_worker(event, now_s)

    def _handle_worker(self, event: WorkerProcessEvent, now_s: float) -> list[Action]:
        worker = self._workers[event.rank]
        match event:
            case Started(_, pid):
                worker.pid, worker.started_s = pid, now_s
            case WorkerReady(rank):
                self._unready.discard(rank)
                self._all_ready()
            case Failing(rank):
                self._note_failing(rank)
            case Reason(_, reason):
                worker.reason = reason
            case NotForked(rank, reason):
                worker.reason = reason
                return self._ended(rank, EXIT_CANNOT_EXECUTE, None, now_s)
            case Exited(rank, code, peak_rss_bytes):
                return self._ended(rank, code, peak_rss_bytes, now_s)
        return []

    def tick(self, now_s: float) -> list[Action]:
        """Return what the passing of time asks for."""
        if self._deadline_s is None or now_s < self._deadline_s:
            return []
        if self._phase is Phase.RUNNING:
            # A worker that has ended was not waited for: its exit speaks for itself.
            self._not_ready = tuple(sorted(self._unready & {w.rank for w in self._alive()}))
            names = ", ".join(map(str, self._not_ready))
            noun = "worker" if len(self._not_ready) == 1 else "workers"
            return self._fail_group(f"{noun} {names} not ready within {self._policy.start_timeout_s:g} s", now_s)
        if self._phase is Phase.SETTLING:
            return self._stop(self._policy.failure_grace_s, now_s)
        if self._phase is Phase.STOPPING:
            return self._kill(now_s)
        self._deadline_s = None
        return [GiveUp(tuple(w.rank for w in self._alive()))]

    def _alive(self) -> list[_Worker]:
        return [w for w in self._workers.values() if w.exit is None]

    def _all_ready(self) -> None:
        if self._phase is Phase.RUNNING and not self._unready:
            self._deadline_s = None

    def _note_failing(self, rank: int) -> None:
        if rank not in self._failing and not self._workers[rank].told_to_stop:
            self._failing.append(rank)

    def _ended(self, rank: int, code: int, peak_rss_bytes: int | None, now_s: float) -> list[Action]:
        worker = self._workers[rank]
        if code != 0:
            self._note_failing(rank)
        self._record(worker, code, peak_rss_bytes, now_s)
        self._unready.discard(rank)
        self._all_ready()
        if self.finished:
            self._deadline_s = None
        elif code != 0 and self._phase is Phase.RUNNING:
            self._phase = Phase.SETTLING
            self._deadline_s = now_s + self._policy.settle_s
        return []

    def _all_died(self, reason: str, now_s: float) -> None:
        self._problem = self._problem or reason
        self._fork_server_lost = True
        for worker in self._tell_all():
            self._record(worker, -signal.SIGKILL, None, now_s)

    def _record(self, worker: _Worker, code: int, peak_rss_bytes: int | None, now_s: float) -> None:
        cause: Cause
        # A worker that announced its failure before it was told to stop has failed, even if SIGTERM overtook its exit.
        if code != 0 and worker.rank in self._failing:
            cause = "failed"
        else:
            cause = "stopped by tfmp" if worker.told_to_stop else "done"
        worker.exit = WorkerExit(
            rank=worker.rank,
            pid=worker.pid,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            cause=cause,
            peak_rss_bytes=peak_rss_bytes,
            seconds=now_s - worker.started_s if worker.pid is not None else 0.0,
            reason=worker.reason,
        )

    def _signalled(self, signum: int, now_s: float) -> list[Action]:
        first_s = self._signalled_s
        if first_s is None:
            self._signalled_s, self._signal = now_s, signum
        if self._phase is Phase.RUNNING:
            self._stopped_by = signum
            nothing_to_save = bool(self._unready)
            grace_s = self._policy.grace_period_s
            return self._stop(min(grace_s, self._policy.failure_grace_s) if nothing_to_save else grace_s, now_s)
        if self._phase is Phase.SETTLING:
            return self._stop(self._policy.failure_grace_s, now_s)
        again = first_s is None or now_s - first_s >= _SECOND_SIGNAL_AFTER_S
        if signum == signal.SIGINT and again and self._phase is Phase.STOPPING:
            return self._kill(now_s)
        return []

    def _fail_group(self, reason: str, now_s: float) -> list[Action]:
        if self._phase is not Phase.RUNNING:
            return []
        self._problem = reason
        return self._stop(self._policy.failure_grace_s, now_s)

    def _stop(self, grace_s: float, now_s: float) -> list[Action]:
        self._phase = Phase.STOPPING
        self._deadline_s = now_s + grace_s
        return [Terminate(worker.rank) for worker in self._tell_all()]

    def _kill(self, now_s: float) -> list[Action]:
        self._phase = Phase.KILLING
        self._deadline_s = now_s + _KILL_CONFIRM_S
        return [Kill(worker.rank) for worker in self._tell_all()]

    def _tell_all(self) -> list[_Worker]:
        alive = self._alive()
        for worker in alive:
            worker.told_to_stop = True
        return alive
