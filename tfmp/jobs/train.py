"""``tfmp train``: check, plan, start the helper process, run the workers, record and report."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.data.cache import CachedDataset, prepare
from tfmp.errors import EXIT_FAILED, EXIT_OK, TfmpError
from tfmp.jobs.environment import helper_environment
from tfmp.jobs.folder import claim_run_folder, default_run_dir
from tfmp.jobs.outcome import describe_failure, failure_record, other_workers
from tfmp.jobs.planning import Machine, local_port_count, plan_local_run, worker_payload
from tfmp.launch.ports import HeldPorts, hold_ports
from tfmp.launch.runner import GroupControl, run_group
from tfmp.launch.spec import GroupResult, WorkerSpec, signal_name
from tfmp.launch.zygote_client import Zygote
from tfmp.report.noise import is_noise
from tfmp.report.numbers import count
from tfmp.report.recorder import Recorder
from tfmp.report.summary import print_rows, print_table, summary_rows
from tfmp.report.view import PlainView, make_view
from tfmp.runfolder import RunFolder, write_json

if TYPE_CHECKING:
    from tfmp.cluster.plan import Plan
    from tfmp.config import Resolved, RunConfig

#: What the helper process imports once for all workers.
PRELOAD = ("tensorflow", "keras", "tfmp.train.preload")


@dataclass(frozen=True)
class TrainOptions:
    """What the command line says beside the configuration.

    Attributes:
        config_file: The configuration file, if one was given: it names the run.
        live: Whether a live display is wanted on a terminal.
        verbosity: -1 quiet, 0 normal, 1 everything.
        started_s: Wall clock when the command was entered.
    """

    config_file: Path | None = None
    live: bool = True
    verbosity: int = 0
    started_s: float = 0.0


def train(resolved: Resolved, options: TrainOptions) -> int:
    """Run a local training and return the exit code.

    Raises:
        UsageError: Something is wrong with the settings, the data or the machine; no process was started.
        TfmpError: The run could not be started.
    """
    config = resolved.config
    say = _quiet if options.verbosity < 0 else _say
    port_count = local_port_count(config)
    machine = Machine.here()
    dataset = prepare(config.data, say)
    with _held(port_count, config.cluster.base_port) as ports:
        plan = plan_local_run(config, dataset.header, machine, ports.ports if ports else ())
        env, notices = helper_environment(machine.environ, plan.workers[0].env, verbose=options.verbosity > 0)
        folder = claim_run_folder(
            config.run.dir,
            lambda: default_run_dir(config.run.name, options.config_file, datetime.now()),
            resolved.to_yaml(),
        )
        with Zygote.start(PRELOAD, private_network=_private_network(config), env=env) as zygote:
            for line in (*plan.warnings, *notices):
                say(f"warning: {line}")
            say(_headline(plan))
            say(f"run folder: {folder.path}")
            run = _Run(config, plan, folder, dataset, options)
            return run.finish(run.watch(zygote, ports))


def dry_run(resolved: Resolved) -> int:
    """Print the settings, where each comes from, and the plan; start nothing, write nothing but the data cache."""
    config = resolved.config
    dataset = prepare(config.data, _say)
    with _held(local_port_count(config), config.cluster.base_port) as ports:
        plan = plan_local_run(config, dataset.header, Machine.here(), ports.ports if ports else ())
    print("settings:")
    print("\n".join(f"  {line}" for line in resolved.to_yaml(origins=True).splitlines()))
    print_rows(plan.describe(), "plan:")
    from tfmp.cluster.plan import WORKER_COLUMNS

    print("workers:")
    print_table(WORKER_COLUMNS, plan.worker_rows())
    for worker in plan.workers:
        if worker.tf_config:
            print(f"  worker {worker.rank}: TF_CONFIG={json.dumps(json.loads(worker.tf_config))}")
    for warning in plan.warnings:
        print(f"warning: {warning}")
    print("dry run: nothing was started")
    return EXIT_OK


class _Run:
    """One run from its first worker to its summary."""

    def __init__(
        self, config: RunConfig, plan: Plan, folder: RunFolder, dataset: CachedDataset, options: TrainOptions
    ) -> None:
        self._config = config
        self._plan = plan
        self._folder = folder
        self._dataset = dataset
        self._options = options
        self._recorder = Recorder(folder, time.time, options.started_s or time.time())
        self._view: PlainView | None = None
        self._last_steps: dict[int, Any] = {}
        self._network_said = False
        self._hidden_lines = 0

    def watch(self, zygote: Zygote, ports: HeldPorts | None) -> GroupResult:
        """Run the workers to their end."""
        plan, recorder = self._plan, self._recorder
        self._view = view = make_view(
            live=self._options.live,
            epochs=plan.epochs,
            steps_per_epoch=plan.batch.steps_per_epoch,
            workers=len(plan.workers),
            verbosity=self._options.verbosity,
        )
        recorder.note("start", workers=len(plan.workers), plan=plan.to_json())
        view.say(f"starting: importing TensorFlow, then {count(len(plan.workers), 'worker')}")

        def on_event(rank: int, event: dict[str, Any]) -> None:
            recorder.on_event(rank, event)
            if event.get("event") == "progress":
                self._last_steps[rank] = {"epoch": event["epoch"], "step": event["step"]}
            if event.get("event") == "ready" and len(recorder.ready) == len(plan.workers) and ports is not None:
                ports.release()  # every worker has its own port by now
            view.on_event(rank, event)

        def on_line(rank: int, stream: str, text: str) -> None:
            if self._options.verbosity <= 0 and is_noise(text):
                self._hidden_lines += 1
            else:
                view.on_line(rank, stream, text)

        def on_tick(_: GroupControl) -> None:
            if not self._network_said and zygote.ready is not None:
                self._network_said = True
                ready = zygote.ready
                recorder.note("helper_ready", import_s=ready.import_s, private_network=ready.private_network)
                if ready.network_note and self._config.cluster.strategy != "mirrored":
                    view.say(f"note: the workers' network is not private: {ready.network_note}")
            view.tick()

        try:
            return run_group(
                zygote,
                self._specs(),
                on_event=on_event,
                on_line=on_line,
                on_tick=on_tick,
                grace_period_s=self._config.run.grace_period_s,
                start_timeout_s=self._config.cluster.start_timeout_s,
            )
        finally:
            view.close()

    def finish(self, result: GroupResult) -> int:
        """Write ``summary.json`` and say how the run ended; return the exit code."""
        for one in result.exits:
            self._recorder.note("exit", rank=one.rank, exit_code=one.exit_code, signal=one.signal, cause=one.cause)
        if result.stopped_by is not None:
            self._summarise("interrupted")
            after = f"after epoch {len(self._recorder.epochs)} of {self._plan.epochs}"
            _complain(f"interrupted by {signal_name(result.stopped_by)} {after}; run folder: {self._folder.path}")
            return result.exit_code
        if result.exit_code != EXIT_OK:
            return self._fail(result, describe_failure(result, self._recorder.errors, self._plan))
        if disagreement := self._disagreement():
            return self._fail(result, disagreement)
        summary = self._summarise("done")
        if self._options.verbosity >= 0:
            if self._hidden_lines:
                _say(f"{count(self._hidden_lines, 'harmless line')} of TensorFlow not shown (logs/ has all)")
            print_rows(summary_rows(summary, str(self._folder.path)), "done")
        return EXIT_OK

    def _specs(self) -> list[WorkerSpec]:
        plan, folder = self._plan, self._folder
        run_dir = str(folder.path.absolute())
        return [
            WorkerSpec(
                rank=worker.rank,
                env=worker.env,
                unset=worker.unset,
                log_path=folder.log(0, worker.rank),
                target="tfmp.train.worker:main",
                payload=worker_payload(plan, worker.rank, run_dir, str(self._dataset.path)),
                cpus=worker.cpus,
            )
            for worker in plan.workers
        ]

    def _disagreement(self) -> TfmpError | None:
        """An error if workers that all ended well do not hold the same weights, or nothing was saved."""
        digests = self._recorder.digests
        if len(digests) == len(self._plan.workers) and len(set(digests.values())) == 1 and self._recorder.model_saved:
            return None
        held = ", ".join(f"worker {rank}: {digest[:12]}" for rank, digest in sorted(digests.items()))
        return TfmpError(
            "expected the same trained weights on every worker", where=held or "no worker reported its weights"
        )

    def _fail(self, result: GroupResult, error: TfmpError) -> int:
        self._summarise("failed")
        write_json(self._folder.failure, failure_record(result, error, self._last_steps))
        first = result.first_failure
        if first is not None and (tail := result.tail(first.rank)):
            _complain(f"last lines of worker {first.rank} ({self._folder.log(0, first.rank)}):")
            _complain("\n".join(f"  | {line}" for line in tail))
        for line in other_workers(result) if first is not None else []:
            _complain(line)
        _complain(error.render())
        _complain(f"  run folder: {self._folder.path}")
        return result.exit_code or EXIT_FAILED

    def _summarise(self, status: str) -> dict[str, Any]:
        plan = self._plan
        summary = self._recorder.summary(
            status=status,
            workers=len(plan.workers),
            strategy=plan.strategy,
            collective=plan.collective.name,
            replicas=plan.replicas,
        )
        write_json(self._folder.summary, summary)
        return summary


def _headline(plan: Plan) -> str:
    batch = plan.batch
    each = f"{batch.per_replica_batch} a replica" + (f": {batch.uneven}" if batch.uneven else "")
    return (
        f"{count(len(plan.workers), 'worker')}, {plan.strategy}, collective {plan.collective.name}; "
        f"replicas: {plan.replicas}; global batch {batch.global_batch:,} ({each}); "
        f"{batch.steps_per_epoch:,} steps an epoch, {count(plan.epochs, 'epoch')}"
    )


def _private_network(config: RunConfig) -> Any:
    """The user's own model may need the network; ``on`` and ``off`` are obeyed."""
    wanted = config.cluster.private_network
    if config.cluster.strategy == "mirrored":
        return "off"
    own_code = config.model.factory is not None or config.training.callbacks
    return "off" if wanted == "auto" and own_code else wanted


def _held(wanted: int, base_port: int | None) -> AbstractContextManager[HeldPorts | None]:
    """``wanted`` held ports, or ``None`` for none."""
    return hold_ports(wanted, base_port) if wanted else nullcontext()


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(text: str) -> None:
    del text


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
