"""``tfmp worker``."""

from __future__ import annotations

from typing import Any, get_args

import click

from tfmp.cli import STARTED_S
from tfmp.cli.options import KEY_FLAGS, KeyFlag, Settings, output_options, resume_option, settings_options
from tfmp.cluster.discovery.choose import Source

_EPILOG = """\b
Examples:
  tfmp worker --workers h0:2222,h1:2222 --index 0      on h0
  tfmp worker --workers h0:2222,h1:2222 --index 1      on h1
  tfmp worker cluster.yaml --index 0 --dry-run         the plan, and the command for each host
  srun -n 4 tfmp worker cluster.yaml                   Slurm: no addresses, no --index
  mpirun -n 2 --bind-to none tfmp worker               MPI on one host; on several: --rendezvous HOST:2222

\b
Exit codes: 0 success, 1 training failed or a worker is missing, 2 invalid usage or configuration,
or the workers disagree, 130 Ctrl-C, 143 SIGTERM, 138 another worker was lost. If another worker
fails, its exit code.
"""

_REPLACED = ("--workers", "--strategy", "--devices", "--base-port")
_FLAGS = (
    KeyFlag("--workers", "cluster.workers", "ADDRESSES", "HOST:PORT of every worker, comma-separated, in rank order."),
    KeyFlag("--rendezvous", "cluster.rendezvous", "HOST:PORT", "Address of worker 0, if the others are not known."),
    KeyFlag("--base-port", "cluster.base_port", "PORT", "Port under Slurm, MPI and Kubernetes  [default: chosen]"),
    *(flag for flag in KEY_FLAGS if flag.name not in _REPLACED),
)


@click.command("worker", epilog=_EPILOG)
@settings_options(*_FLAGS)
@click.option("--index", metavar="I", help="Rank of this worker  [default: the one with this host's name]")
@click.option(
    "--cluster",
    "source",
    type=click.Choice(get_args(Source)),
    default="auto",
    show_default=True,
    help="Where to find the description of the cluster.",
)
@resume_option
@click.option(
    "--dry-run", is_flag=True, help="Print settings, plan and the command for each host without starting anything."
)
@output_options
def command(
    settings: Settings,
    index: str | None,
    source: Any,
    resume: bool,
    dry_run: bool,
    verbosity: int,
    no_live: bool,
) -> int:
    """Run one worker of a multi-host cluster.

    Start it on every host, in any order, with the same configuration. The workers connect to worker 0, compare
    versions and settings, and start together. Until then, each reports which workers are missing and why. If a worker
    fails or is lost, all stop and name it.

    The addresses come from --workers or cluster.workers (--index then says which worker this is), or from TF_CONFIG,
    MPI, Slurm or Kubernetes. Without --index, a host takes the address that has its name. The run folder is written on
    worker 0's host; other hosts keep their logs.

    With --resume, the same command starts a run, resumes it after an interruption, and reports when it is finished.
    Use it with schedulers and container engines that restart workers. The run folder must be shared.
    """
    resolved = settings.resolve(resume=resume)
    from tfmp.agent.options import TrainOptions
    from tfmp.commands import worker as job
    from tfmp.commands.worker_setup import WorkerOptions

    common = TrainOptions(
        settings.config_file, live=not no_live, verbosity=verbosity, started_s=STARTED_S, resume=resume
    )
    options = WorkerOptions(index, source, _arguments(settings, source, resume), common)
    return job.dry_run(resolved, options) if dry_run else job.worker(resolved, options)


def _arguments(settings: Settings, source: str, resume: bool) -> list[str]:
    """The arguments for every host: without --index, the secret, and options that concern this call only."""
    words = [str(settings.config_file)] if settings.config_file is not None else []
    words += [word for flag, text in settings.flags.items() for word in (flag.name, text)]
    for text in settings.sets:
        is_secret = text.partition("=")[0].strip() == "cluster.token"
        words += ["--set", "cluster.token=..." if is_secret else text]
    return words + (["--cluster", source] if source != "auto" else []) + (["--resume"] if resume else [])
