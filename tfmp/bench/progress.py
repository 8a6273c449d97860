"""What a person sees while a benchmark runs: the current run, how many are left, and for how long."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tfmp.bench.analysis import Measurement
from tfmp.bench.trials import Trial, time_left_s
from tfmp.report.display import PlainDisplay
from tfmp.text import rate, seconds


class Progress:
    """Shows each run and its throughput: one line per run on a live display, two on a plain one.

    Args:
        display: Where they are shown; ``None``: nowhere.
        trials: The trials of a round.
        rounds: Number of rounds.
    """

    def __init__(self, display: PlainDisplay | None, trials: Sequence[Trial], rounds: int) -> None:
        self.total = len(trials) * rounds
        self.done = 0
        self._display = display
        self._rounds = rounds
        self._title = ""
        self._ends_s: float | None = None
        self._spent: list[tuple[Trial, float]] = []

    def begin(self, trial: Trial, number: int, left: Sequence[Trial]) -> None:
        """A trial is about to run.

        Args:
            trial: The trial.
            number: The round, from 1.
            left: What is still to run, including this one.
        """
        self.total = self.done + len(left)  # failed trials are not run again
        left_s = time_left_s(self._spent, left)
        self._ends_s = None if left_s is None else time.monotonic() + left_s
        self._title = f"[{self.done + 1}/{self.total}] round {number} of {self._rounds}: {trial.title}"
        if self._display is None:
            return
        if self._display.is_live:
            facts = "" if left_s is None else _time_left(left_s)
            self._display.update(title=self._title, facts=facts, total=self.total)
        else:
            self._display.print(self._title if left_s is None else f"{self._title}; {_time_left(left_s)}")

    def end(self, trial: Trial, seconds_spent: float, found: Measurement | None) -> None:
        """A trial has ended; ``found`` is ``None`` if it failed."""
        self.done += 1
        self._spent.append((trial, seconds_spent))
        if self._display is None:
            return
        if found is not None:
            figures = f"{rate(found.samples_per_second)}, {seconds(seconds_spent)}"
            self._display.print(f"{self._title}: {figures}" if self._display.is_live else f"  {figures}")
        self._display.update(done=self.done, total=self.total)

    def tick(self) -> None:
        """Count down the time left; called several times per second."""
        if self._display is not None and self._ends_s is not None:
            self._display.update(facts=_time_left(max(0.0, self._ends_s - time.monotonic())))

    def close(self) -> None:
        """End the display."""
        if self._display is not None:
            self._display.close()


def _time_left(left_s: float) -> str:
    return f"about {seconds(left_s)} left"
