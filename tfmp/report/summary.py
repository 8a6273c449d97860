"""Tables: how they are printed, and the one at the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfmp.text import count, rate, seconds

_FIRST = ("accuracy", "loss", "val_accuracy", "val_loss")
_NO_METRIC = frozenset({"samples_per_second", "seconds_to_first_step", "seconds"})


def summary_rows(summary: Mapping[str, Any], folder: str) -> list[tuple[str, str]]:
    """Return the rows of a run's summary, as labels and values."""
    workers = f"{count(summary['workers'], 'worker')}, {summary['strategy']}, {count(summary['replicas'], 'replica')}"
    rows = [("status", str(summary["status"])), ("workers", f"{workers}, collective {summary['collective']}")]
    rows.append(("epochs", str(summary["epochs"])))
    metrics = [name for name, value in summary.items() if isinstance(value, float) and name not in _NO_METRIC]
    metrics.sort(key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    rows += [(name, f"{summary[name]:.4f}") for name in metrics]
    if summary["samples_per_second"]:
        rows.append(("throughput", rate(summary["samples_per_second"])))
    if summary["seconds_to_first_step"]:
        rows.append(("time to first step", seconds(summary["seconds_to_first_step"])))
    rows.append(("total time", seconds(summary["seconds"])))
    if summary["weights_sha256"]:
        rows.append(("weights_sha256", str(summary["weights_sha256"])))
    rows.append(("run folder", folder))
    return rows


def print_rows(
    rows: Sequence[Sequence[str]], title: str | None = None, *, columns: Sequence[str] = (), plain: bool = False
) -> None:
    """Print a table: drawn on a terminal, aligned lines elsewhere.

    Args:
        rows: The cells.
        title: Printed above.
        columns: The header; empty for none.
        plain: Print aligned lines on a terminal too.
    """
    if sys.stdout.isatty() and not plain:
        _draw(rows, title, columns)
        return
    if title:
        print(title)
    lines = [columns, *rows] if columns else rows
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        print("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    sys.stdout.flush()


def _draw(rows: Sequence[Sequence[str]], title: str | None, columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=bool(columns))
    for index, cells in enumerate(zip(*([columns] if columns else []), *rows, strict=True)):
        # On a narrow terminal words are wrapped, and numbers are never cut.
        wraps = any(" " in cell for cell in cells) or not columns
        table.add_column(
            cells[0] if columns else "",
            style=None if columns or index else "bold",
            justify="right" if columns and index else "left",
            no_wrap=not wraps,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
