"""``tfmp train``."""

from __future__ import annotations

import click

from tfmp.cli import STARTED_S
from tfmp.cli.options import (
    KEY_FLAGS,
    Settings,
    log_worker_option,
    output_options,
    parse_ranks,
    resume_option,
    settings_options,
)

_EPILOG = """\b
Examples:
  tfmp train --workers 4
  tfmp train configs/mnist-2-workers.yaml --epochs 1
  tfmp train --workers 2 --set training.optimizer=sgd --set training.schedule=constant
  tfmp train --strategy mirrored --devices 2
  tfmp train --workers 3 --batch-size 64 --dry-run
  tfmp train --resume --run-dir runs/20260101-120000-mnist
  tfmp train --workers 3 --inject-fault kill:2@step=50

\b
Exit codes: 0 success, 1 training failed, 2 invalid usage or configuration, 130 Ctrl-C,
143 SIGTERM. If a worker dies, its own exit code (128 + n for signal n).
"""


@click.command("train", epilog=_EPILOG)
@settings_options(*KEY_FLAGS)
@resume_option
@click.option(
    "--inject-fault",
    "faults",
    multiple=True,
    metavar="FAULT",
    help="Inject a fault, such as kill:2@step=50. Repeatable.",
)
@click.option("--drill", "drills", multiple=True, hidden=True, help="The former name of --inject-fault.")
@click.option("--dry-run", is_flag=True, help="Print settings and plan without starting anything.")
@log_worker_option
@click.option("--tee", is_flag=True, help="Show every line that workers print, exactly as logged.")
@output_options
def command(
    settings: Settings,
    resume: bool,
    faults: tuple[str, ...],
    drills: tuple[str, ...],
    dry_run: bool,
    log_workers: str | None,
    tee: bool,
    verbosity: int,
    no_live: bool,
) -> int:
    """Train on this machine.

    CONFIG is a YAML file; without it, the defaults train MNIST. --set can change any key, and the flags below are
    shortcuts for the most common ones. Flags override --set, and --set overrides the file.

    The batch size is global: with --workers 4 --batch-size 256, each worker processes 64 samples per step. The result
    is the same as with a single process.
    """
    resolved = settings.resolve(resume=resume)
    from tfmp.commands import train as job

    options = job.TrainOptions(
        settings.config_file,
        live=not no_live,
        verbosity=verbosity,
        started_s=STARTED_S,
        resume=resume,
        faults=faults + drills,
        tee=tee,
        log_workers=parse_ranks(log_workers, resolved.config.cluster.worker_count),
    )
    return job.dry_run(resolved, options) if dry_run else job.train(resolved, options)
