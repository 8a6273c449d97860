"""``tfmp evaluate``."""

from __future__ import annotations

from pathlib import Path

import click

_EPILOG = """\b
Examples:
  tfmp evaluate runs/20260101-120000-mnist
  tfmp evaluate runs/20260101-120000-mnist --json
"""


@click.command("evaluate", epilog=_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
@click.option("-v", "--verbose", is_flag=True, help="Show all output of the process, and tracebacks.")
def command(run: Path, as_json: bool, verbose: bool) -> int:
    """Evaluate a trained model on its test set.

    RUN is a run folder. Plain Keras evaluates every sample once in one process, so the accuracy equals the run's
    val_accuracy.
    """
    from tfmp.commands.evaluate import evaluate

    return evaluate(run, as_json=as_json, verbose=verbose)
