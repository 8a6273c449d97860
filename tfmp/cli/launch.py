"""``tfmp launch``."""

from __future__ import annotations

from pathlib import Path

import click

from tfmp.cli.options import log_worker_option, parse_ranks

_EPILOG = """\b
Examples:
  tfmp launch -n 4 -- python my_script.py --epochs 3
  tfmp launch -n 2 --log-dir logs -- python -m my.module

\b
Exit codes: 0 when all ended well; otherwise the code of the worker that failed first,
128 + n for death by signal n, 127 command not found, 126 cannot be executed.
"""


@click.command("launch", epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("-n", "--workers", type=click.IntRange(1, 64), required=True, metavar="N", help="Number of workers.")
@click.option(
    "--base-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of worker 0  [default: free ports]"
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep each worker's output there, as attempt-A/worker-I.log.",
)
@click.option(
    "--grace-period",
    "grace_period_s",
    type=click.FloatRange(0),
    default=10.0,
    metavar="SECONDS",
    show_default=True,
    help="From the request to stop to SIGKILL.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    show_default=True,
    help="How often all copies start again after a failure (TFMP_ATTEMPT tells them).",
)
@log_worker_option
@click.option("-q", "--quiet", is_flag=True, help="Do not show what the workers print.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of tfmp itself.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    workers: int,
    base_port: int | None,
    log_dir: Path | None,
    grace_period_s: float,
    max_restarts: int,
    log_workers: str | None,
    quiet: bool,
    verbose: bool,
    program: tuple[str, ...],
) -> int:
    """Run any PROGRAM N times on this machine as one supervised cluster.

    Every copy gets TF_CONFIG, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. One that fails ends all.
    """
    from tfmp.commands.launch import LaunchOptions, launch

    options = LaunchOptions(
        workers=workers,
        base_port=base_port,
        log_dir=log_dir,
        grace_period_s=grace_period_s,
        max_restarts=max_restarts,
        log_workers=parse_ranks(log_workers, workers),
        quiet=quiet,
    )
    return launch(program, options)
