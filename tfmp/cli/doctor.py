"""``tfmp doctor``."""

from __future__ import annotations

import click

from tfmp.cli.options import KeyFlag, Settings, settings_options, traceback_option

_EPILOG = """\b
Examples:
  tfmp doctor
  tfmp doctor cluster.yaml
  tfmp doctor --workers h0:2222,h1:2222
  tfmp doctor --quick --quiet

\b
Exit codes: 0 no problem found, 1 a check failed, 2 invalid usage or configuration.
"""


@click.command("doctor", epilog=_EPILOG)
@settings_options(
    KeyFlag("--workers", "cluster.workers", "ADDRESSES", "HOST:PORT of every worker, comma-separated."),
    KeyFlag("--run-dir", "run.dir", "DIR", "Run folder to check."),
)
@click.option("--quick", is_flag=True, help="Run only checks that take milliseconds: no TensorFlow, no other hosts.")
@click.option("-q", "--quiet", is_flag=True, help="Show problems only.")
@traceback_option
def command(settings: Settings, quick: bool, quiet: bool) -> int:
    """Check this machine and its connection to the cluster.

    Checks versions, cores, memory, shared memory, GPUs, ports, folders, proxies, running workers and TensorFlow. If
    CONFIG or --workers names addresses, checks each worker too. Prints one line per check (ok, warn or fail) and how
    to fix problems. A running worker that is stopped is a failure: with --quick, this is the health check of the
    container image.
    """
    resolved = settings.resolve()
    from tfmp.commands.doctor.checkup import DoctorOptions, doctor

    return doctor(resolved.config, DoctorOptions(quick=quick, quiet=quiet))
