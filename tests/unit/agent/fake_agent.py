"""A :class:`ClusterAgent` whose group, folder and user are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfmp.agent.cluster_agent import ClusterAgent
from tfmp.agent.failures.diagnosis import Diagnosis, Setting, diagnose
from tfmp.agent.failures.evidence import Evidence
from tfmp.agent.failures.hang import HangReport
from tfmp.agent.reporter import TrainingReporter
from tfmp.errors import TfmpError
from tfmp.events import WorkerEvent
from tfmp.rendezvous.peer_status import EndReason
from tfmp.rendezvous.protocol import Report
from tfmp.rundir.recorder import Recorder
from tfmp.workers.spec import GroupResult, WorkerExit


class FakeSession:
    """A group that judges after some looks at it, and whose connections end after some more."""

    def __init__(self, *, ends_after: int = 10**9, linked_for: int = 0, leave_after: int = 10**9) -> None:
        self.reports: list[Report] = []
        self.digests: list[str] = []
        self.stops: list[bool] = []
        self.end_reason: EndReason | None = None
        self.hang_s: float | None = None
        self.polls = 0
        self._ends_after = ends_after
        self._linked_for = linked_for
        self._leave_after = leave_after

    @property
    def linked(self) -> bool:
        return self.polls < self._linked_for

    @property
    def may_leave(self) -> bool:
        return self.polls > self._leave_after

    def stopped(self, is_stopped: bool) -> None:
        self.stops.append(is_stopped)

    def failed(self, report: Report) -> None:
        self.reports.append(report)

    def done(self, sha256: str) -> None:
        self.digests.append(sha256)

    def poll(self, timeout_s: float = 0.0) -> None:
        self.polls += 1
        if self.polls > self._ends_after:
            self.end_reason = EndReason("worker 1 was interrupted by SIGTERM", 1, "worker 1", exit_code=143)


class FakeInbox:
    """A signal for each look."""

    def __init__(self, *signals: int) -> None:
        self._signals = signals

    def read(self) -> Iterator[int]:
        return iter(self._signals)


class FakeReporter(TrainingReporter):
    """Notes what a training's reporter would say and record."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.ends: list[Any] = []

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        self.recorder.on_event(rank, event)

    def on_tick(self, group: Any, monitor: Any) -> None:
        pass

    def succeeded(self, result: GroupResult) -> int:
        self.ends.append("succeeded")
        return 0

    def interrupted(self, signum: int, result: GroupResult | None) -> int:
        self.ends.append(signum)
        return 128 + signum

    def fail(self, error: TfmpError, diagnosis: Diagnosis | None = None, *, own: bool = True) -> int:
        self.ends.append((error.what, own))
        return error.exit_code


class Agent(ClusterAgent, FakeReporter):
    """See the module. Its own methods are :class:`ClusterAgent`'s; what those pass on ends in ``ends``."""


def diagnosis(
    exit: WorkerExit, *, signalled: int | None = None, hang: HangReport | None = None, host: str = "h1:1", **known: Any
) -> Diagnosis:
    """Of one worker, which is all that a launcher of several hosts has."""
    failed = exit.cause == "failed"
    result = GroupResult(
        exits=(exit,),
        first_failure=exit if failed else None,
        problem=hang.hang.describe() if hang is not None else None,
        order=(exit.rank,) if failed else (),
        signalled=signalled,
    )
    return diagnose([Evidence(exit, **known)], result, hang=hang, setting=Setting({exit.rank: host}))
