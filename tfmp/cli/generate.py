"""``tfmp generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tfmp.deploy.deployment import DEFAULT_CPUS, DEFAULT_IMAGE, DEFAULT_MEMORY_GIB

_EPILOG = """\b
Examples:
  tfmp generate compose configs/mnist.yaml --workers 4 --build .
  tfmp generate slurm my.yaml --workers 8 --cpus 4 --memory 8
  tfmp generate kubernetes my.yaml --workers 4 --image my-images/tfmp:1 --output -
"""


@click.command("generate", epilog=_EPILOG)
@click.argument("target", type=click.Choice(["compose", "slurm", "kubernetes"]))
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(1, 64), required=True, metavar="N", help="Number of workers.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any configuration key. Repeatable.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="File to write, - for standard output  [default: compose.yaml, job.sbatch or kubernetes.yaml]",
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option("--image", default=DEFAULT_IMAGE, show_default=True, metavar="NAME", help="Image (compose, kubernetes).")
@click.option(
    "--build",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Let Compose build the image from this folder, which holds docker/Dockerfile.",
)
@click.option(
    "--cpus", type=click.IntRange(1), default=DEFAULT_CPUS, show_default=True, metavar="N", help="CPUs of each worker."
)
@click.option(
    "--memory",
    "memory_gib",
    type=click.FloatRange(0.25),
    default=DEFAULT_MEMORY_GIB,
    show_default=True,
    metavar="GIB",
    help="Memory of each worker.",
)
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks.")
def command(
    target: Any,
    config: Path | None,
    workers: int,
    sets: tuple[str, ...],
    output: str | None,
    force: bool,
    image: str,
    build: Path | None,
    cpus: int,
    memory_gib: float,
    verbose: bool,
) -> int:
    """Write the deployment file of a configuration.

    compose: one service a worker (Compose v2, docker-compose 1.29). slurm: a batch script. kubernetes: an Indexed Job
    with headless Service, NetworkPolicy, volume claim and configuration. The heading of each says how to start it.
    """
    from tfmp.commands.generate import GenerateOptions, generate

    del verbose  # read where errors leave the program
    options = GenerateOptions(
        target=target,
        workers=workers,
        config_file=config,
        sets=sets,
        output=output,
        force=force,
        image=image,
        build=build,
        cpus=cpus,
        memory_gib=memory_gib,
    )
    return generate(options)
