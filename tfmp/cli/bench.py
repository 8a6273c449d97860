"""``tfmp bench``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfmp.cli.options import KEY_FLAGS, KeyFlag, resolve_settings, run_options
from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.config import Resolved

_EPILOG = """\b
Examples:
  tfmp bench                              this machine, MNIST: minutes
  tfmp bench --quick                      about a minute
  tfmp bench --workers 1,2,4 --batch-size 32,256,2048
  tfmp bench configs/mnist.yaml --collective shm --rounds 5 --output runs/bench

\b
Exit codes: 0 done, 1 a run failed, 2 wrong usage or configuration, 130 Ctrl-C
(what was measured until then is shown and kept).
"""

_MOST_WORKERS = 64
_COLLECTIVES = ("auto", "shm", "ring", "nccl")
#: The flags that stay what they are in ``tfmp train``.
_KEPT = tuple(flag for flag in KEY_FLAGS if flag.key in ("training.epochs", "training.learning_rate", "training.seed"))
#: Those that each layout sets for itself.
_PER_LAYOUT = tuple(flag for flag in KEY_FLAGS if flag.name in ("--workers", "--batch-size", "--collective"))


def _options(command: Any) -> Any:
    return run_options(command, _KEPT)


@click.command("bench", epilog=_EPILOG)
@_options
@click.option("--workers", metavar="LIST", help="Numbers of workers  [default: 1,2,4,… up to the cores]")
@click.option("--batch-size", "batch_sizes", metavar="LIST", help="GLOBAL batch sizes  [default: 32,256,2048]")
@click.option(
    "--collective",
    "collectives",
    metavar="LIST",
    help="Collectives to compare; the first is the one of all other figures  [default: shm,ring]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=3,
    metavar="N",
    show_default=True,
    help="How often everything is run, in turn.",
)
@click.option(
    "--target-accuracy",
    type=click.FloatRange(0, 1),
    default=0.975,
    metavar="X",
    show_default=True,
    help="val_accuracy to which the seconds from Enter are taken.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for bench.json and bench.png  [default: runs/<date>-<time>-bench]",
)
@click.option(
    "--quick",
    is_flag=True,
    help="About a minute: 1 worker and one a core, batch 256, 3 epochs, no ring, no weak scaling; lists given win.",
)
@click.option("--no-live", is_flag=True, help="Plain lines instead of a live display.")
@click.option("-q", "--quiet", is_flag=True, help="The result only, no progress.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks.")
def command(
    config: Path | None,
    sets: tuple[str, ...],
    workers: str | None,
    batch_sizes: str | None,
    collectives: str | None,
    rounds: int,
    target_accuracy: float,
    output: Path | None,
    quick: bool,
    no_live: bool,
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> int:
    """Measure how training scales on this machine.

    Runs `tfmp train` with every number of workers, batch size and collective, in rounds, so that what disturbs the
    machine disturbs all alike. Reports throughput with its spread, strong and weak scaling efficiency, where the time
    of a step goes, the collectives side by side, and the seconds from Enter to the first step and to an accuracy, as
    tables, JSON and a plot. Calls no winner inside the noise, and ends in a sentence of advice.

    CONFIG and --set are those of tfmp train; at most 5 of its epochs are run unless --epochs says otherwise.
    """
    del verbose  # read by the program's error handling
    from tfmp.commands import bench as job

    options = job.BenchOptions(
        workers=parse_numbers(workers, "--workers", most=_MOST_WORKERS),
        batch_sizes=parse_numbers(batch_sizes, "--batch-size"),
        collectives=parse_words(collectives, "--collective", _COLLECTIVES),
        rounds=rounds,
        target_accuracy=target_accuracy,
        output=output,
        quick=quick,
        live=not no_live,
        quiet=quiet,
    )

    def resolve(given: Mapping[str, object]) -> Resolved:
        own = {_variable(flag): str(given[flag.name]) for flag in _PER_LAYOUT if flag.name in given}
        return resolve_settings(config, sets, {**flags, **own}, (*_KEPT, *_PER_LAYOUT))

    return job.bench(resolve, options)


def parse_numbers(text: str | None, option: str, most: int | None = None) -> tuple[int, ...] | None:
    """The whole numbers in ``1,2,4``, ascending; ``None`` for ``None``.

    Raises:
        UsageError: It is no such list, a number is below 1 or above ``most``, or stands there twice.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    bound = "" if most is None else f" up to {most}"
    for part in parts:
        if not (part.isascii() and part.isdecimal() and int(part) >= 1 and (most is None or int(part) <= most)):
            raise UsageError(
                f"expected whole numbers from 1{bound}, separated by commas, received {part!r} in {text!r}",
                where=option,
                hint=f"{option} 1,2" if most else f"{option} 32,256",
            )
    numbers = [int(part) for part in parts]
    _refuse_twice(numbers, option)
    return tuple(sorted(numbers))


def parse_words(text: str | None, option: str, known: tuple[str, ...]) -> tuple[str, ...] | None:
    """The words in ``shm,ring``, in that order; ``None`` for ``None``.

    Raises:
        UsageError: A word is not ``known``, or stands there twice.
    """
    if text is None:
        return None
    words = [part.strip() for part in text.split(",")]
    for word in words:
        if word not in known:
            raise UsageError(
                f"expected some of {', '.join(known)}, separated by commas, received {word!r} in {text!r}",
                where=option,
                hint=f"{option} shm,ring",
            )
    _refuse_twice(words, option)
    return tuple(words)


def _refuse_twice(values: list[Any], option: str) -> None:
    twice = next((one for one in values if values.count(one) > 1), None)
    if twice is not None:
        raise UsageError(f"expected each value once, received {twice} twice", where=option)


def _variable(flag: KeyFlag) -> str:
    return "flag_" + flag.name.strip("-").replace("-", "_")
