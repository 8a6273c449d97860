"""The table at the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfmp.text import count, rate, seconds

_FIRST = ("accuracy", "loss", "val_accuracy", "val_loss")
_NO_METRIC = frozenset({"samples_per_second", "seconds_to_first_step", "seconds"})


def summary_rows(summary: Mapping[str, Any], folder: str) -> list[tuple[str, str]]:
    """Rows of (label, value) for a run's summary."""
    who = f"{count(summary['workers'], 'worker')}, {summary['strategy']}, {count(summary['replicas'], 'replica')}"
    rows = [("status", str(summary["status"])), ("workers", f"{who}, collective {summary['collective']}")]
    rows.append(("epochs", str(summary["epochs"])))
    metrics = [name for name, value in summary.items() if isinstance(value, float) and name not in _NO_METRIC]
    metrics.sort(key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    rows += [(name, f"{summary[name]:.4f}") for name in metrics]
    if summary["samples_per_second"]:
        rows.append(("throughput", rate(summary["samples_per_second"])))
    if summary["seconds_to_first_step"]:
        rows.append(("first step after", seconds(summary["seconds_to_first_step"])))
    rows.append(("total time", seconds(summary["seconds"])))
    if summary["weights_sha256"]:
        rows.append(("weights_sha256", str(summary["weights_sha256"])))
    rows.append(("run folder", folder))
    return rows


def print_rows(rows: Sequence[tuple[str, str]], title: str | None = None, *, plain: bool = False) -> None:
    """Print rows as a table on a terminal, as aligned plain lines elsewhere and where ``plain`` ones are wanted."""
    if sys.stdout.isatty() and not plain:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(highlight=False, markup=False).print(table)
        return
    if title:
        print(title)
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"  {label:<{width}}  {value}")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with a heading, aligned; the same on a terminal and in a pipe."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(columns, *rows, strict=True)]
    for cells in (columns, *rows):
        print("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    sys.stdout.flush()
