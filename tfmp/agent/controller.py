"""Start, monitor, decide, restart: the workers of this machine, from their first attempt to their last."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

from tfmp.agent.failures.diagnosis import Diagnosis
from tfmp.agent.monitor import Failed, Interrupted, Monitor, Outcome, Succeeded, Watch
from tfmp.agent.restart_policy import Restart, RestartPolicy, Restarts, Stop
from tfmp.errors import EXIT_OK
from tfmp.events import Ready, WorkerEvent
from tfmp.text import eprint
from tfmp.workers.group import FromWorker, Line, ServerReady, Tick, WorkerGroup
from tfmp.workers.spec import GroupResult, WorkerSpec, signal_name


@dataclass(frozen=True)
class Attempt:
    """One start of all workers of this machine.

    Attributes:
        number: From 0, counted over the run.
        specs: The workers.
        watch: What to watch.
        on_ready: Called once all workers are ready.
    """

    number: int
    specs: Sequence[WorkerSpec]
    watch: Watch
    on_ready: Callable[[], None]


class Workload(ABC):
    """What the workers run."""

    @abstractmethod
    def attempt(self) -> AbstractContextManager[Attempt]:
        """Provide what one attempt needs (ports, folders), and remove what it leaves."""

    def check(self) -> None:
        """Check that the run can go on after a failure, whatever failed.

        Raises:
            TfmpError: It cannot: its folder is gone.
        """
        return

    def rewind(self) -> int:
        """Choose where the next attempt starts; return the steps of the run that are done there."""
        return 0


class Reporter:
    """Shows and records what happens; this one, little. The methods that end a run return the exit code."""

    def started(self, attempt: Any) -> None:
        """An :class:`Attempt` of the workload begins."""

    def on_server_ready(self, event: ServerReady) -> None:
        """The fork server has imported everything."""

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """A worker sent an event."""

    def on_line(self, line: Line) -> None:
        """A worker printed a line."""

    def on_tick(self, group: WorkerGroup, monitor: Monitor) -> None:
        """Time has passed."""

    def ended(self, result: GroupResult | None) -> None:
        """The attempt is over; ``None``: by an error of the launcher's own."""

    def restarting(self, diagnosis: Diagnosis, restart: Restart, from_step: int) -> None:
        """The workers are started again after this failure."""

    def succeeded(self, result: GroupResult) -> int:
        """All workers ended well."""
        return EXIT_OK

    def interrupted(self, signum: int, result: GroupResult | None) -> int:
        """The user stopped the run; ``None``: between two attempts."""
        eprint(f"interrupted by {signal_name(signum)}")
        return 128 + signum

    def failed(self, diagnosis: Diagnosis, why: str | None) -> int:
        """The run failed; ``why`` says why it is not restarted, where someone may expect that."""
        error = diagnosis.to_error()
        eprint(error.render())
        return error.exit_code


class Controller:
    """Runs a group of workers, and runs it again where the cause of its failure allows it.

    Args:
        group: The workers.
        workload: What they run.
        policy: When to give up.
        reporter: Shows and records what happens.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        group: WorkerGroup,
        workload: Workload,
        policy: RestartPolicy,
        reporter: Reporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._workload = workload
        self._restarts = Restarts(policy)
        self._reporter = reporter
        self._clock = clock

    def run(self) -> int:
        """Run attempt after attempt, until one ends well, the user stops it, or the next would fail too.

        Returns:
            The exit code.
        """
        reporter = self._reporter
        while True:
            match self._attempt():
                case Succeeded(result):
                    return reporter.succeeded(result)
                case Interrupted(signum, result):
                    return reporter.interrupted(signum, result)
                case Failed(diagnosis):
                    decision = self._decide(diagnosis)
                    if isinstance(decision, Stop):
                        return reporter.failed(diagnosis, decision.why)
                    reporter.restarting(diagnosis, decision, self._workload.rewind())
                    if (stop_signal := self._group.wait(decision.delay_s)) is not None:
                        return reporter.interrupted(stop_signal, None)

    def _attempt(self) -> Outcome:
        reporter, group = self._reporter, self._group
        with self._workload.attempt() as attempt:
            reporter.started(attempt)
            monitor = Monitor(attempt.watch, self._clock)
            result: GroupResult | None = None
            try:
                with closing(group.run(attempt.specs)) as events:
                    for event in events:
                        match event:
                            case FromWorker(rank, worker_event):
                                monitor.on_event(rank, worker_event)
                                reporter.on_event(rank, worker_event)
                                if isinstance(worker_event, Ready) and monitor.all_ready:
                                    attempt.on_ready()
                            case Line():
                                reporter.on_line(event)
                            case ServerReady():
                                reporter.on_server_ready(event)
                            case Tick():
                                reporter.on_tick(group, monitor)
                                monitor.on_tick(group)
                result = group.result()
                return monitor.outcome(result)
            finally:
                reporter.ended(result)

    def _decide(self, diagnosis: Diagnosis) -> Restart | Stop:
        if diagnosis.result.signalled is not None:  # the user wants it to end
            return Stop(None)
        self._workload.check()
        return self._restarts.after(diagnosis)
