"""Training from Python: what ``tfmp train`` does, with exceptions in place of exit codes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.agent.options import TrainOptions
from tfmp.commands import train as command
from tfmp.config import FlagValue, resolve
from tfmp.errors import EXIT_INTERRUPTED, EXIT_OK, TfmpError, UsageError
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.reader import EpochMetrics, Summary, read_failure, read_metrics, read_summary

if TYPE_CHECKING:
    from tfmp.config import Resolved


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Attributes:
        run_dir: Its folder, with ``model.keras``.
        summary: Its last loss and metrics (``summary.values``), throughput, ``weights_sha256`` and the like.
        metrics: What each epoch measured.
    """

    run_dir: Path
    summary: Summary
    metrics: tuple[EpochMetrics, ...]


def train(
    config: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    verbosity: int = 0,
) -> TrainingResult:
    """Train on this machine in worker processes, as ``tfmp train`` does, and wait for the end.

    >>> result = tfmp.train("configs/mnist.yaml", workers=4, settings={"training.epochs": 3})
    >>> result.summary.values["val_accuracy"]

    Args:
        config: A YAML file; ``None``: the defaults, which train MNIST.
        workers: Number of worker processes, over what the file says.
        run_dir: The run folder; ``None``: a new one under ``runs/``.
        resume: Resume the run in ``run_dir``, if there is one.
        settings: Any configuration key and its value, over what the file says.
        verbosity: -1: print errors only; 0: a line an epoch; 1: all that the workers print.

    Raises:
        UsageError: Something is wrong with the settings, the data or the machine; no process was started. Or this is
            not the main thread, which alone can receive signals.
        TfmpError: The training failed; the same text as ``tfmp train`` prints.
        KeyboardInterrupt: The user stopped it; the run can be resumed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "expected the main thread, which receives signals; this is another one",
            where=f"tfmp.train in thread {threading.current_thread().name!r}",
            hint="call it from the main thread, or run tfmp train as a subprocess",
        )
    folders: list[Path] = []
    options = TrainOptions(
        Path(config) if config is not None else None,
        live=False,
        verbosity=verbosity,
        started_s=time.time(),
        resume=resume,
        on_folder=folders.append,
    )
    code = command.train(_resolved(config, workers, run_dir, settings), options)
    folder = RunFolder(folders[0])
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code != EXIT_OK:
        raise _failure(folder, code)
    return TrainingResult(folder.path, read_summary(folder), tuple(read_metrics(folder)))


def _resolved(
    config: str | os.PathLike[str] | None,
    workers: int | None,
    run_dir: str | os.PathLike[str] | None,
    settings: Mapping[str, Any] | None,
) -> Resolved:
    given = {"cluster.workers": ("workers", workers), "run.dir": ("run_dir", run_dir)}
    return resolve(
        Path(config) if config is not None else None,
        [f"{key}={_text(value)}" for key, value in (settings or {}).items()],
        [FlagValue(key, f"{name}=", _text(value)) for key, (name, value) in given.items() if value is not None],
    )


def _text(value: Any) -> str:
    """The value as it would be typed on the command line."""
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else json.dumps(value)


def _failure(folder: RunFolder, code: int) -> TfmpError:
    try:
        failure = read_failure(folder)
    except (OSError, ValueError):
        return TfmpError(f"the training ended with exit code {code}", where=str(folder.path), exit_code=code)
    return TfmpError(failure.what, where=failure.where, hint=failure.hint, exit_code=code)
