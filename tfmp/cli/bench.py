"""``tfmp bench``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfmp.cli.options import KEY_FLAGS, Settings, no_live_option, settings_options, traceback_option
from tfmp.cli.types import numbers, words

if TYPE_CHECKING:
    from tfmp.config import Resolved

_EPILOG = """\b
Examples:
  tfmp bench                              this machine, MNIST: a few minutes
  tfmp bench --quick                      about a minute
  tfmp bench --workers 1,2,4 --batch-size 32,256,2048
  tfmp bench configs/mnist.yaml --collective shm --rounds 5 --output runs/bench

\b
Exit codes: 0 success, 1 a run failed, 2 invalid usage or configuration, 130 Ctrl-C
(results so far are shown and kept).
"""

#: The flags that mean what they mean in ``tfmp train``.
_FLAGS = [flag for flag in KEY_FLAGS if flag.name in ("--epochs", "--learning-rate", "--seed")]
#: Set for each layout.
_PER_LAYOUT = {flag.name: flag for flag in KEY_FLAGS if flag.name in ("--workers", "--batch-size", "--collective")}


@click.command("bench", epilog=_EPILOG)
@settings_options(*_FLAGS)
@click.option(
    "--workers", type=numbers(64), metavar="LIST", help="Numbers of workers  [default: 1,2,4,… up to the cores]"
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=numbers(),
    metavar="LIST",
    help="GLOBAL batch sizes  [default: 32,256,2048]",
)
@click.option(
    "--collective",
    "collectives",
    type=words("auto", "shm", "ring", "nccl"),
    metavar="LIST",
    help="Collectives to compare; all other figures use the first  [default: shm,ring]",
)
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=3, metavar="N", show_default=True, help="Runs of each layout."
)
@click.option(
    "--target-accuracy",
    type=click.FloatRange(0, 1),
    default=0.975,
    metavar="X",
    show_default=True,
    help="val_accuracy for the time-to-accuracy figure.",
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
    help="About a minute: 1 worker and one per core, batch 256, 3 epochs, no ring, no weak scaling. Lists override it.",
)
@no_live_option
@click.option("-q", "--quiet", is_flag=True, help="Show the result only, no progress.")
@traceback_option
def command(settings: Settings, no_live: bool, **options: Any) -> int:
    """Measure how training scales on this machine.

    Runs `tfmp train` with every number of workers, batch size and collective, in rounds, so that other load on the
    machine affects them all alike. Reports throughput with its spread, strong and weak scaling efficiency, where the
    time of a step goes, a comparison of the collectives, and the time from Enter to the first step and to an accuracy,
    as tables, JSON and a plot. Differences within noise are reported as ties. Ends with a recommendation.

    CONFIG and --set work as in tfmp train. At most 5 of the configured epochs are run, unless --epochs is given.
    """
    from tfmp.commands import bench as job

    def resolve(layout: Mapping[str, object]) -> Resolved:
        return settings.with_flags({_PER_LAYOUT[name]: value for name, value in layout.items()}).resolve()

    return job.bench(resolve, job.BenchOptions(live=not no_live, **options))
