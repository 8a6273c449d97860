"""Where progress is shown: a bar on a terminal, plain lines in a pipe, a log file and with ``--no-live``."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class PlainDisplay:
    """Prints lines, without a bar.

    Args:
        out: Where lines go; ``None``: standard output.

    Attributes:
        is_live: Whether there is a bar.
    """

    is_live = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def print(self, text: str) -> None:
        """Print a line; on a live display it scrolls above the bar."""
        print(text, file=self._out, flush=True)

    def update(
        self, *, title: str | None = None, done: int | None = None, total: int | None = None, facts: str | None = None
    ) -> None:
        """Change what the bar shows; what is ``None`` stays."""

    def close(self) -> None:
        """Remove the bar; later lines are printed plainly."""


class LiveDisplay(PlainDisplay):
    """A bar with a title and facts.

    Args:
        out: Where it is drawn; ``None``: standard output.
        refresh_per_second: How often it is drawn.
    """

    is_live = True

    def __init__(self, out: TextIO | None = None, *, refresh_per_second: float = 8) -> None:
        super().__init__(out)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._console = Console(file=self._out, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TimeElapsedColumn(),
            # On a narrow terminal the facts are cut; otherwise rich takes from every column, and the blanks between.
            TextColumn(
                "{task.fields[facts]}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
            ),
            expand=True,
            console=self._console,
            transient=True,
            refresh_per_second=refresh_per_second,
        )
        self._task = self._progress.add_task("starting", total=None, facts="")
        self._progress.start()

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def update(
        self, *, title: str | None = None, done: int | None = None, total: int | None = None, facts: str | None = None
    ) -> None:
        """Change what the bar shows."""
        fields: dict[str, Any] = {} if facts is None else {"facts": facts}
        self._progress.update(self._task, description=title, completed=done, total=total, **fields)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def make_display(*, live: bool, refresh_per_second: float = 8) -> PlainDisplay:
    """Return a live display if one is wanted and standard output is a terminal, otherwise a plain one."""
    return LiveDisplay(refresh_per_second=refresh_per_second) if live and sys.stdout.isatty() else PlainDisplay()
