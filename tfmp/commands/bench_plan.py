"""What ``tfmp bench`` is to run: from options, configuration and machine, checked before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfmp.bench.trials import TrialPlan, default_workers
from tfmp.commands.user_code import check_user_code
from tfmp.data.cache import prepare
from tfmp.errors import UsageError
from tfmp.planning.inputs import Machine, plan_local_run
from tfmp.report.output import noop, say

if TYPE_CHECKING:
    from tfmp.config import Resolved

#: Resolves the user's settings with some keys overridden by options, given as {option: value}.
Resolve = Callable[[Mapping[str, object]], "Resolved"]

#: A configuration may ask for hundreds of epochs: so many tell the speed.
MOST_EPOCHS = 5
_QUICK_EPOCHS = 3


@dataclass(frozen=True)
class BenchOptions:
    """What the command line says; ``None``: not given.

    Attributes:
        workers: Numbers of workers.
        batch_sizes: Global batch sizes.
        collectives: Collectives to compare.
        rounds: How often everything is run.
        target_accuracy: The ``val_accuracy`` to which the time is taken.
        output: Folder of the results.
        quick: Whether about a minute has to do.
        live: Whether a live display is wanted on a terminal.
        quiet: Whether only the result is shown.
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


def plan_trials(resolve: Resolve, options: BenchOptions, machine: Machine) -> tuple[TrialPlan, bool]:
    """What is to be run, each layout planned as ``tfmp train`` would; and whether it is on GPUs.

    Raises:
        UsageError: A layout is refused.
    """
    resolved = resolve({})
    config = resolved.config
    if config.cluster.strategy != "multi-worker":
        raise UsageError(
            f"tfmp bench compares numbers of worker processes: expected the strategy multi-worker, received "
            f"{config.cluster.strategy}",
            where="cluster.strategy",
            hint="--set cluster.strategy=multi-worker",
        )
    check_user_code(resolved)
    header = prepare(config.data, noop if options.quiet else say).header
    limit = config.data.limit_train
    on_gpus = bool(machine.gpus) and config.cluster.device != "cpu"
    cores = machine.cores
    default = tuple(sorted({1, cores})) if options.quick else default_workers(cores)
    collectives = ("auto",) if on_gpus else ("shm",) if options.quick else ("shm", "ring")
    plan = TrialPlan(
        workers=options.workers or default,
        batch_sizes=options.batch_sizes or ((256,) if options.quick else (32, 256, 2048)),
        collectives=options.collectives or collectives,
        cores=cores,
        train_samples=min(header.train_samples, limit) if limit is not None else header.train_samples,
        weak=not (options.quick or on_gpus),
        # They hold processes to cores; on GPUs that would say nothing.
        references=not on_gpus,
    )
    for trial in plan.trials():
        if trial.kind == "run":
            given = {
                "--workers": trial.workers,
                "--batch-size": trial.batch_size,
                "--collective": trial.collective,
            }
            ports = tuple(range(1, trial.workers + 1))  # for the plan only: nothing listens there
            plan_local_run(resolve(given).config, header, machine, ports)
    return plan, on_gpus


def epochs_to_run(resolved: Resolved, options: BenchOptions) -> int:
    wanted = resolved.config.training.epochs
    if resolved.origin("training.epochs") == "--epochs":
        if wanted < 2:
            raise UsageError(
                "expected at least 2 epochs, received 1: the first one warms up and is not counted", where="--epochs"
            )
        return wanted
    return max(2, min(wanted, _QUICK_EPOCHS if options.quick else MOST_EPOCHS))
