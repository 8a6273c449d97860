"""``tfmp launch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tfmp.cli.options import log_worker_option, parse_ranks, traceback_option

_EPILOG = """\b
Examples:
  tfmp launch -n 4 -- python my_script.py --epochs 3
  tfmp launch -n 2 --log-dir logs -- python -m my.module

\b
Exit codes: 0 if all copies succeed, otherwise the exit code of the copy that failed first
(128 + n for signal n), 127 command not found, 126 cannot be executed.
"""


@click.command("launch", epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("-n", "--workers", type=click.IntRange(1, 64), required=True, metavar="N", help="Number of copies.")
@click.option(
    "--base-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of worker 0  [default: free ports]"
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Save each worker's output as DIR/attempt-A/worker-I.log.",
)
@click.option(
    "--grace-period",
    "grace_period_s",
    type=click.FloatRange(0),
    default=10.0,
    metavar="SECONDS",
    show_default=True,
    help="Time between the stop request and SIGKILL.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    show_default=True,
    help="How many times to restart all copies after a failure (TFMP_ATTEMPT counts them).",
)
@log_worker_option
@click.option("-q", "--quiet", is_flag=True, help="Hide the output of the copies.")
@traceback_option
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(workers: int, log_workers: str | None, program: tuple[str, ...], **options: Any) -> int:
    """Run any program N times as one supervised cluster.

    Each copy of PROGRAM gets TF_CONFIG, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. If one copy fails,
    all are stopped.
    """
    from tfmp.commands.launch import LaunchOptions, launch

    ranks = parse_ranks(log_workers, workers)
    return launch(program, LaunchOptions(workers, log_workers=ranks, **options))
