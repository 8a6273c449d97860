"""``tfmp verify``: a few steps on N workers and as one process of plain Keras, compared variable by variable."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.agent.controller import Controller, Reporter
from tfmp.agent.restart_policy import RestartPolicy
from tfmp.agent.workload import PRELOAD, SingleWorkerWorkload, TrainingWorkload, training_stop_policy
from tfmp.commands.output import headline
from tfmp.commands.train import held_ports, private_network
from tfmp.commands.user_code import check_user_code
from tfmp.data.cache import prepare
from tfmp.errors import EXIT_FAILED, EXIT_OK, TfmpError
from tfmp.events import EvaluationResult, WorkerEvent
from tfmp.noise import is_noise
from tfmp.planning.environment import fork_server_environment, thread_env
from tfmp.planning.host import Host
from tfmp.planning.plan import make_plan
from tfmp.planning.task import WorkerTask
from tfmp.report.output import lasting_output
from tfmp.report.summary import print_rows
from tfmp.rundir.claim import claim_run_folder
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.temporary import temporary_folder
from tfmp.text import count, eprint, noop, say
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_group import ForkServerGroup
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import WorkerSpec

if TYPE_CHECKING:
    from tfmp.agent.failures.diagnosis import Diagnosis
    from tfmp.config import Resolved, RunConfig
    from tfmp.data.cache import CachedDataset
    from tfmp.planning.plan import Plan
    from tfmp.workers.group import Line

_EPOCHS = 2
#: In the temporary folder: what the workers recorded.
RECORDED = "recorded"
_VALIDATION_SAMPLES = 1000


@dataclass(frozen=True)
class VerifyOptions:
    """What the command line says beside the configuration.

    Attributes:
        steps: Steps of each of the two epochs.
        precision: ``float64``, or ``None`` for the configured one.
        as_json: Print JSON.
        verbosity: -1, 0 or 1.
    """

    steps: int
    precision: str | None
    as_json: bool
    verbosity: int


def verify(resolved: Resolved, options: VerifyOptions) -> int:
    """Compare a short training on the configured workers with one process of plain Keras; return the exit code.

    Raises:
        UsageError: Something is wrong with the settings, the data or the machine; no process was started.
        TfmpError: One of the two could not be run.
    """
    tell = noop if options.verbosity < 0 or options.as_json else say
    check_user_code(resolved)
    host = Host.here()
    dataset = prepare(resolved.config.data, tell)
    config = short_run(resolved.config, options, dataset.header.train_samples, dataset.header.validation_samples)
    plan = make_plan(config, dataset.header, host)
    tell(f"{headline(plan)}, {config.training.precision}")
    with ExitStack() as stack:
        stack.enter_context(lasting_output())
        folder = stack.enter_context(temporary_folder())
        verdict = _run(config, plan, dataset, host, folder, stack, options, tell)
    return _report(verdict, options)


def short_run(config: RunConfig, options: VerifyOptions, train_samples: int, validation_samples: int) -> RunConfig:
    """Return the configuration of the run to compare: two epochs of a few steps, the last batch of each uneven.

    Args:
        config: The user's.
        options: Steps and precision.
        train_samples: What the data set has.
        validation_samples: What the data set has.
    """
    data, training, cluster = config.data, config.training, config.cluster
    short_batch = max(cluster.worker_count * max(1, cluster.devices or 1) + 1, training.batch_size // 2 + 1)
    samples = (options.steps - 1) * training.batch_size + min(short_batch, training.batch_size)
    return config.model_copy(
        update={
            "data": data.model_copy(
                update={
                    "limit_train": min(samples, data.limit_train or train_samples, train_samples),
                    "limit_validation": min(
                        _VALIDATION_SAMPLES, data.limit_validation or validation_samples, validation_samples
                    ),
                }
            ),
            "training": training.model_copy(
                update={
                    "epochs": _EPOCHS,
                    "steps_per_epoch": None,
                    "steps_per_execution": 1,
                    "precision": options.precision or training.precision,
                }
            ),
            "run": config.run.model_copy(update={"checkpoints": False, "tensorboard": False, "max_restarts": 0}),
        }
    )


def _run(
    config: RunConfig,
    plan: Plan,
    dataset: CachedDataset,
    host: Host,
    folder: Path,
    stack: ExitStack,
    options: VerifyOptions,
    tell: Any,
) -> dict[str, Any]:
    """Run both trainings, one after the other, from one fork server; return what the second has compared."""
    run_folder = claim_run_folder(folder / "run", lambda: folder, "")
    held = partial(held_ports, plan.port_count, config.cluster.base_port)
    env, _ = fork_server_environment(host.environ, plan.workers[0].env, verbose=options.verbosity > 0)
    start_fork_server = partial(ForkServer.start, PRELOAD, private_network=private_network(config), env=env)
    inbox = stack.enter_context(SignalInbox(STOP_SIGNALS))
    group = stack.enter_context(
        ForkServerGroup(
            start_fork_server, inbox, training_stop_policy(config), import_timeout_s=config.cluster.start_timeout_s
        )
    )
    workloads = {
        count(len(plan.workers), "worker"): TrainingWorkload(
            config, plan, run_folder, dataset, hold_ports=held, record=folder / RECORDED, tell=tell
        ),
        "plain Keras in one process": SingleWorkerWorkload(_reference(config, plan, dataset, host, run_folder, folder)),
    }
    for what, workload in workloads.items():
        tell(f"training {count(plan.batch.steps_per_epoch * config.training.epochs, 'step')}: {what}")
        reporter = VerifyReporter(what, options.verbosity)
        Controller(group, workload, RestartPolicy(max_restarts=0), reporter).run()
    return reporter.verdict


def _reference(
    config: RunConfig, plan: Plan, dataset: CachedDataset, host: Host, run_folder: RunFolder, folder: Path
) -> WorkerSpec:
    task = WorkerTask.planned(config, plan, 0, run_folder.path.absolute(), dataset.path, record=folder / RECORDED)
    env = thread_env(host.cores, 1, host.environ)
    return WorkerSpec(
        rank=0,
        env={**plan.workers[0].env, **env, "TMPDIR": str(folder)},
        unset=("TF_CONFIG",),
        log_path=run_folder.path / "logs" / "reference.log",
        target="tfmp.trainer.reference:main",
        payload=task.to_json(),
    )


class VerifyReporter(Reporter):
    """Says little while all goes well, and ends the command where it does not.

    Args:
        what: What runs.
        verbosity: -1, 0 or 1.

    Attributes:
        verdict: What the worker has found.
    """

    def __init__(self, what: str, verbosity: int) -> None:
        self.verdict: dict[str, Any] = {}
        self._what = what
        self._verbosity = verbosity

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """Keep the result."""
        if isinstance(event, EvaluationResult):
            self.verdict = dict(event.values)

    def on_line(self, line: Line) -> None:
        """Print it, if that is wanted."""
        if self._verbosity > 0 and not is_noise(line.text):
            say(line.text)

    def interrupted(self, signum: int, result: Any) -> int:
        """End the command.

        Raises:
            TfmpError: Always.
        """
        raise TfmpError("interrupted: nothing was compared", exit_code=128 + signum)

    def failed(self, diagnosis: Diagnosis, why: str | None) -> int:
        """End the command.

        Raises:
            TfmpError: Always.
        """
        culprit = diagnosis.culprit
        if culprit is not None and culprit.error is None:
            eprint("\n".join(f"  | {line}" for line in culprit.tail if not is_noise(line)))
        error = diagnosis.to_error()
        # The folder with the logs is temporary.
        raise TfmpError(f"{self._what}: {error.what}", where=error.where, hint=error.hint, exit_code=error.exit_code)


def _report(verdict: dict[str, Any], options: VerifyOptions) -> int:
    """Print the verdict and return the exit code."""
    first, steps = verdict["first"], verdict["steps"]
    if options.as_json:
        print(json.dumps({"passed": first is None, **verdict}))
        return EXIT_OK if first is None else EXIT_FAILED
    if options.verbosity >= 0:
        print_rows(
            [_row(worst) for worst in steps],
            columns=("step", "furthest from one process", "difference", "allowed", "natural spread"),
        )
    if first is not None:
        raise TfmpError(
            f"the workers do not compute what one process does: {first['name']} differs by "
            f"{first['difference']:.1e} after step {first['step']}, allowed {first['allowed']:.1e}",
            where=f"{first['name']}, step {first['step']}",
            hint="docs/numbers.md lists what cannot be equal; report anything else",
        )
    if options.verbosity >= 0:
        largest = max(worst["difference"] for worst in steps)
        say(f"passed: {steps[-1]['step']} steps equal one process; the largest difference is {largest:.1e}")
    return EXIT_OK


def _row(worst: dict[str, Any]) -> tuple[str, ...]:
    numbers = (f"{worst[name]:.1e}" for name in ("difference", "allowed", "spread"))
    return (str(worst["step"]), worst["name"] + (" (initial)" if worst["step"] == 0 else ""), *numbers)
