"""Options shared by several commands, and the flags that are shortcuts for configuration keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.config import Resolved

Function = Callable[..., Any]


@dataclass(frozen=True)
class KeyFlag:
    """A flag that sets a configuration key; its text is read like a YAML value."""

    name: str
    key: str
    metavar: str
    help: str

    @property
    def variable(self) -> str:
        """The name of its parameter."""
        return "flag_" + self.name.strip("-").replace("-", "_")


KEY_FLAGS = (
    KeyFlag("--workers", "cluster.workers", "N", "Number of worker processes on this machine.  [default: 1]"),
    KeyFlag(
        "--strategy",
        "cluster.strategy",
        "NAME",
        "multi-worker (processes) or mirrored (devices in one process).  [default: multi-worker]",
    ),
    KeyFlag(
        "--devices", "cluster.devices", "N", "Number of devices for --strategy mirrored  [default: all GPUs, or 1 CPU]"
    ),
    KeyFlag(
        "--collective",
        "cluster.collective",
        "NAME",
        "How to sum gradients: auto, shm, hierarchical, ring or nccl.  [default: auto]",
    ),
    KeyFlag("--epochs", "training.epochs", "N", "Number of passes over the training samples.  [default: 5]"),
    KeyFlag(
        "--batch-size",
        "training.batch_size",
        "N",
        "GLOBAL batch size: samples per step across all workers.  [default: 256]",
    ),
    KeyFlag("--steps-per-epoch", "training.steps_per_epoch", "N", "Steps per epoch  [default: every sample once]"),
    KeyFlag("--learning-rate", "training.learning_rate", "X", "Learning rate after warm-up.  [default: 0.008]"),
    KeyFlag("--seed", "training.seed", "N", "Seed for initial weights, sample order and dropout.  [default: 0]"),
    KeyFlag("--run-dir", "run.dir", "DIR", "Run folder  [default: runs/<date>-<time>-<name>]"),
    KeyFlag("--base-port", "cluster.base_port", "PORT", "Port of worker 0  [default: free ports]"),
    KeyFlag(
        "--start-timeout",
        "cluster.start_timeout_s",
        "SECONDS",
        "Time limit for all workers to become ready.  [default: 300]",
    ),
    KeyFlag(
        "--max-restarts",
        "run.max_restarts",
        "N",
        "How many times to restart all workers after a failure.  [default: 3]",
    ),
    KeyFlag(
        "--hang-timeout", "run.hang_timeout_s", "SECONDS", "Stop the workers after this long without a finished step."
    ),
    KeyFlag(
        "--grace-period", "run.grace_period_s", "SECONDS", "Time between the stop request and SIGKILL.  [default: 10]"
    ),
)


@dataclass(frozen=True)
class Settings:
    """The configuration as the command line gives it, not read yet.

    Attributes:
        config_file: The YAML file.
        sets: ``KEY=VALUE`` texts of ``--set``.
        flags: The text of each flag that was given.
    """

    config_file: Path | None
    sets: tuple[str, ...]
    flags: Mapping[KeyFlag, str]

    def with_flags(self, flags: Mapping[KeyFlag, object]) -> Settings:
        """Return the settings with more flags."""
        return replace(self, flags={**self.flags, **{flag: str(value) for flag, value in flags.items()}})

    def resolve(self, *, resume: bool = False) -> Resolved:
        """Merge defaults, file, ``--set`` and flags.

        Args:
            resume: Without a file, take the configuration of the run to resume.

        Raises:
            UsageError: See :func:`tfmp.config.resolve`; or there is no run folder to resume.
        """
        from tfmp.config import FlagValue, resolve

        file = self.config_file
        if resume and file is None:
            from tfmp.agent.resume import settings_file

            run_dir = next((text for flag, text in self.flags.items() if flag.key == "run.dir"), None)
            file = settings_file(Path(run_dir) if run_dir else None)
        return resolve(file, self.sets, [FlagValue(flag.key, flag.name, text) for flag, text in self.flags.items()])


def settings_options(*flags: KeyFlag) -> Callable[[Function], Function]:
    """Add CONFIG, ``--set`` and these flags; the command gets them as ``settings``, a :class:`Settings`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(config: Path | None, sets: tuple[str, ...], **options: Any) -> Any:
            texts = {flag: options.pop(flag.variable) for flag in flags}
            given = {flag: text for flag, text in texts.items() if text is not None}
            return function(settings=Settings(config, sets, given), **options)

        for flag in reversed(flags):
            call = click.option(flag.name, flag.variable, metavar=flag.metavar, help=flag.help)(call)
        return config_argument(set_option(call))

    return decorate


config_argument = click.argument("config", required=False, type=click.Path(path_type=Path))


def _complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from tfmp.config import schema_keys

    return [f"{key}=" for key in schema_keys() if key.startswith(incomplete)]


set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set any configuration key, such as training.optimizer=sgd. Repeatable.",
    shell_complete=_complete_key,
)
resume_option = click.option("--resume", is_flag=True, help="Resume the run in --run-dir, if there is one.")
no_live_option = click.option("--no-live", is_flag=True, help="Print plain lines instead of a live display.")
log_worker_option = click.option(
    "--log-worker",
    "log_workers",
    metavar="RANKS",
    help="Show output of these workers only, such as 0,2. Log files keep everything.",
)
#: Nothing but tracebacks depends on it: :mod:`tfmp.cli.app` looks for it on the command line.
traceback_option = click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show tracebacks.")


def output_options(function: Function) -> Function:
    """Add ``-v``, ``-q`` and ``--no-live``; the command gets ``verbosity`` (-1, 0 or 1) and ``no_live``."""

    @functools.wraps(function)
    def call(verbose: bool, quiet: bool, **options: Any) -> Any:
        if verbose and quiet:
            raise click.UsageError("expected at most one of -v and -q")
        return function(verbosity=1 if verbose else -1 if quiet else 0, **options)

    add_quiet = click.option("-q", "--quiet", is_flag=True, help="Show errors only.")
    add_verbose = click.option("-v", "--verbose", is_flag=True, help="Show all worker output, and tracebacks.")
    return add_verbose(add_quiet(no_live_option(call)))


def parse_ranks(text: str | None, workers: int) -> frozenset[int] | None:
    """Read ranks such as ``0,2``; ``None`` for all.

    Raises:
        UsageError: The text is not a list of ranks of these workers.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < workers for part in parts):
        raise UsageError(
            f"expected ranks from 0 to {workers - 1}, such as 0,1; received {text!r}", where="--log-worker"
        )
    return frozenset(map(int, parts))
