"""One run on this machine, from its first worker to its summary: what ``tfmp train`` and ``tfmp worker`` share."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

from tfmp.agent.failures.injection import parse_fault
from tfmp.agent.failures.report import (
    Findings,
    describe_failure,
    disagree,
    ended_silently,
    failure_record,
    other_workers,
)
from tfmp.agent.monitor import Attempt
from tfmp.agent.options import TrainOptions
from tfmp.agent.shm_setup import ShmSetup, local_shm_setup
from tfmp.agent.watcher import OnEvent, OnTick, Watcher
from tfmp.errors import EXIT_FAILED, EXIT_OK, TfmpError
from tfmp.planning.inputs import worker_payload
from tfmp.report.noise import is_noise
from tfmp.report.summary import print_rows, summary_rows
from tfmp.rundir.layout import RunFolder, write_json
from tfmp.rundir.recorder import Recorder
from tfmp.rundir.temporary import temporary_folder
from tfmp.text import count, eprint, say
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.group import GroupControl, run_group
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, WorkerSpec, signal_name

if TYPE_CHECKING:
    from tfmp.agent.resume import ResumePoint
    from tfmp.config import RunConfig
    from tfmp.data.cache import CachedDataset
    from tfmp.planning.plan import Plan

#: What the fork server imports once for all workers.
PRELOAD = ("tensorflow", "keras", "tfmp.trainer.preload")

#: For peers of a failed worker to report failures of their own, and to end.
_SETTLE_S = 0.4
_FAILURE_GRACE_S = 0.2


class Run:
    """The workers of this machine and what is recorded of them.

    Args:
        config: The configuration.
        plan: The run; its local workers are started here.
        folder: The run folder. Without rank 0 among the local workers it gets their logs and events only.
        dataset: The prepared data.
        options: See :class:`TrainOptions`.

    Attributes:
        meeting: Where workers meet to share memory, where some have another launcher; ``None``: a place of their own.
    """

    def __init__(
        self, config: RunConfig, plan: Plan, folder: RunFolder, dataset: CachedDataset, options: TrainOptions
    ) -> None:
        self.recorder = Recorder(folder, time.time, options.started_s or time.time())
        self._config = config
        self._plan = plan
        self._folder = folder
        self._dataset = dataset
        self._options = options
        self._local = [worker for worker in plan.workers if worker.local]
        self._is_chief = plan.workers[0].local
        self.number = folder.next_attempt()
        self.attempt = self._new_attempt()
        self.meeting: ShmSetup | None = None
        self._point: ResumePoint | None = None
        self._drills = [parse_fault(text, len(self._local)) for text in options.drills]
        self._last_steps: dict[int, Any] = {}
        self._fork_server_noted = self._killed_while_stopping = False
        self._hidden_lines = 0

    @property
    def worker_count(self) -> int:
        """Workers on this machine."""
        return len(self._local)

    def resume_from(self, point: ResumePoint | None, plan: Plan | None = None) -> None:
        """Begin the next attempt where a checkpoint was taken.

        Args:
            point: Where; ``None``: from the start.
            plan: The run with other ports; ``None``: as before.
        """
        self._point = point
        self._plan = plan or self._plan
        self._local = [worker for worker in self._plan.workers if worker.local]
        self.number = self._folder.next_attempt()
        self._folder.failure.unlink(missing_ok=True)  # of the attempt before: this one has not failed
        self.recorder.new_attempt(point.header.facts["history"] if point and self._is_chief else ())

    def watch(
        self,
        fork_server: ForkServer,
        *,
        announce: str,
        on_ready: Callable[[], None] | None = None,
        on_event: OnEvent | None = None,
        on_tick: OnTick | None = None,
        tick_s: float = 0.25,
        inbox: SignalInbox | None = None,
    ) -> GroupResult:
        """Run the local workers to their end.

        Args:
            fork_server: Starts them.
            announce: What to say first.
            on_ready: Called when all of them are ready.
            on_event: Called with each of their events.
            on_tick: See :func:`tfmp.workers.group.run_group`.
            tick_s: Seconds between two calls of it.
            inbox: See :func:`tfmp.workers.group.run_group`.
        """
        self.attempt = self._new_attempt()
        watcher = Watcher(self._plan, self.recorder, self.attempt, self._options, self._config.cluster.private_network)
        self._last_steps = watcher.last_steps
        from_step = self._point.header.global_step if self._point else 0
        facts = {"attempt": self.number, "from_step": from_step, "workers": len(self._plan.workers)}
        self.recorder.note("start", **facts, plan=self._plan.to_json())
        watcher.say(announce)

        def take_event(rank: int, event: dict[str, Any]) -> None:
            watcher.on_event(rank, event, on_ready)
            if on_event is not None:
                on_event(rank, event)

        def tick(control: GroupControl) -> None:
            self._fork_server_noted = self._fork_server_noted or watcher.note_fork_server(fork_server)
            watcher.tick()
            self.attempt.on_tick(control)
            if on_tick is not None:
                on_tick(control)

        try:
            with temporary_folder() as temporary:
                return run_group(
                    fork_server,
                    self._specs(temporary),
                    on_event=take_event,
                    on_line=watcher.on_line,
                    on_tick=tick,
                    grace_period_s=self._config.run.grace_period_s,
                    # Nothing is saved after a failure, and a peer that waits in a collective does not hear SIGTERM.
                    failure_grace_s=_FAILURE_GRACE_S,
                    settle_s=_SETTLE_S,
                    start_timeout_s=self._config.cluster.start_timeout_s,
                    import_timeout_s=self._config.cluster.start_timeout_s,
                    tick_s=tick_s,
                    inbox=inbox,
                )
        finally:
            self._hidden_lines += watcher.hidden_lines
            watcher.close()

    def finish(self, result: GroupResult) -> int:
        """Say how a run whose workers are all here ended, and record it; return the exit code."""
        self.note_exits(result)
        if result.stopped_by is not None:
            return self.interrupted(result.stopped_by)
        if result.exit_code != EXIT_OK:
            return self.fail(result, self.describe(result))
        held = self.recorder.digests
        if disagreement := disagree(held, len(self._plan.workers), saved=self.recorder.model_saved):
            return self.fail(result, disagreement)
        return self.succeed()

    def note_exits(self, result: GroupResult) -> None:
        """Record how each worker ended."""
        self._killed_while_stopping = any(
            one.signal == SIGKILL and one.cause == "stopped by tfmp" for one in result.exits
        )
        for one in result.exits:
            self.recorder.note("exit", rank=one.rank, exit_code=one.exit_code, signal=one.signal, cause=one.cause)

    def describe(self, result: GroupResult) -> TfmpError:
        """The error block for workers that failed."""
        return describe_failure(self.findings(result), self._plan)

    def findings(self, result: GroupResult) -> Findings:
        """Judge a group that failed."""
        verdict = self.attempt.judge(result)
        culprit = verdict.culprit
        memory_evidence = self.attempt.memory_evidence(culprit.rank) if culprit and ended_silently(culprit) else None
        return Findings(result, verdict, memory_evidence, self.attempt.hang_report)

    def interrupted(self, signum: int) -> int:
        """Say and record that the user ended the run; return the exit code."""
        self._summarise("interrupted")
        after = f" after epoch {len(self.recorder.epochs)} of {self._plan.epochs}" if self._is_chief else ""
        eprint(f"interrupted by {signal_name(signum)}{after}; run folder: {self._folder.path}")
        if self._killed_while_stopping:
            limit_s = self._config.run.grace_period_s
            eprint(f"  the workers did not stop within {limit_s:g} s (run.grace_period_s) and were killed")
        if (step := self.recorder.saved_step) is not None:
            eprint(f"  saved at step {step:,}: --resume --run-dir {self._folder.path} goes on there")
        return 128 + signum

    def fail(self, result: GroupResult, error: TfmpError, *, own: bool = True) -> int:
        """Say and record that the run failed; return the exit code.

        Args:
            result: How the local workers ended.
            error: What is to blame.
            own: Whether that is a local worker, whose last lines then belong to it.
        """
        self._summarise("failed")
        code = error.exit_code or EXIT_FAILED
        findings = self.findings(result)
        if self._is_chief:
            record = failure_record(findings, error, self._last_steps) | {"exit_code": code}
            with suppress(FileNotFoundError):  # a run folder that was deleted
                write_json(self._folder.failure, record)
        else:
            self.recorder.note("failure", what=error.what, where=error.where, exit_code=code)
        eprint(error.render())
        culprit = findings.verdict.culprit
        for line in findings.details if own else []:
            eprint(f"  {line}")
        if own and culprit is not None:
            tail = [f"  | {line}" for line in result.tail(culprit.rank) if not is_noise(line)]
            if tail:
                eprint(f"  last lines of worker {culprit.rank} ({self._folder.log(self.number, culprit.rank)}):")
                eprint("\n".join(tail))
        if own and (others := other_workers(result, findings.verdict)):
            eprint(others)
        eprint(f"  run folder: {self._folder.path}")
        return code

    def _new_attempt(self) -> Attempt:
        return Attempt(
            tuple(worker.rank for worker in self._local),
            steps_per_epoch=self._plan.batch.steps_per_epoch,
            hang_timeout_s=self._config.run.hang_timeout_s,
            start_timeout_s=self._config.cluster.start_timeout_s,
        )

    def succeed(self) -> int:
        """Say and record that the run ended well; return the exit code."""
        summary = self._summarise("done")
        if self._options.verbosity >= 0:
            if self._hidden_lines:
                say(f"{count(self._hidden_lines, 'harmless line')} of TensorFlow not shown (logs/ has all)")
            if self._is_chief:
                print_rows(summary_rows(summary, str(self._folder.path)), "done", plain=not self._options.live)
            else:
                say(f"done: the run folder is with worker 0; logs of this worker: {self._folder.path}")
        return EXIT_OK

    def _specs(self, temporary: Path) -> list[WorkerSpec]:
        plan, folder = self._plan, self._folder
        meeting = self.meeting or local_shm_setup(temporary, plan)
        run_dir = str(folder.path.absolute())
        resume = self._point.to_task() if self._point else None
        drills, self._drills = self._drills, []
        return [
            WorkerSpec(
                rank=worker.rank,
                env={**worker.env, "TMPDIR": str(temporary)},
                unset=worker.unset,
                log_path=folder.log(self.number, worker.rank),
                target="tfmp.trainer.worker:main",
                payload=worker_payload(
                    self._config, plan, worker.rank, run_dir, self._dataset, meeting=meeting, resume=resume
                )
                | {"drills": [one.to_json() for one in drills if one.rank == worker.rank]},
                cpus=worker.cpus,
            )
            for worker in self._local
        ]

    def _summarise(self, status: str) -> dict[str, Any]:
        plan = self._plan
        self.recorder.catch_up()
        summary = self.recorder.summary(
            status=status,
            workers=len(plan.workers),
            strategy=plan.strategy,
            collective=plan.collective.name,
            replicas=plan.replicas,
        )
        if self._is_chief:
            with suppress(FileNotFoundError):
                write_json(self._folder.summary, summary)
        return summary
