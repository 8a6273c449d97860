"""``tfmp generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tfmp.cli.options import config_argument, set_option, traceback_option
from tfmp.deploy.deployment import DEFAULT_CPUS, DEFAULT_IMAGE, DEFAULT_MEMORY_GIB

_EPILOG = """\b
Examples:
  tfmp generate compose configs/mnist.yaml --workers 4 --build .
  tfmp generate slurm my.yaml --workers 8 --cpus 4 --memory 8
  tfmp generate kubernetes my.yaml --workers 4 --image my-images/tfmp:1 --output -
"""


@click.command("generate", epilog=_EPILOG)
@click.argument("target", type=click.Choice(["compose", "slurm", "kubernetes"]))
@config_argument
@click.option("--workers", type=click.IntRange(1, 64), required=True, metavar="N", help="Number of workers.")
@set_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Output file, or - for standard output  [default: compose.yaml, job.sbatch or kubernetes.yaml]",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "--image", default=DEFAULT_IMAGE, show_default=True, metavar="NAME", help="Image to run (compose, kubernetes)."
)
@click.option(
    "--build",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Build the image from this directory, which contains docker/Dockerfile (compose).",
)
@click.option(
    "--cpus", type=click.IntRange(1), default=DEFAULT_CPUS, show_default=True, metavar="N", help="CPUs per worker."
)
@click.option(
    "--memory",
    "memory_gib",
    type=click.FloatRange(0.25),
    default=DEFAULT_MEMORY_GIB,
    show_default=True,
    metavar="GIB",
    help="Memory per worker.",
)
@traceback_option
def command(target: Any, config: Path | None, **options: Any) -> int:
    """Generate deployment files for Compose, Slurm or Kubernetes.

    compose: a service per worker (Compose v2, docker-compose 1.29). slurm: a batch script. kubernetes: an Indexed Job
    with a headless Service, a NetworkPolicy, a volume claim and the configuration. The comment at the top of each file
    explains how to start it.
    """
    from tfmp.commands.generate import GenerateOptions, generate

    return generate(GenerateOptions(target=target, config_file=config, **options))
