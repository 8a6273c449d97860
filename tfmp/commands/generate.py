"""``tfmp generate``: deployment files for a configuration."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tfmp.config import FlagValue, resolve
from tfmp.deploy.deployment import DEFAULT_CPUS, DEFAULT_IMAGE, DEFAULT_MEMORY_GIB, DataFile, Deployment
from tfmp.deploy.files import addresses, compose, kubernetes, slurm
from tfmp.errors import EXIT_OK, UsageError
from tfmp.rundir.claim import run_name
from tfmp.text import eprint

if TYPE_CHECKING:
    from tfmp.config import RunConfig

Target = Literal["compose", "slurm", "kubernetes"]
STDOUT = "-"

_MAKERS: dict[str, tuple[Callable[[Deployment, str], str], str]] = {
    "compose": (compose, "compose.yaml"),
    "slurm": (slurm, "job.sbatch"),
    "kubernetes": (kubernetes, "kubernetes.yaml"),
}
_DATA_KEYS = ("train_images", "train_labels", "validation_images", "validation_labels", "path")
_ANYONE_MAY_READ = 0o004


@dataclass(frozen=True)
class GenerateOptions:
    """What the command line asks for.

    Attributes:
        target: The kind of file.
        workers: Number of workers.
        config_file: The configuration file, if one was given.
        sets: ``KEY=VALUE`` texts.
        output: The file to write; ``-`` for standard output; ``None`` for the default name.
        force: Overwrite an existing file.
        image: Name of the image.
        build: Directory to build it from (Compose only).
        cpus: CPUs of each worker.
        memory_gib: Memory of each worker.
    """

    target: Target
    workers: int
    config_file: Path | None
    sets: tuple[str, ...]
    output: str | None
    force: bool
    image: str
    build: Path | None
    cpus: int
    memory_gib: float

    @property
    def command(self) -> str:
        """The command line, as quoted in the file."""
        words = ["tfmp", "generate", self.target, *([str(self.config_file)] if self.config_file else [])]
        words += ["--workers", str(self.workers)]
        words += [word for text in self.sets for word in ("--set", text)]
        given = {
            "--image": (self.image, DEFAULT_IMAGE),
            "--build": (self.build, None),
            "--cpus": (self.cpus, DEFAULT_CPUS),
            "--memory": (f"{self.memory_gib:g}", f"{DEFAULT_MEMORY_GIB:g}"),
            "--output": (self.output, None),
        }
        words += [word for name, (value, default) in given.items() if value != default for word in (name, str(value))]
        return shlex.join(words)


def generate(options: GenerateOptions) -> int:
    """Write the file and return the exit code.

    Raises:
        UsageError: The settings are invalid or do not suit the target, or the file exists.
    """
    make, default_name = _MAKERS[options.target]
    output = options.output or default_name
    folder = Path.cwd() if output == STDOUT else Path(output).absolute().parent
    config = _settings(options)
    _check(options, config)
    text = make(_deployment(options, config, folder), default_name if output == STDOUT else output)
    for warning in _warnings(options):
        eprint(f"warning: {warning}")
    if output == STDOUT:
        print(text, end="")
        return EXIT_OK
    _write(Path(output), text, force=options.force)
    print(f"wrote {output}; the comment at the top explains how to start it")
    return EXIT_OK


def _settings(options: GenerateOptions) -> RunConfig:
    """Read the settings as the workers will, to report errors now."""
    workers = str(options.workers) if options.target != "compose" else addresses(options.workers)
    flag = FlagValue("cluster.workers", "--workers", workers)
    return resolve(options.config_file, options.sets, [flag]).config


def _check(options: GenerateOptions, config: RunConfig) -> None:
    if not config.cluster.is_multi_process:
        raise UsageError(
            f"expected multi-worker, received {config.cluster.strategy}, which runs in one process",
            where="cluster.strategy",
            hint="remove cluster.strategy; each worker uses all GPUs it is given",
        )
    if any(text.partition("=")[0].strip() == "cluster.token" for text in options.sets):
        raise UsageError(
            "a secret must not be on a command line that is written to a file",
            where="--set cluster.token",
            hint="put cluster.token in the configuration file and make it readable only by you",
        )
    if options.target == "kubernetes" and config.cluster.token is not None:
        raise UsageError(
            "a secret must not be in a ConfigMap, which is not encrypted",
            where="cluster.token",
            hint="remove it: the NetworkPolicy already keeps others out",
        )
    if options.build is not None:
        if options.target != "compose":
            raise UsageError("only Compose files can build the image", where="--build", hint="remove --build")
        if not (options.build / "docker" / "Dockerfile").is_file():
            raise UsageError(
                "expected a directory with docker/Dockerfile",
                where=f"--build {options.build}",
                hint="give tfmp's source directory, or build the image first and name it with --image",
            )


def _deployment(options: GenerateOptions, config: RunConfig, folder: Path) -> Deployment:
    file = options.config_file
    values = ((key, getattr(config.data, key)) for key in _DATA_KEYS)
    own_code = [reference for reference in (config.model.factory, *config.training.callbacks) if reference]
    return Deployment(
        name=run_name(config.run.name, file, config.data.name),
        workers=options.workers,
        made_by=options.command,
        config=_seen_from(folder, file, absolute=options.target == "slurm"),
        config_text=None if file is None else file.read_text(encoding="utf-8"),
        sets=options.sets,
        data=tuple(DataFile(f"data.{key}", str(path)) for key, path in values if path is not None),
        own_code=tuple(own_code),
        run_dir=None if config.run.dir is None else str(config.run.dir),
        cpus=options.cpus,
        memory_gib=options.memory_gib,
        max_restarts=config.run.max_restarts,
        grace_period_s=config.run.grace_period_s,
        image=options.image,
        build=_seen_from(folder, options.build),
    )


def _seen_from(folder: Path, path: Path | None, *, absolute: bool = False) -> str | None:
    """A path relative to ``folder``, or absolute."""
    if path is None:
        return None
    return os.path.normpath(path.absolute()) if absolute else os.path.relpath(path.absolute(), folder)


def _warnings(options: GenerateOptions) -> list[str]:
    file = options.config_file
    if options.target == "compose" and file is not None and not file.stat().st_mode & _ANYONE_MAY_READ:
        return [f"the container's user cannot read {file}: run chmod o+r {file}"]
    return []


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            "the file already exists",
            where=str(path),
            hint="use --force to overwrite it, or --output to choose another",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write the file: {error.strerror}", where=str(path)) from error
