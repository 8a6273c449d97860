"""``tfmp train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tfmp.cli import STARTED_S
from tfmp.cli.options import (
    log_worker_option,
    output_options,
    parse_ranks,
    resolve_settings,
    run_options,
    verbosity,
)

_EPILOG = """\b
Examples:
  tfmp train --workers 4
  tfmp train configs/mnist-2-workers.yaml --epochs 1
  tfmp train --workers 2 --set training.optimizer=sgd --set training.schedule=constant
  tfmp train --strategy mirrored --devices 2
  tfmp train --workers 3 --batch-size 64 --dry-run
  tfmp train --resume --run-dir runs/20260101-120000-mnist
  tfmp train --workers 3 --drill kill:2@step=50

\b
Exit codes: 0 done, 1 training failed, 2 wrong usage or configuration, 130 Ctrl-C,
143 SIGTERM; a worker's own exit code (128 + n for signal n) where it died.
"""


@click.command("train", epilog=_EPILOG)
@run_options
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir, if it holds one.")
@click.option(
    "--drill",
    "drills",
    multiple=True,
    metavar="FAULT",
    help="Commit a fault on purpose, as kill:2@step=50, to rehearse it. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print settings and plan; start nothing.")
@log_worker_option
@click.option("--tee", is_flag=True, help="Show every line that the workers print, as their logs have it.")
@output_options
def command(
    config: Path | None,
    sets: tuple[str, ...],
    resume: bool,
    drills: tuple[str, ...],
    dry_run: bool,
    log_workers: str | None,
    tee: bool,
    verbose: bool,
    quiet: bool,
    no_live: bool,
    **flags: Any,
) -> int:
    """Train on this machine.

    CONFIG is a YAML file; without one the defaults train MNIST. Every key of it can be set with --set; the flags below
    are short for the most used ones. Flags win over --set, --set over the file, the file over the defaults.

    The batch size is global: with --workers 4 --batch-size 256 each worker takes 64 samples of every step, and the
    result is the one that a single process would compute.
    """
    level = verbosity(verbose, quiet)
    given = config
    if resume and config is None:
        from tfmp.agent.resume import settings_file

        folder = flags.get("flag_run_dir")
        config = settings_file(Path(folder) if folder else None)
    resolved = resolve_settings(config, sets, flags)
    from tfmp.commands import train as job

    options = job.TrainOptions(
        given,
        live=not no_live,
        verbosity=level,
        started_s=STARTED_S,
        resume=resume,
        drills=drills,
        tee=tee,
        log_workers=parse_ranks(log_workers, resolved.config.cluster.worker_count),
    )
    return job.dry_run(resolved, options) if dry_run else job.train(resolved, options)
