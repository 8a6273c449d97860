"""One attempt of a run as the launcher sees it: signs of life in, the verdict out."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfmp import procfs
from tfmp.agent.failures.diagnosis import Evidence, Verdict, judge
from tfmp.agent.failures.diverged_stop import DivergedStop
from tfmp.agent.failures.hang import HangReport, examine
from tfmp.agent.failures.memory import MemoryEvidence, MemoryWatch
from tfmp.agent.failures.watchdog import Hang, Watchdog
from tfmp.workers.events import EXCEPTION
from tfmp.workers.group import GroupControl
from tfmp.workers.spec import GroupResult

#: Signs that a worker gets on although no step ends.
_PROGRESS = frozenset({"validating", "epoch", "saving", "checkpoint", "checkpoint_failed", "saved", "weights"})
#: For the workers to write down their stacks.
_STACKS_WAIT_S = 0.5


class Attempt:
    """Collects evidence while workers run.

    Args:
        ranks: The workers watched here; the progress of the first stands for all, as they go in step.
        steps_per_epoch: Steps of an epoch.
        hang_timeout_s: See :class:`tfmp.agent.failures.watchdog.Watchdog`.
        start_timeout_s: Bound of the time to the first step.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        *,
        steps_per_epoch: int,
        hang_timeout_s: float | None,
        start_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hang_report: HangReport | None = None
        self.memory = MemoryWatch(clock)
        self._ranks = ranks
        self._steps_per_epoch = steps_per_epoch
        self._clock = clock
        self._began_s = clock()
        self._watchdog = Watchdog(hang_timeout_s, start_timeout_s, self._began_s)
        self._hang: Hang | None = None
        self._hang_s = 0.0
        self._ready: set[int] = set()
        self._steps: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._errors: dict[int, Mapping[str, Any]] = {}
        self._exceptions: dict[int, tuple[str, str]] = {}
        self._asked: set[int] = set()
        self._parting = DivergedStop()

    @property
    def ran_s(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began_s

    @property
    def last_step(self) -> int | None:
        """The last step that any worker has told of, counted over the run; ``None``: none in this attempt."""
        return max(self._steps.values(), default=None)

    def on_event(self, rank: int, event: Mapping[str, Any]) -> None:
        """Take an event of a worker."""
        kind, now_s = event.get("event"), self._clock()
        if kind == "ready":
            self._ready.add(rank)
            if len(self._ready) == len(self._ranks):
                self._watchdog.arm(now_s)
        elif kind in ("first_step", "progress"):
            self._epochs[rank] = int(event["epoch"]) - 1
            self._steps[rank] = self._epochs[rank] * self._steps_per_epoch + int(event["step"])
            self._note_progress(rank, now_s, step=True)
        elif kind == "failed_after":
            if rank in self._steps:
                self._steps[rank] = max(self._steps[rank], self._epochs[rank] * self._steps_per_epoch + event["step"])
        elif kind in _PROGRESS:
            self._note_progress(rank, now_s, step=False)
        elif kind == "error":
            self._errors[rank] = dict(event)
        elif kind == EXCEPTION:
            self._exceptions[rank] = (str(event["type"]), str(event["message"]))
        elif kind == "stopped" and event["asked"]:
            self._asked.add(rank)
        elif kind == "stops":
            self._parting.stops(rank, int(event["global_step"]), now_s)

    def on_tick(self, control: GroupControl) -> None:
        """Look at the workers; stop them if they hang, once it is known where."""
        pids = control.pids
        self.memory.look(pids)
        if self._parting.is_due(self._clock(), pids):
            for rank in pids:
                control.signal(rank, signal.SIGUSR1)
        elif self._parting.asked and (error := self._parting.examine(self._clock(), control.stacks())):
            self._errors.update(error)
            control.stop("a worker stopped training alone")
        if self._hang is not None:
            if self.hang_report is None and self._clock() - self._hang_s >= _STACKS_WAIT_S:
                self.hang_report = examine(self._hang, control.stacks())
                control.stop(self._hang.describe())
        else:
            states = {rank: procfs.state_of(pid) for rank, pid in pids.items()}
            hang = self._watchdog.look(self._clock(), states)
            if hang is not None:
                self._ask_where(hang, control)

    def suspect(self, waited_s: float, control: GroupControl) -> None:
        """Workers elsewhere have waited for so long in vain for these: find out where they are, and stop them."""
        if self._hang is None:
            self._ask_where(Hang(waited_s), control)

    def _ask_where(self, hang: Hang, control: GroupControl) -> None:
        self._hang, self._hang_s = hang, self._clock()
        for rank in control.pids:
            control.signal(rank, signal.SIGUSR1)

    def judge(self, result: GroupResult) -> Verdict:
        """Find the culprit of a group that failed."""
        odd, stopped = (self.hang_report.odd, self.hang_report.hang.stopped) if self.hang_report else ((), ())
        evidence = [
            Evidence(
                exit=one,
                error=self._errors.get(one.rank),
                exception=self._exceptions.get(one.rank),
                asked_to_leave=one.rank in self._asked,
                stands_still=one.rank in odd or one.rank in self._parting.alone,
                stopped=one.rank in stopped,
                tail=result.tail(one.rank),
                step=self._steps.get(one.rank),
            )
            for one in result.exits
        ]
        return judge(evidence, result)

    def memory_evidence(self, rank: int) -> MemoryEvidence:
        """What is known of the memory of a dead worker."""
        return self.memory.memory_evidence(rank)

    def _note_progress(self, rank: int, now_s: float, *, step: bool) -> None:
        if rank == self._ranks[0]:
            self._watchdog.progress(now_s, step=step)
