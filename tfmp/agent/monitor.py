"""One attempt as the launcher sees it: events and ticks in, an outcome out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tfmp.agent.failures.diagnosis import Diagnosis, Setting, diagnose
from tfmp.agent.failures.evidence import Evidence
from tfmp.agent.failures.hang import HangDetector
from tfmp.agent.failures.memory import MemoryWatch
from tfmp.errors import EXIT_OK
from tfmp.events import (
    FailedAfter,
    FirstStep,
    LeftOnRequest,
    Progress,
    Ready,
    UncaughtException,
    UserError,
    WorkerEvent,
)
from tfmp.workers.group import WorkerGroup
from tfmp.workers.spec import GroupResult


@dataclass(frozen=True)
class Succeeded:
    """All workers ended well."""

    result: GroupResult


@dataclass(frozen=True)
class Interrupted:
    """A stop signal of the user's ended the workers."""

    signum: int
    result: GroupResult


@dataclass(frozen=True)
class Failed:
    """At least one worker failed, or the group as a whole."""

    diagnosis: Diagnosis

    @property
    def result(self) -> GroupResult:
        """How the group ended."""
        return self.diagnosis.result


Outcome = Succeeded | Interrupted | Failed


class Detector(Protocol):
    """Looks for one kind of failure, and stops the group when it finds one."""

    def on_event(self, rank: int, event: WorkerEvent, now_s: float) -> None:
        """Take an event of a worker."""

    def on_tick(self, group: WorkerGroup, now_s: float) -> None:
        """Look at the group."""


@dataclass(frozen=True)
class Watch:
    """What to watch, and for how long to be patient.

    Attributes:
        ranks: The workers of this machine.
        setting: What a diagnosis is to know of the run. Without steps (programs), each attempt counts as one that began
            to work, and hangs are not looked for.
        hang_timeout_s: See :class:`tfmp.agent.failures.hang.Watchdog`.
        start_timeout_s: Bound of the time to the first step.
    """

    ranks: tuple[int, ...]
    setting: Setting = field(default_factory=Setting)
    hang_timeout_s: float | None = None
    start_timeout_s: float = 0.0


class Monitor:
    """Collects evidence while workers run, and judges it once they have ended.

    Args:
        watch: What to watch.
        clock: Monotonic seconds.

    Attributes:
        hang: The detector of hangs; ``None`` for programs.
    """

    def __init__(self, watch: Watch, clock: Callable[[], float] = time.monotonic) -> None:
        self._watch = watch
        self._clock = clock
        self._began_s = clock()
        self._ready: set[int] = set()
        self._epochs: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._errors: dict[int, UserError] = {}
        self._exceptions: dict[int, UncaughtException] = {}
        self._asked: set[int] = set()
        self._memory = MemoryWatch()
        self.hang: HangDetector | None = None
        detectors: list[Detector] = [self._memory]
        if watch.setting.steps_per_epoch is not None:
            self.hang = HangDetector(watch.ranks, watch.hang_timeout_s, watch.start_timeout_s, self._began_s)
            detectors.append(self.hang)
        self._detectors: Sequence[Detector] = detectors

    @property
    def all_ready(self) -> bool:
        """Whether every worker has reported ready."""
        return self._ready.issuperset(self._watch.ranks)

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """Take an event of a worker."""
        steps_per_epoch = self._watch.setting.steps_per_epoch or 0
        match event:
            case Ready():
                self._ready.add(rank)
            case FirstStep(epoch=epoch, step=step) | Progress(epoch=epoch, step=step):
                self._epochs[rank] = epoch - 1
                self._steps[rank] = (epoch - 1) * steps_per_epoch + step
            case FailedAfter(step) if rank in self._steps:
                self._steps[rank] = max(self._steps[rank], self._epochs[rank] * steps_per_epoch + step)
            case UserError():
                self._errors[rank] = event
            case UncaughtException():
                self._exceptions[rank] = event
            case LeftOnRequest(asked=True):
                self._asked.add(rank)
        now_s = self._clock()
        for detector in self._detectors:
            detector.on_event(rank, event, now_s)

    def on_tick(self, group: WorkerGroup) -> None:
        """Look at the workers."""
        now_s = self._clock()
        for detector in self._detectors:
            detector.on_tick(group, now_s)

    def outcome(self, result: GroupResult) -> Outcome:
        """How the attempt ended. A failure is judged here, once."""
        if result.stopped_by is not None:
            return Interrupted(result.stopped_by, result)
        if result.exit_code == EXIT_OK:
            return Succeeded(result)
        diagnosis = self._diagnose(result)
        # A scheduler that ends a job signals all its processes: a worker may have left before the launcher was told.
        if result.signalled is not None and diagnosis.cause == "preempted":
            return Interrupted(result.signalled, result)
        return Failed(diagnosis)

    def _diagnose(self, result: GroupResult) -> Diagnosis:
        report = self.hang.report if self.hang is not None else None
        odd, stopped = (report.odd, report.hang.stopped) if report else ((), ())
        unknown_step = None if self.hang is not None else 0
        evidence = [
            Evidence(
                exit=exit,
                error=self._errors.get(exit.rank),
                exception=self._exceptions.get(exit.rank),
                asked_to_leave=exit.rank in self._asked,
                stands_still=exit.rank in odd,
                stopped=exit.rank in stopped,
                tail=result.tail(exit.rank),
                step=self._steps.get(exit.rank, unknown_step),
            )
            for exit in result.exits
        ]
        return diagnose(
            evidence,
            result,
            memory_of=self._memory.evidence,
            hang=report,
            setting=self._watch.setting,
            ran_s=self._clock() - self._began_s,
        )
