"""``tfmp evaluate``: one worker process that loads a run's model and measures it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tfmp.config import load_run_config
from tfmp.data.cache import prepare
from tfmp.errors import EXIT_OK, TfmpError, UsageError
from tfmp.planning.environment import fork_server_environment, thread_env
from tfmp.planning.host import Host
from tfmp.report.noise import is_noise
from tfmp.report.summary import print_rows
from tfmp.rundir.layout import RunFolder
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.group import run_group
from tfmp.workers.spec import WorkerSpec, signal_name


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
    found: dict[str, Any] = {}
    errors: list[dict[str, Any]] = []

    def on_event(_: int, event: dict[str, Any]) -> None:
        if event.get("event") == "result":
            found.update(event["values"])
        elif event.get("event") == "error":
            errors.append(event)

    def on_line(_: int, __: str, text: str) -> None:
        if verbose and not is_noise(text):
            print(text, flush=True)

    spec = WorkerSpec(
        rank=0,
        env=worker_env,
        unset=("TF_CONFIG",),
        log_path=folder.path / "logs" / "evaluate.log",
        target="tfmp.trainer.evaluate:main",
        payload={"run_dir": str(folder.path), "data_header": str(dataset.path)},
    )
    with ForkServer.start(
        ("tensorflow", "keras", "tfmp.trainer.preload"), private_network="off", env=env
    ) as fork_server:
        result = run_group(fork_server, [spec], on_event=on_event, on_line=on_line)
    if result.stopped_by is not None:
        raise TfmpError(f"interrupted by {signal_name(result.stopped_by)}", exit_code=result.exit_code)
    if result.exit_code != EXIT_OK:
        if errors:
            raise TfmpError(errors[0]["what"], where=errors[0].get("where"), hint=errors[0].get("hint"))
        first = result.first_failure
        raise TfmpError(
            f"the evaluation failed: {first.describe() if first else result.problem}",
            where=str(spec.log_path),
            hint="\n".join(result.tail(0)[-3:]) or None,
            exit_code=result.exit_code,
        )
    samples = int(found.pop("samples"))
    if as_json:
        print(json.dumps({"run": str(run_dir), "samples": samples, **found}))
    else:
        rows = [("model", str(folder.model)), ("samples", f"{samples:,}")]
        print_rows([*rows, *((name, _shown(value)) for name, value in found.items())])
    return EXIT_OK


def _shown(value: Any) -> str:
    """A metric's result: a number, or an array as nested lists."""
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else f"{value:.6f}"
