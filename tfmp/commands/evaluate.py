"""``tfmp evaluate``: one worker process that loads a run's model and measures it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.agent.controller import Controller, Reporter
from tfmp.agent.restart_policy import RestartPolicy
from tfmp.agent.workload import PRELOAD, SingleWorkerWorkload
from tfmp.config import load_run_config
from tfmp.data.cache import prepare
from tfmp.errors import EXIT_OK, TfmpError, UsageError
from tfmp.events import EvaluationResult, WorkerEvent
from tfmp.noise import is_noise
from tfmp.planning.environment import fork_server_environment, thread_env
from tfmp.planning.host import Host
from tfmp.report.summary import print_rows
from tfmp.rundir.layout import RunFolder
from tfmp.text import say
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_group import ForkServerGroup
from tfmp.workers.group import Line
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, WorkerSpec, signal_name

if TYPE_CHECKING:
    from tfmp.agent.failures.diagnosis import Diagnosis


def evaluate(run_dir: Path, *, as_json: bool, verbose: bool) -> int:
    """Print loss and metrics of the model in ``run_dir`` over all its validation samples; return the exit code.

    Raises:
        UsageError: ``run_dir`` is no run folder, or its run has not ended with a model.
        TfmpError: The evaluation failed.
    """
    folder = RunFolder(run_dir.absolute())
    if not run_dir.is_dir():
        raise UsageError("expected a run folder, found nothing there", where=str(run_dir), hint="ls runs")
    for path, meaning in ((folder.config, "a run folder"), (folder.model, "a run that has ended with a model")):
        if not path.is_file():
            raise UsageError(
                f"expected {meaning}, found no {path.name}", where=str(run_dir), hint="tfmp train makes one"
            )
    config = load_run_config(folder.config)
    host = Host.here()
    dataset = prepare(config.data)
    worker_env = thread_env(host.cores, 1, host.environ)
    env, _ = fork_server_environment(host.environ, worker_env, verbose=verbose)
    spec = WorkerSpec(
        rank=0,
        env=worker_env,
        unset=("TF_CONFIG",),
        log_path=folder.path / "logs" / "evaluate.log",
        target="tfmp.trainer.evaluate:main",
        payload={"run_dir": str(folder.path), "data_header": str(dataset.path)},
    )
    start_fork_server = partial(ForkServer.start, PRELOAD, private_network="off", env=env)
    reporter = EvaluationReporter(folder, run_dir, spec.log_path, as_json=as_json, verbose=verbose)
    with SignalInbox(STOP_SIGNALS) as inbox, ForkServerGroup(start_fork_server, inbox) as group:
        return Controller(group, SingleWorkerWorkload(spec), RestartPolicy(max_restarts=0), reporter).run()


class EvaluationReporter(Reporter):
    """Prints loss and metrics.

    Args:
        folder: The run folder.
        run_dir: The same as the user typed it.
        log: The worker's log.
        as_json: Print JSON.
        verbose: Print what the worker prints.
    """

    def __init__(self, folder: RunFolder, run_dir: Path, log: Path, *, as_json: bool, verbose: bool) -> None:
        self._folder = folder
        self._run_dir = run_dir
        self._log = log
        self._as_json = as_json
        self._verbose = verbose
        self._found: dict[str, Any] = {}

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """Keep the result."""
        if isinstance(event, EvaluationResult):
            self._found = dict(event.values)

    def on_line(self, line: Line) -> None:
        """Print it, if that is wanted."""
        if self._verbose and not is_noise(line.text):
            say(line.text)

    def succeeded(self, result: GroupResult) -> int:
        """Print the result."""
        samples = int(self._found.pop("samples"))
        if self._as_json:
            print(json.dumps({"run": str(self._run_dir), "samples": samples, **self._found}))
        else:
            rows = [("model", str(self._folder.model)), ("samples", f"{samples:,}")]
            print_rows([*rows, *((name, _shown(value)) for name, value in self._found.items())])
        return EXIT_OK

    def interrupted(self, signum: int, result: GroupResult | None) -> int:
        """Say so.

        Raises:
            TfmpError: Always.
        """
        raise TfmpError(f"interrupted by {signal_name(signum)}", exit_code=128 + signum)

    def failed(self, diagnosis: Diagnosis, why: str | None) -> int:
        """Say what went wrong.

        Raises:
            TfmpError: Always.
        """
        raise _failure(diagnosis, self._log)


def _failure(diagnosis: Diagnosis, log: Path) -> TfmpError:
    culprit, result = diagnosis.culprit, diagnosis.result
    if culprit is not None and culprit.error is not None:
        return TfmpError(culprit.error.what, where=culprit.error.where, hint=culprit.error.hint)
    how = culprit.exit.describe() if culprit is not None else result.problem
    return TfmpError(
        f"the evaluation failed: {how}",
        where=str(log),
        hint="\n".join(result.tail(0)[-3:]) or None,
        exit_code=result.exit_code,
    )


def _shown(value: Any) -> str:
    """A metric's result: a number, or an array as nested lists."""
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else f"{value:.6f}"
