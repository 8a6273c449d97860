"""``tfmp worker``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tfmp.cli import STARTED_S
from tfmp.cli.options import KEY_FLAGS, KeyFlag, output_options, resolve_settings, run_options, verbosity

_EPILOG = """\b
Examples:
  tfmp worker --workers h0:2222,h1:2222 --index 0      on h0
  tfmp worker --workers h0:2222,h1:2222 --index 1      on h1
  tfmp worker cluster.yaml --index 0 --dry-run         the plan, and the command for each host
  srun -n 4 tfmp worker cluster.yaml                   Slurm: no addresses, no --index
  mpirun -n 2 --bind-to none tfmp worker               MPI on one host; on several: --rendezvous HOST:2222

\b
Exit codes: 0 done, 1 training failed or a worker is missing, 2 wrong usage, configuration or
disagreement, 130 Ctrl-C, 143 SIGTERM, 138 another worker was lost. Where another worker failed
by itself, its exit code.
"""

_HERE = ("--workers", "--strategy", "--devices", "--base-port")
_FLAGS = (
    KeyFlag(
        "--workers",
        "cluster.workers",
        "ADDRESSES",
        "HOST:PORT of each worker, separated by commas, the same everywhere.",
    ),
    KeyFlag("--rendezvous", "cluster.rendezvous", "HOST:PORT", "Address of worker 0, where the others' are not known."),
    KeyFlag("--base-port", "cluster.base_port", "PORT", "Port under Slurm, MPI and Kubernetes  [default: chosen]"),
    *(flag for flag in KEY_FLAGS if flag.name not in _HERE),
)
_SOURCES = ("auto", "slurm", "kubernetes", "mpi", "tf-config", "manual")
_STARTS_WITH_IPV6 = re.compile(r"\s*\[[^\],]*\]:")


def _options(command: Any) -> Any:
    return run_options(command, _FLAGS)


@click.command("worker", epilog=_EPILOG)
@_options
@click.option(
    "--index", metavar="I", help="Which of the workers this is, from 0  [default: the one with this host's name]"
)
@click.option("--hosts", hidden=True, help="The same as --workers.")
@click.option(
    "--cluster",
    "source",
    type=click.Choice(_SOURCES),
    default="auto",
    show_default=True,
    help="Where the cluster is described.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir, if it holds one.")
@click.option("--dry-run", is_flag=True, help="Print settings, plan and the command for each host; start nothing.")
@output_options
def command(
    config: Path | None,
    sets: tuple[str, ...],
    index: str | None,
    hosts: str | None,
    source: Any,
    resume: bool,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    no_live: bool,
    **flags: Any,
) -> int:
    """Be one worker of a cluster of several hosts.

    Start it on every host, in any order, with the same configuration. The workers meet at the address of worker 0,
    compare versions and settings, and start together; until then each tells who is missing and why. One that fails or
    is lost ends all, by name.

    The addresses come from --workers or cluster.workers (then --index says which one this is), or from TF_CONFIG, MPI,
    Slurm or Kubernetes. Worker 0's host gets the run folder, the others their logs. Without --index, a host whose name
    stands in one address of the list takes that one.

    With --resume the same command line starts a run, goes on with it after an interruption, and says so when it is
    done: what a scheduler or container engine that restarts all workers needs. The run folder must be shared.
    """
    level = verbosity(verbose, quiet)
    if hosts is not None:
        if flags["flag_workers"] is not None:
            raise click.UsageError("expected at most one of --workers and --hosts, which mean the same")
        flags["flag_workers"] = hosts
    arguments = _retyped(config, sets, source, resume, flags)
    given = config
    if resume and config is None:
        from tfmp.agent.resume import settings_file

        folder = flags.get("flag_run_dir")
        config = settings_file(Path(folder) if folder else None)
    if flags["flag_workers"] is not None and _STARTS_WITH_IPV6.match(flags["flag_workers"]):
        flags["flag_workers"] = [part.strip() for part in flags["flag_workers"].split(",")]
    resolved = resolve_settings(config, sets, flags, _FLAGS)
    from tfmp.agent.options import TrainOptions
    from tfmp.commands import worker as job

    common = TrainOptions(given, live=not no_live, verbosity=level, started_s=STARTED_S, resume=resume)
    options = job.WorkerOptions(index, source, arguments, common)
    return job.dry_run(resolved, options) if dry_run else job.worker(resolved, options)


def _retyped(
    config: Path | None, sets: tuple[str, ...], source: str, resume: bool, flags: Mapping[str, Any]
) -> list[str]:
    """The command line again, as every host needs it: without --index, and without what concerns this call only."""
    words = [str(config)] if config is not None else []
    for name, key in ((flag.name, "flag_" + flag.name.strip("-").replace("-", "_")) for flag in _FLAGS):
        if flags.get(key) is not None:
            words += [name, str(flags[key])]
    for text in sets:
        words += ["--set", "cluster.token=..." if text.partition("=")[0].strip() == "cluster.token" else text]
    return words + (["--cluster", source] if source != "auto" else []) + (["--resume"] if resume else [])
