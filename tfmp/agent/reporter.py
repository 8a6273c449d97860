"""What a training says and records: the view, the run folder's small files, the words at its end."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

from tfmp.agent.console import Console
from tfmp.agent.controller import Reporter
from tfmp.agent.failures.diagnosis import Diagnosis, diagnose
from tfmp.agent.failures.evidence import Evidence
from tfmp.agent.monitor import Monitor
from tfmp.agent.restart_policy import Restart
from tfmp.errors import EXIT_FAILED, EXIT_OK, TfmpError
from tfmp.events import CheckpointFailed, Progress, WorkerEvent
from tfmp.noise import is_noise
from tfmp.report.summary import print_rows, summary_rows
from tfmp.report.view import make_view
from tfmp.rundir.layout import write_json
from tfmp.rundir.recorder import Recorder
from tfmp.text import count, eprint, say, seconds
from tfmp.workers.fork_server import NOT_ASKED
from tfmp.workers.group import Line, ServerReady, WorkerGroup
from tfmp.workers.spec import GroupResult, signal_name

if TYPE_CHECKING:
    from tfmp.agent.options import TrainOptions
    from tfmp.agent.workload import TrainingAttempt
    from tfmp.config import RunConfig
    from tfmp.planning.plan import Plan
    from tfmp.rundir.layout import RunFolder


class TrainingReporter(Reporter):
    """Shows and records the local workers of a training.

    Args:
        config: The configuration.
        plan: The run.
        folder: The run folder. Without rank 0 among the local workers it gets their logs and events only.
        options: What is to be shown.

    Attributes:
        recorder: Holds what the workers have reported.
    """

    def __init__(self, config: RunConfig, plan: Plan, folder: RunFolder, options: TrainOptions) -> None:
        self.recorder = Recorder(folder, time.time, options.started_s or time.time())
        self._config = config
        self._plan = plan
        self._folder = folder
        self._options = options
        self._local = [worker.rank for worker in plan.workers if worker.local]
        self._is_chief = plan.workers[0].local
        self._all_local = len(self._local) == len(plan.workers)
        self._number = 0
        self._attempts = 0
        self._last_steps: dict[int, Any] = {}
        self._hidden_lines = 0
        self._result = GroupResult(exits=())

    def started(self, attempt: TrainingAttempt) -> None:
        """See :class:`tfmp.agent.controller.Reporter`."""
        options = self._options
        self._number = attempt.number
        self._attempts += 1
        self._last_steps = {}
        self.recorder.new_attempt(attempt.history)
        self._view = make_view(
            live=options.live,
            epochs=self._plan.epochs,
            steps_per_epoch=self._plan.batch.steps_per_epoch,
            workers=len(self._local),
            verbosity=options.verbosity,
        )
        self._console = Console(
            self._show,
            self.recorder.leaving,
            everything=options.verbosity > 0,
            tee=options.tee,
            ranks=options.log_workers,
        )
        facts = {"attempt": attempt.number, "from_step": attempt.from_step, "workers": len(self._plan.workers)}
        self.recorder.note("start", **facts, plan=attempt.plan.to_json())
        workers = count(len(self._local), "worker")
        if self._attempts > 1:
            self._view.say(f"starting {workers} again")
        elif self._all_local:
            self._view.say(f"starting: importing TensorFlow, then {workers}")
        else:
            self._view.say(f"starting: all {len(self._plan.workers)} workers are here and agree")

    def on_server_ready(self, event: ServerReady) -> None:
        """See :class:`tfmp.agent.controller.Reporter`."""
        server = event.server
        self.recorder.note("fork_server_ready", import_s=server.import_s, private_network=server.private_network)
        # Workers of several hosts have no private network to miss.
        if server.network_note and self._plan.layout.needs_server and self._all_local:
            reason = "as asked" if server.network_note == NOT_ASKED else server.network_note
            eprint(
                f"warning: the workers' network is not private: {reason} (cluster.private_network). Whoever reaches "
                "TensorFlow's ports on this machine can read and write your files through them"
            )

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """See :class:`tfmp.agent.controller.Reporter`."""
        self.recorder.on_event(rank, event)
        self._console.on_event(rank, event)
        match event:
            case Progress(epoch=epoch, step=step):
                self._last_steps[rank] = {"epoch": epoch, "step": step}
            case CheckpointFailed(global_step=step, reason=reason):
                self._view.say(f"warning: no checkpoint at step {step:,}: {reason}; training goes on")
        # Logs are equal on all workers: where rank 0 is elsewhere, another tells of the same progress.
        self._view.on_event(rank - self._local[0], event)

    def on_line(self, line: Line) -> None:
        """See :class:`tfmp.agent.controller.Reporter`."""
        self._console.on_line(line.rank, line.stream, line.text)

    def on_tick(self, group: WorkerGroup, monitor: Monitor) -> None:
        """See :class:`tfmp.agent.controller.Reporter`."""
        self._view.tick()

    def ended(self, result: GroupResult | None) -> None:
        """See :class:`tfmp.agent.controller.Reporter`."""
        self._hidden_lines += self._console.hidden
        self._view.close()
        self._result = result or GroupResult(exits=())
        for exit in self._result.exits:
            self.recorder.note("exit", rank=exit.rank, exit_code=exit.exit_code, signal=exit.signal, cause=exit.cause)

    def restarting(self, diagnosis: Diagnosis, restart: Restart, from_step: int) -> None:
        """Say why, from where, and what is lost."""
        lost = max(0, (diagnosis.step or from_step) - from_step)
        attempt = self._attempts + 1
        attempts = attempt + restart.allowed - restart.number
        wait = f" in {seconds(restart.delay_s)}" if restart.delay_s else ""
        eprint(
            f"{diagnosis.short()}\n"
            f"restarting{wait}: attempt {attempt} of {attempts}, restart {restart.number} of {restart.allowed}, "
            f"from step {from_step:,}, lost {count(lost, 'step')}"
        )
        judged = diagnosis.to_json()
        facts = {name: judged[name] for name in ("cause", "culprits", "memory_evidence", "hang")}
        self.recorder.note(
            "restart", attempt=attempt, from_step=from_step, lost_steps=lost, what=diagnosis.short(), **facts
        )
        self.recorder.restarts += 1

    def succeeded(self, result: GroupResult) -> int:
        """Say and record that the run ended well, if all workers hold the same weights."""
        if self._all_local and (disagreement := self._disagreement()):
            return self.fail(disagreement)
        summary = self._summarize("done")
        if self._options.verbosity >= 0:
            if self._hidden_lines:
                say(f"{count(self._hidden_lines, 'TensorFlow startup message')} hidden (see logs/)")
            if self._is_chief:
                print_rows(summary_rows(summary, str(self._folder.path)), "done", plain=not self._options.live)
            else:
                say(f"done: the run folder is with worker 0; logs of this worker: {self._folder.path}")
        return EXIT_OK

    def interrupted(self, signum: int, result: GroupResult | None) -> int:
        """Say and record that the user ended the run."""
        self._summarize("interrupted")
        after = f" after epoch {len(self.recorder.epochs)} of {self._plan.epochs}" if self._is_chief else ""
        eprint(f"interrupted by {signal_name(signum)}{after}; run folder: {self._folder.path}")
        exits = result.exits if result is not None else ()
        if any(exit.signal == SIGKILL and exit.cause == "stopped by tfmp" for exit in exits):
            limit_s = self._config.run.grace_period_s
            eprint(f"  the workers did not stop within {limit_s:g} s (run.grace_period_s) and were killed")
        if (step := self.recorder.saved_step) is not None:
            eprint(f"  saved at step {step:,}: --resume --run-dir {self._folder.path} goes on there")
        return 128 + signum

    def failed(self, diagnosis: Diagnosis, why: str | None) -> int:
        """Say and record that a worker of this machine failed."""
        code = self.fail(diagnosis.to_error(), diagnosis)
        if why:
            eprint(f"  {why}")
        return code

    def fail(self, error: TfmpError, diagnosis: Diagnosis | None = None, *, own: bool = True) -> int:
        """Say and record that the run failed; return the exit code.

        Args:
            error: What is to blame.
            diagnosis: Of the workers of this machine, if one failed.
            own: Whether a worker of this machine is to blame: its last lines are then shown.
        """
        self._summarize("failed")
        code = error.exit_code or EXIT_FAILED
        if self._is_chief:
            record = {"what": error.what, "where": error.where, "hint": error.hint}
            record |= diagnosis.to_json() if diagnosis else self._without_culprit().to_json()
            with suppress(FileNotFoundError):  # a run folder that was deleted
                write_json(self._folder.failure, {**record, "last_step": self._last_steps, "exit_code": code})
        else:
            self.recorder.note("failure", what=error.what, where=error.where, exit_code=code)
        eprint(error.render())
        if own and diagnosis is not None:
            self._explain(diagnosis)
        eprint(f"  run folder: {self._folder.path}")
        return code

    def _without_culprit(self) -> Diagnosis:
        """Of workers that all ended well."""
        evidence = [Evidence(exit, tail=self._result.tail(exit.rank)) for exit in self._result.exits]
        return replace(diagnose(evidence, self._result), cause="error")

    def _explain(self, diagnosis: Diagnosis) -> None:
        for line in diagnosis.details:
            eprint(f"  {line}")
        culprit = diagnosis.culprit
        if culprit is not None:
            tail = [f"  | {line}" for line in culprit.tail if not is_noise(line)]
            if tail:
                eprint(f"  last lines of worker {culprit.rank} ({self._folder.log(self._number, culprit.rank)}):")
                eprint("\n".join(tail))
        if diagnosis.taken_along:
            eprint(diagnosis.taken_along)

    def _disagreement(self) -> TfmpError | None:
        """An error if workers that all ended well do not hold the same weights, or nothing was saved."""
        digests = self.recorder.digests
        if len(digests) == len(self._local) and len(set(digests.values())) == 1 and self.recorder.model_saved:
            return None
        held = ", ".join(f"worker {rank}: {digest[:12]}" for rank, digest in sorted(digests.items()))
        where = held or "no worker reported its weights"
        return TfmpError("expected the same trained weights on every worker", where=where)

    def _summarize(self, status: str) -> dict[str, Any]:
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

    def _show(self, rank: int, stream: str, text: str) -> None:
        if self._options.tee:
            self._view.say(f"[worker {rank}] {text}")
        else:
            self._view.on_line(rank, stream, text)
