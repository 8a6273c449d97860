"""``tfmp verify``."""

from __future__ import annotations

from dataclasses import replace

import click

from tfmp.cli.options import KEY_FLAGS, Settings, output_options, settings_options

_EPILOG = """\b
Examples:
  tfmp verify                             MNIST, two workers
  tfmp verify configs/mnist.yaml --workers 3
  tfmp verify my-run.yaml --steps 10 --set model.factory=my_model:build
  tfmp verify --strategy mirrored --devices 2

\b
Exit codes: 0 equal, 1 different, or the run failed, 2 invalid usage or configuration.
"""

_NAMES = ("--strategy", "--devices", "--collective", "--batch-size", "--learning-rate", "--seed")
_WORKERS = replace(KEY_FLAGS[0], help="Number of worker processes on this machine.  [default: 2]")
_FLAGS = [_WORKERS, *(flag for flag in KEY_FLAGS[1:] if flag.name in _NAMES)]


@click.command("verify", epilog=_EPILOG)
@settings_options(*_FLAGS)
@click.option(
    "--steps", type=click.IntRange(1, 1000), default=3, metavar="N", show_default=True, help="Steps of each epoch."
)
@click.option(
    "--precision",
    type=click.Choice(["float64", "configured"]),
    default="float64",
    show_default=True,
    help="float64 tells a wrong number from rounding.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
@output_options
def command(settings: Settings, steps: int, precision: str, as_json: bool, verbosity: int, no_live: bool) -> int:
    """Check that your workers compute what one process does.

    Trains two short epochs, each with an uneven last batch, on the workers and with plain Keras in one process, on the
    same samples, and compares weights, optimizer state, loss and metrics after every step. One more run of plain Keras,
    with the rows of each batch in another order, shows how large the differences are that rounding and random layers
    make by themselves.

    CONFIG and --set work as in tfmp train: your own data, model and callbacks are checked.
    """
    resolved = settings.resolve()
    if resolved.config.cluster.is_multi_process and resolved.origin("cluster.workers") == "default":
        resolved = settings.with_flags({_WORKERS: 2}).resolve()
    from tfmp.commands import verify as job

    options = job.VerifyOptions(steps, None if precision == "configured" else precision, as_json, verbosity)
    return job.verify(resolved, options)
