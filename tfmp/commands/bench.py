"""``tfmp bench``: checks, runs every trial in rounds, saves each result at once, and shows them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.bench.analysis import Analysis, Measurement, analyse, unlike_weights
from tfmp.bench.machine import busy, crowded, describe_machine, versions
from tfmp.bench.measure import Bench, Interrupted, run_trial
from tfmp.bench.plot import save_plot
from tfmp.bench.progress import Progress
from tfmp.bench.tables import advice_lines, show, tables
from tfmp.bench.trials import Trial, TrialPlan, default_workers
from tfmp.commands.user_code import check_user_code
from tfmp.data.cache import prepare
from tfmp.errors import EXIT_FAILED, EXIT_OK, TfmpError, UsageError
from tfmp.planning.host import Host
from tfmp.planning.plan import make_plan
from tfmp.report.display import make_display
from tfmp.rundir.claim import claim_run_folder
from tfmp.rundir.layout import write_json
from tfmp.text import count, eprint, noop, say
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import signal_name

if TYPE_CHECKING:
    from tfmp.config import Resolved

#: Resolves the settings with some options overridden: {option: value}.
Resolve = Callable[[Mapping[str, object]], "Resolved"]

#: Enough to measure the speed, even if the configuration asks for hundreds.
MOST_EPOCHS = 5
_QUICK_EPOCHS = 3


@dataclass(frozen=True)
class BenchOptions:
    """What the command line asks for; ``None``: not given.

    Attributes:
        workers: Numbers of workers.
        batch_sizes: Global batch sizes.
        collectives: Collectives to compare.
        rounds: Number of rounds.
        target_accuracy: The ``val_accuracy`` for the time-to-accuracy figure.
        output: Folder of the results.
        quick: Whether to finish in about a minute.
        live: Whether to show a live display on a terminal.
        quiet: Whether to show the result only.
    """

    workers: tuple[int, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    collectives: tuple[str, ...] | None = None
    rounds: int = 3
    target_accuracy: float = 0.975
    output: Path | None = None
    quick: bool = False
    live: bool = True
    quiet: bool = False


@dataclass
class _Results:
    """The measurements so far, and where they are saved."""

    folder: Path
    plan: TrialPlan
    options: BenchOptions
    facts: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def analysis(self) -> Analysis:
        return analyse(self.plan, self.measurements, self.options.target_accuracy)

    def write(self, status: str) -> None:
        """Rewrite ``bench.json``. Called after every run, so that no result is lost."""
        write_json(
            self.folder / "bench.json",
            {
                "status": status,
                **self.facts,
                "runs": [{"name": measurement.trial.name, **asdict(measurement)} for measurement in self.measurements],
                "failures": self.failures,
                "analysis": self.analysis().to_json(),
            },
        )


def bench(resolve: Resolve, options: BenchOptions) -> int:
    """Measure and report; return the exit code.

    Args:
        resolve: Resolves the settings with some options overridden.
        options: See :class:`BenchOptions`.

    Raises:
        UsageError: The settings, the lists, the data or the machine do not fit; nothing was started.
        TfmpError: The first run failed.
    """
    resolved = resolve({})
    host = Host.here()
    plan, on_gpus = _plan_trials(resolve, options, host)
    epochs = _epochs_to_run(resolved, options)
    folder = _claim(options.output, resolved)
    results = _Results(folder, plan, options, _facts(plan, options, epochs, host.cores))
    for line in _notes(plan, results.facts, resolved.config.training.epochs, epochs, on_gpus=on_gpus):
        eprint(line)
    trials = plan.trials()
    if not options.quiet:
        runs = f"{len(trials)} layouts, {count(options.rounds, 'round')}: {count(len(trials) * options.rounds, 'run')}"
        say(f"{runs} of {count(epochs, 'epoch')}; results: {folder}")
    common = Bench(
        config=folder / "config.yaml",
        folder=folder / "trials",
        cpus=host.cpus[: host.cores],
        train_samples=plan.train_samples,
        epochs=epochs,
        grace_period_s=resolved.config.run.grace_period_s,
    )
    # Drawn twice per second: the display shares the cores with what is measured.
    display = None if options.quiet else make_display(live=options.live, refresh_per_second=2)
    progress = Progress(display, trials, options.rounds)
    stopped_by = None
    try:
        with SignalInbox(STOP_SIGNALS) as inbox:
            _run_all(common, results, trials, inbox, progress)
    except Interrupted as interruption:
        stopped_by = interruption.signum
    finally:
        progress.close()
    return _finish(results, stopped_by, progress.done, progress.total)


def _plan_trials(resolve: Resolve, options: BenchOptions, host: Host) -> tuple[TrialPlan, bool]:
    """Return the trials, and whether they run on GPUs. Each layout is planned as in ``tfmp train``.

    Raises:
        UsageError: A layout is refused.
    """
    resolved = resolve({})
    config = resolved.config
    if not config.cluster.is_multi_process:
        raise UsageError(
            f"tfmp bench compares numbers of worker processes: expected the strategy multi-worker, received "
            f"{config.cluster.strategy}",
            where="cluster.strategy",
            hint="--set cluster.strategy=multi-worker",
        )
    check_user_code(resolved)
    header = prepare(config.data, noop if options.quiet else say).header
    limit = config.data.limit_train
    on_gpus = bool(host.gpus) and config.cluster.device != "cpu"
    cores = host.cores
    default = tuple(sorted({1, cores})) if options.quick else default_workers(cores)
    collectives = ("auto",) if on_gpus else ("shm",) if options.quick else ("shm", "ring")
    plan = TrialPlan(
        workers=options.workers or default,
        batch_sizes=options.batch_sizes or ((256,) if options.quick else (32, 256, 2048)),
        collectives=options.collectives or collectives,
        cores=cores,
        train_samples=min(header.train_samples, limit) if limit is not None else header.train_samples,
        weak=not (options.quick or on_gpus),
        # They limit processes to cores, which means nothing on GPUs.
        references=not on_gpus,
    )
    for trial in plan.trials():
        if trial.kind == "run":
            given = {
                "--workers": trial.workers,
                "--batch-size": trial.batch_size,
                "--collective": trial.collective,
            }
            make_plan(resolve(given).config, header, host)
    return plan, on_gpus


def _epochs_to_run(resolved: Resolved, options: BenchOptions) -> int:
    wanted = resolved.config.training.epochs
    if resolved.origin("training.epochs") == "--epochs":
        if wanted < 2:
            raise UsageError(
                "expected at least 2 epochs, received 1: the first one is warm-up and is not counted", where="--epochs"
            )
        return wanted
    return max(2, min(wanted, _QUICK_EPOCHS if options.quick else MOST_EPOCHS))


def _run_all(
    common: Bench, results: _Results, trials: tuple[Trial, ...], inbox: SignalInbox, progress: Progress
) -> None:
    rounds = results.options.rounds
    broken: set[Trial] = set()
    for number in range(1, rounds + 1):
        for place, trial in enumerate(trials):
            if trial in broken:
                continue
            left = [other for other in (*trials[place:], *(trials * (rounds - number))) if other not in broken]
            progress.begin(trial, number, left)
            began, found = time.monotonic(), None
            try:
                found = run_trial(common, trial, number, inbox, progress.tick)
            except TfmpError as error:
                if not results.measurements:
                    raise
                broken.add(trial)
                results.failures.append({"name": trial.name, "round": number, "what": error.what, "where": error.where})
                eprint(error.render())
            else:
                results.measurements.append(found)
            results.write("running")
            progress.end(trial, time.monotonic() - began, found)


def _finish(results: _Results, stopped_by: int | None, done: int, total: int) -> int:
    """Save and show the results; return the exit code."""
    status = "interrupted" if stopped_by is not None else "failed" if results.failures else "done"
    results.write(status)
    if not results.failures:
        shutil.rmtree(results.folder / "trials", ignore_errors=True)
    if results.measurements:
        _show(results)
    if stopped_by is not None:
        kept = f"; results so far: {results.folder / 'bench.json'}" if results.measurements else ""
        eprint(f"interrupted by {signal_name(stopped_by)} after {done} of {count(total, 'run')}{kept}")
        return 128 + stopped_by
    if results.failures:
        names = ", ".join(failure["name"] for failure in results.failures)
        eprint(f"error: {count(len(results.failures), 'layout')} failed: {names}")
        return EXIT_FAILED
    return EXIT_OK


def _show(results: _Results) -> None:
    found = results.analysis()
    say("")
    for table in tables(results.plan, found, results.options.target_accuracy):
        show(table)
    for trial in unlike_weights(results.measurements):
        say(f"warning: final weights differ between rounds: {trial.title}")
    foreign_cores = [measurement.foreign_cores for measurement in results.measurements]
    warning = crowded(foreign_cores, results.plan.cores)
    if warning:
        say(f"warning: {warning}")
    files = [results.folder / "bench.json"]
    try:
        save_plot(results.folder / "bench.png", results.plan, found)
        files.append(results.folder / "bench.png")
    except TfmpError as error:
        say(f"{error.what}: {error.hint}")
    say(f"wrote {', '.join(map(str, files))}")
    for line in advice_lines(results.plan, found, results.options.target_accuracy, busy=warning is not None):
        say(line)


def _claim(output: Path | None, resolved: Resolved) -> Path:
    """Create the results folder with ``config.yaml``.

    Raises:
        UsageError: It already contains results, or is not writable.
    """
    if output is not None and (output / "config.yaml").exists():
        raise UsageError(
            "this folder already contains results, which are never overwritten",
            where=str(output),
            hint="choose another --output",
        )
    default = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-bench"
    try:
        return claim_run_folder(output, lambda: default, resolved.to_yaml()).path
    except UsageError as error:
        raise UsageError(error.what, where=error.where, hint="choose another --output") from error


def _facts(plan: TrialPlan, options: BenchOptions, epochs: int, cores: int) -> dict[str, Any]:
    settings = {
        "workers": plan.workers,
        "batch_sizes": plan.batch_sizes,
        "collectives": plan.collectives,
        "rounds": options.rounds,
        "epochs": epochs,
        "train_samples": plan.train_samples,
        "target_accuracy": options.target_accuracy,
        "quick": options.quick,
    }
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": describe_machine(cores),
        "versions": versions(),
        "settings": settings,
    }


def _notes(plan: TrialPlan, facts: Mapping[str, Any], wanted_epochs: int, epochs: int, *, on_gpus: bool) -> list[str]:
    """Return notes to show before the first run."""
    notes = []
    if warning := busy(facts["machine"]["load"], plan.cores):
        notes.append(f"warning: {warning}")
    if epochs < wanted_epochs:
        notes.append(f"note: running {epochs} of the {wanted_epochs} configured epochs (--epochs overrides this)")
    if on_gpus:
        notes.append("note: scaling efficiency and the step breakdown are not available on GPUs")
    return notes
