"""``tfmp doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tfmp.cli.options import KeyFlag, resolve_settings, run_options

_EPILOG = """\b
Examples:
  tfmp doctor
  tfmp doctor cluster.yaml
  tfmp doctor --workers h0:2222,h1:2222
  tfmp doctor --quick --quiet

\b
Exit codes: 0 nothing stands in the way, 1 something does, 2 wrong usage or configuration.
"""

_FLAGS = (
    KeyFlag("--workers", "cluster.workers", "ADDRESSES", "HOST:PORT of each worker, separated by commas."),
    KeyFlag("--run-dir", "run.dir", "DIR", "Run folder to be looked at."),
)


def _options(command: Any) -> Any:
    return run_options(command, _FLAGS)


@click.command("doctor", epilog=_EPILOG)
@_options
@click.option("--quick", is_flag=True, help="Only what takes less than half a second: no TensorFlow, no other host.")
@click.option("-q", "--quiet", is_flag=True, help="Only what is not well.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks.")
def command(config: Path | None, sets: tuple[str, ...], quick: bool, quiet: bool, verbose: bool, **flags: Any) -> int:
    """Look whether this machine can train, and reach the others of its cluster.

    A line each for versions, cores, memory, shared memory, GPUs, ports, folders, proxies, running workers, TensorFlow
    and, where CONFIG or --workers names addresses, for each worker: ok, warn or fail, and what to do. It fails where a
    running worker is stopped, too: with --quick it is the health check of the container image.
    """
    resolved = resolve_settings(config, sets, flags, _FLAGS)
    from tfmp.commands.doctor.checkup import DoctorOptions, doctor

    del verbose  # read where errors leave the program
    return doctor(resolved.config, DoctorOptions(quick=quick, quiet=quiet))
