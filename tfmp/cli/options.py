"""Options that several commands share, and the flags that are short for configuration keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.config import Resolved

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class KeyFlag:
    """A flag that sets a configuration key; its text is read by the rules of a YAML value."""

    name: str
    key: str
    metavar: str
    help: str


KEY_FLAGS = (
    KeyFlag("--workers", "cluster.workers", "N", "Worker processes on this machine."),
    KeyFlag("--strategy", "cluster.strategy", "NAME", "multi-worker (processes) or mirrored (devices of one process)."),
    KeyFlag("--devices", "cluster.devices", "N", "Devices of --strategy mirrored."),
    KeyFlag(
        "--collective", "cluster.collective", "NAME", "How gradients are summed: auto, shm, hierarchical, ring or nccl."
    ),
    KeyFlag("--epochs", "training.epochs", "N", "Passes over the training samples."),
    KeyFlag("--batch-size", "training.batch_size", "N", "GLOBAL batch: samples of one step over all workers."),
    KeyFlag("--steps-per-epoch", "training.steps_per_epoch", "N", "Steps of one epoch, instead of all samples once."),
    KeyFlag("--learning-rate", "training.learning_rate", "X", "Learning rate after the warm-up."),
    KeyFlag("--seed", "training.seed", "N", "Seed of initial weights, sample order and dropout."),
    KeyFlag("--run-dir", "run.dir", "DIR", "Run folder  [default: runs/<date>-<time>-<name>]"),
    KeyFlag("--base-port", "cluster.base_port", "PORT", "Port of worker 0  [default: free ports]"),
    KeyFlag("--start-timeout", "cluster.start_timeout_s", "SECONDS", "In which every worker must be ready."),
    KeyFlag("--max-restarts", "run.max_restarts", "N", "How often all workers start again after a failure."),
    KeyFlag(
        "--hang-timeout", "run.hang_timeout_s", "SECONDS", "Without a finished step, until the workers are stopped."
    ),
    KeyFlag("--grace-period", "run.grace_period_s", "SECONDS", "From the request to stop to SIGKILL."),
)


def run_options(command: Command, flags: Sequence[KeyFlag] = KEY_FLAGS) -> Command:
    """Add CONFIG, ``--set`` and the flags for configuration keys."""
    for flag in reversed(flags):
        command = click.option(flag.name, _variable(flag), metavar=flag.metavar, help=flag.help)(command)
    command = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set any configuration key, such as training.optimizer=sgd. Repeatable.",
        shell_complete=_complete_key,
    )(command)
    return click.argument("config", required=False, type=click.Path(path_type=Path))(command)


def output_options(command: Command) -> Command:
    """Add ``-v``, ``-q`` and ``--no-live``."""
    command = click.option("--no-live", is_flag=True, help="Plain lines instead of a live display.")(command)
    command = click.option("-q", "--quiet", is_flag=True, help="Errors only.")(command)
    return click.option("-v", "--verbose", is_flag=True, help="Everything the workers print; tracebacks.")(command)


def log_worker_option(command: Command) -> Command:
    """Add ``--log-worker``, to be read by :func:`parse_ranks`."""
    return click.option(
        "--log-worker",
        "log_workers",
        metavar="RANKS",
        help="Show the lines of these workers only, as 0,2; the logs have all.",
    )(command)


def parse_ranks(text: str | None, workers: int) -> frozenset[int] | None:
    """The ranks in ``0,2``; ``None`` for all.

    Raises:
        UsageError: It is no list of ranks, or one is no worker's.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < workers for part in parts):
        raise UsageError(f"expected ranks from 0 to {workers - 1}, as 0,1; received {text!r}", where="--log-worker")
    return frozenset(map(int, parts))


def resolve_settings(
    config: Path | None, sets: tuple[str, ...], flags: Mapping[str, Any], known: Sequence[KeyFlag] = KEY_FLAGS
) -> Resolved:
    """Merge defaults, file, ``--set`` and flags.

    Args:
        config: The YAML file.
        sets: ``KEY=VALUE`` texts.
        flags: Values of the options that :func:`run_options` added, by variable name.
        known: The flags that it was given.

    Raises:
        UsageError: See :func:`tfmp.config.resolve`.
    """
    from tfmp.config import FlagValue, resolve

    given = [FlagValue(flag.key, flag.name, flags.get(_variable(flag))) for flag in known]
    return resolve(config, sets, given)


def verbosity(verbose: bool, quiet: bool) -> int:
    """-1, 0 or 1.

    Raises:
        click.UsageError: Both were given.
    """
    if verbose and quiet:
        raise click.UsageError("expected at most one of -v and -q")
    return 1 if verbose else -1 if quiet else 0


def _variable(flag: KeyFlag) -> str:
    return "flag_" + flag.name.strip("-").replace("-", "_")


def _complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from tfmp.config import schema_keys

    return [f"{key}=" for key in schema_keys() if key.startswith(incomplete)]
