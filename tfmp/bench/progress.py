"""What a person sees while a benchmark runs: which run, how many are to go, how long that will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tfmp.bench.analysis import Measurement
from tfmp.bench.trials import Trial, time_left_s
from tfmp.text import rate, seconds


class PlainProgress:
    """Two lines a run: what is run, and its figure.

    Args:
        trials: The trials of a round.
        rounds: How often they are run.
        quiet: Whether nothing is shown.
    """

    def __init__(self, trials: Sequence[Trial], rounds: int, *, quiet: bool = False) -> None:
        self.total = len(trials) * rounds
        self.done = 0
        self._rounds = rounds
        self._quiet = quiet
        self._spent: list[tuple[Trial, float]] = []

    def begin(self, trial: Trial, number: int, left: Sequence[Trial]) -> None:
        """A trial is about to run.

        Args:
            trial: It.
            number: The round, from 1.
            left: What is still to run, this one included.
        """
        self.total = self.done + len(left)  # trials that failed are not run again
        left_s = time_left_s(self._spent, left)
        self._show_begin(f"[{self.done + 1}/{self.total}] round {number} of {self._rounds}: {trial.title}", left_s)

    def end(self, trial: Trial, seconds_spent: float, found: Measurement | None) -> None:
        """A trial has ended; ``found`` is ``None`` where it failed."""
        self.done += 1
        self._spent.append((trial, seconds_spent))
        if found is not None:
            self._show_end(f"{rate(found.samples_per_second)}, {seconds(seconds_spent)}")

    def tick(self) -> None:
        """Called several times a second while a trial runs."""

    def say(self, text: str) -> None:
        """Print a line unless quiet."""
        if not self._quiet:
            print(text, flush=True)

    def close(self) -> None:
        """End the display."""

    def _show_begin(self, text: str, left_s: float | None) -> None:
        self.say(text if left_s is None else f"{text}; {_about(left_s)}")

    def _show_end(self, text: str) -> None:
        self.say(f"  {text}")


class LiveProgress(PlainProgress):
    """A bar with the run that goes on; finished runs scroll above it."""

    def __init__(self, trials: Sequence[Trial], rounds: int) -> None:
        super().__init__(trials, rounds)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[about]}"),
            console=self._console,
            transient=True,
            # Drawn a few times a second at most: the display shares the cores with what is measured.
            refresh_per_second=2,
        )
        self._title = ""
        self._ends_s: float | None = None
        self._task = self._progress.add_task("starting", total=self.total, about="")
        self._progress.start()

    def end(self, trial: Trial, seconds_spent: float, found: Measurement | None) -> None:
        """Print the figure beside what was run, and move the bar."""
        super().end(trial, seconds_spent, found)
        self._progress.update(self._task, completed=self.done, total=self.total)

    def tick(self) -> None:
        """Count the time left down."""
        if self._ends_s is not None:
            left_s = max(0.0, self._ends_s - time.monotonic())
            self._progress.update(self._task, about=_about(left_s))

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()

    def _show_begin(self, text: str, left_s: float | None) -> None:
        self._title = text
        self._ends_s = None if left_s is None else time.monotonic() + left_s
        about = "" if left_s is None else _about(left_s)
        self._progress.update(self._task, description=text, about=about, total=self.total)

    def _show_end(self, text: str) -> None:
        self.say(f"{self._title}: {text}")


def _about(left_s: float) -> str:
    return f"about {seconds(left_s)} left"


def make_progress(trials: Sequence[Trial], rounds: int, *, live: bool, quiet: bool) -> PlainProgress:
    """A live display where standard output is a terminal that can show one, else plain lines."""
    if live and not quiet and sys.stdout.isatty():
        return LiveProgress(trials, rounds)
    return PlainProgress(trials, rounds, quiet=quiet)
