"""What a person sees while a run goes on: a live bar on a terminal, plain lines in a pipe or a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from tfmp.text import count, metrics_text, rate, seconds, without_colours
from tfmp.workers.events import EpochEnd, Progress, Ready, Validating, WorkerEvent

#: In a pipe, an epoch that takes long shows that it is alive.
_PLAIN_PROGRESS_EVERY_S = 10.0
_OWN_PREFIX = "tfmp: "


class PlainView:
    """Plain lines, one fact a line, for pipes, log files and ``--no-live``.

    Args:
        epochs: Epochs of the run.
        steps_per_epoch: Steps of an epoch.
        workers: Number of workers.
        verbosity: -1 quiet, 0 normal, 1 everything that workers print.
        out: Where lines go.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        epochs: int,
        steps_per_epoch: int,
        workers: int,
        verbosity: int = 0,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.workers = workers
        self.verbosity = verbosity
        self._out = out or sys.stdout
        self._clock = clock
        self._began = self._last_progress = clock()
        self._ready: set[int] = set()

    def say(self, text: str) -> None:
        """Print a line unless quiet."""
        if self.verbosity >= 0:
            self._print(text)

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """Show one event of worker ``rank``."""
        match event:
            case Ready():
                self._ready.add(rank)
                if len(self._ready) == self.workers:
                    self.say(f"{count(self.workers, 'worker')} ready in {seconds(self._clock() - self._began)}")
            case Progress() if rank == 0:
                self.progress(event)
            case EpochEnd() if rank == 0:
                self.epoch(event)
            case Validating() if rank == 0:
                self.validating()

    def on_line(self, rank: int, stream: str, text: str) -> None:
        """Show a line that worker ``rank`` printed; tfmp's own are in the log file only."""
        if self.verbosity > 0 or (self.verbosity == 0 and not text.startswith(_OWN_PREFIX) and text.strip()):
            self._print(f"[worker {rank}] {without_colours(text)}")

    def progress(self, event: Progress) -> None:
        """Show how far the epoch is, now and then."""
        now = self._clock()
        if now - self._last_progress >= _PLAIN_PROGRESS_EVERY_S and event.step < self.steps_per_epoch:
            self._last_progress = now
            place = f"epoch {event.epoch}/{self.epochs}  step {event.step:,}/{self.steps_per_epoch:,}"
            self.say(f"{place}  {metrics_text(event.metrics)}  {rate(event.samples_per_second)}")

    def epoch(self, event: EpochEnd) -> None:
        """Show an epoch's results."""
        self._last_progress = self._clock()
        self.say(self.epoch_text(event))

    def epoch_text(self, event: EpochEnd) -> str:
        """One line for an epoch's results."""
        speed = rate(event.samples_per_second)
        return f"epoch {event.epoch}/{self.epochs}  {metrics_text(event.metrics)}  {speed}  {seconds(event.seconds)}"

    def validating(self) -> None:
        """Show that validation runs."""

    def tick(self) -> None:
        """Called a few times a second while the run goes on."""

    def close(self) -> None:
        """End the display; later lines are printed plainly."""

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class LiveView(PlainView):
    """A bar with loss, accuracy, samples/s and time left; lines scroll above it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._console = Console(file=self._out, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[facts]}"),
            console=self._console,
            transient=True,
            refresh_per_second=8,
        )
        self._task = self._progress.add_task("starting", total=None, facts="")
        self._trained_from: tuple[float, int] | None = None
        self._progress.start()

    def progress(self, event: Progress) -> None:
        """Move the bar."""
        now, step = self._clock(), event.step
        done = (event.epoch - 1) * self.steps_per_epoch + step
        if self._trained_from is None:
            self._trained_from = (now, done)
        since, from_step = self._trained_from
        total = self.epochs * self.steps_per_epoch
        left = (now - since) / (done - from_step) * (total - done) if done > from_step else None
        facts = [f"{step}/{self.steps_per_epoch}", metrics_text(event.metrics), rate(event.samples_per_second)]
        if left is not None:
            facts.append(f"{seconds(left)} left")
        description = f"epoch {event.epoch}/{self.epochs}"
        self._progress.update(
            self._task, description=description, completed=done, total=total, facts="  ".join(filter(None, facts))
        )

    def validating(self) -> None:
        """Say so in the bar."""
        self._progress.update(self._task, facts="validating")

    def say(self, text: str) -> None:
        """Print a line above the bar; what is said before the first step also stands in it."""
        super().say(text)
        if self._trained_from is None:
            self._progress.update(self._task, description=text.split(":")[0])

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def make_view(*, live: bool, **settings: Any) -> PlainView:
    """A live view where standard output is a terminal that can show one, else plain lines."""
    usable = live and settings.get("verbosity", 0) >= 0 and sys.stdout.isatty()
    return LiveView(**settings) if usable else PlainView(**settings)
