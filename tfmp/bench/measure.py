"""Runs one trial: ``tfmp train`` as a child process, or several at once for a reference without exchange."""

from __future__ import annotations

import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfmp.bench.analysis import Measurement
from tfmp.bench.machine import busy_s, own_s
from tfmp.bench.trials import Trial, shares
from tfmp.errors import TfmpError
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.reader import EpochMetrics, Summary, read_events, read_metrics, read_summary
from tfmp.text import noop
from tfmp.workers.signals import SignalInbox

_TICK_S = 0.1
#: On top of the run's grace period, for the launcher to clean up.
_STOP_S = 10.0


class Interrupted(Exception):
    """A stop signal arrived and every child has ended. ``signum`` is the signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@dataclass(frozen=True)
class Bench:
    """What all trials have in common.

    Attributes:
        config: File with the resolved configuration.
        folder: Directory of the trials' run folders.
        cpus: The CPUs that references are limited to, one per usable core.
        train_samples: Training samples of an epoch.
        epochs: Epochs of each run.
        grace_period_s: ``run.grace_period_s``.
    """

    config: Path
    folder: Path
    cpus: tuple[int, ...]
    train_samples: int
    epochs: int
    grace_period_s: float


@dataclass
class Child:
    """One process of a trial."""

    folder: RunFolder
    arguments: list[str]
    cpus: tuple[int, ...] | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def errors(self) -> Path:
        return self.folder.path.with_suffix(".stderr")


def run_trial(
    bench: Bench, trial: Trial, number: int, inbox: SignalInbox, on_tick: Callable[[], None] = noop
) -> Measurement:
    """Run a trial and read its results. Its folder is removed unless it failed.

    Args:
        bench: See :class:`Bench`.
        trial: What to run.
        number: The round.
        inbox: Stop signals.
        on_tick: Called several times per second.

    Raises:
        Interrupted: A stop signal came.
        TfmpError: The training failed or left no figures.
    """
    folder = bench.folder / f"round-{number}" / trial.name
    folder.mkdir(parents=True)
    children = children_of(bench, trial, folder)
    busy_before_s, own_before_s = busy_s(bench.cpus), own_s()
    began_s, began = time.time(), time.monotonic()
    try:
        for child in children:
            _start(child)
        failed = wait_for(children, inbox, on_tick, bench.grace_period_s)
        seconds = time.monotonic() - began
    finally:
        _end(children, signal.SIGKILL, 0.0)
    if failed is not None:
        raise _failure(failed)
    foreign_s = busy_s(bench.cpus) - busy_before_s - (own_s() - own_before_s)
    folders = [child.folder for child in children]
    found = read_trial(trial, number, folders, began_s, seconds, max(0.0, foreign_s / seconds))
    shutil.rmtree(folder, ignore_errors=True)
    return found


def read_trial(
    trial: Trial, number: int, folders: Sequence[RunFolder], began_s: float, seconds: float, foreign_cores: float
) -> Measurement:
    """Read the run folders of a successful trial.

    Args:
        trial: What was run.
        number: The round.
        folders: Its run folders.
        began_s: Wall-clock time when the commands started.
        seconds: Duration of the commands.
        foreign_cores: Cores that other programs kept busy.

    Raises:
        TfmpError: A file is missing, damaged or has no figures.
    """
    rates: list[tuple[float, ...]] = []
    first_steps_s: list[float] = []
    summaries: list[Summary] = []
    reached: tuple[tuple[float, float | None], ...] | None = None
    try:
        for folder in folders:
            events = read_events(folder)
            rates.append(tuple(_rate(epoch) for epoch in read_metrics(folder)[1:]))
            first_steps_s.append(next(event.time_s for event in events if event.kind == "first_step") - began_s)
            summaries.append(read_summary(folder))
            if reached is None:  # only references have several folders, and their accuracy does not matter
                epochs = [event for event in events if event.kind == "epoch"]
                reached = tuple((epoch.time_s - began_s, epoch.values.get("val_accuracy")) for epoch in epochs)
        speed = sum(map(statistics.median, rates))
    except (OSError, ValueError, StopIteration) as error:  # statistics.StatisticsError is a ValueError
        raise TfmpError(
            f"the run left no usable figures: {type(error).__name__}: {error}",
            where=str(folders[0].path),
            hint="at least two epochs are needed; check that nothing else writes to this folder",
        ) from error
    return Measurement(
        trial=trial,
        round=number,
        rates=tuple(rates),
        samples_per_second=speed,
        first_step_s=max(first_steps_s),
        reached=reached or (),
        seconds=seconds,
        collective=summaries[-1].collective,
        weights_sha256=tuple(summary.weights_sha256 for summary in summaries),
        foreign_cores=foreign_cores,
    )


def _rate(epoch: EpochMetrics) -> float:
    if epoch.samples_per_second is None:
        raise ValueError(f"epoch {epoch.epoch} has no samples_per_second")
    return epoch.samples_per_second


def children_of(bench: Bench, trial: Trial, folder: Path) -> list[Child]:
    """Return the processes of a trial, not started yet, with run folders below ``folder``."""
    common = ["train", str(bench.config), "-q", "--no-live", "--max-restarts", "0", "--epochs", str(bench.epochs)]
    common += ["--set", "cluster.base_port=null"]  # several may run at once
    if trial.kind != "apart":
        run = RunFolder(folder / "run")
        cpus = None if trial.cores is None else bench.cpus[: trial.cores]
        arguments = [*common, "--workers", str(trial.workers), "--batch-size", str(trial.batch_size)]
        return [Child(run, [*arguments, "--collective", trial.collective, "--run-dir", str(run.path)], cpus)]
    children = []
    batches, samples = shares(trial.batch_size, trial.workers), shares(bench.train_samples, trial.workers)
    for place, (batch, own) in enumerate(zip(batches, samples, strict=True)):
        run = RunFolder(folder / f"run-{place}")
        arguments = [*common, "--workers", "1", "--batch-size", str(batch), "--set", f"data.limit_train={own}"]
        # They would validate at different times, and each would validate all samples.
        arguments += ["--set", "training.validation_every=0", "--run-dir", str(run.path)]
        children.append(Child(run, arguments, cpu_share(bench.cpus, trial.workers, place)))
    return children


def cpu_share(cpus: tuple[int, ...], workers: int, place: int) -> tuple[int, ...]:
    """Return the CPUs of worker ``place``. If there are more workers than CPUs, they share them."""
    each = max(1, len(cpus) // workers)
    return tuple(cpus[(place * each + offset) % len(cpus)] for offset in range(each))


def _start(child: Child) -> None:
    cpus = "-" if child.cpus is None else ",".join(map(str, child.cpus))
    with child.errors.open("wb") as errors:
        child.process = subprocess.Popen(
            [sys.executable, "-m", "tfmp.bench.child", str(os.getpid()), cpus, *child.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # the benchmark gets Ctrl-C and passes it on
        )


def wait_for(
    children: Sequence[Child], inbox: SignalInbox, on_tick: Callable[[], None], grace_period_s: float
) -> Child | None:
    """Wait for all children. If one fails, stop the others and return it.

    Raises:
        Interrupted: A stop signal came.
    """
    while True:
        # First of all: Ctrl-C may have hit a child that had no session of its own yet.
        if signals := inbox.read():
            _end(children, signals[0], grace_period_s + _STOP_S, inbox)
            raise Interrupted(signals[0])
        codes = [child.process.poll() for child in children if child.process is not None]
        if all(code == 0 for code in codes):
            return None
        for child, code in zip(children, codes, strict=True):
            if code:
                _end(children, signal.SIGTERM, grace_period_s + _STOP_S)
                return child
        select.select([inbox], [], [], _TICK_S)
        on_tick()


def _end(children: Sequence[Child], signum: int, patience_s: float, inbox: SignalInbox | None = None) -> None:
    """Ask the remaining children to stop; kill them after ``patience_s``, or at a second signal."""
    left = [child.process for child in children if child.process is not None and child.process.poll() is None]
    for process in left:
        with suppress(ProcessLookupError):
            process.send_signal(signum)
    deadline = time.monotonic() + patience_s
    while any(process.poll() is None for process in left) and time.monotonic() < deadline:
        if inbox is not None and inbox.read():
            break
        time.sleep(0.02)
    for process in left:
        if process.poll() is None:
            process.kill()  # its fork server and workers end with it
            process.wait()


def _failure(child: Child) -> TfmpError:
    code = child.process.returncode if child.process is not None else 0
    lines = child.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    text = "\n".join(f"  | {line}" for line in lines[:12]) or "  | (no output)"
    what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return TfmpError(f"a run failed with {what}:\n{text}", where=str(child.folder.path), exit_code=1)
