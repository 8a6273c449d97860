"""What a person sees while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfmp.events import EpochEnd, Progress, Ready, Validating, WorkerEvent
from tfmp.report.display import PlainDisplay, make_display
from tfmp.text import count, metrics_text, rate, seconds, without_colours

#: Without a bar, a long epoch shows this often that it is alive.
_PLAIN_PROGRESS_EVERY_S = 10.0
_OWN_PREFIX = "tfmp: "


class View:
    """Shows events and lines of the workers: loss, accuracy, samples/s and the time left.

    Args:
        display: Where they are shown.
        epochs: Epochs of the run.
        steps_per_epoch: Steps per epoch.
        workers: Number of workers.
        verbosity: -1 quiet, 0 normal, 1 everything that workers print.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        display: PlainDisplay,
        *,
        epochs: int,
        steps_per_epoch: int,
        workers: int,
        verbosity: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._display = display
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._workers = workers
        self._verbosity = verbosity
        self._clock = clock
        self._began_s = self._last_progress_s = clock()
        self._ready: set[int] = set()
        self._first_progress: tuple[float, int] | None = None

    def say(self, text: str) -> None:
        """Print a line unless quiet; until the first step it is also the title of the bar."""
        if self._verbosity >= 0:
            self._display.print(text)
            if self._first_progress is None:
                self._display.update(title=text.split(":")[0])

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """Show an event of worker ``rank``."""
        match event:
            case Ready():
                self._ready.add(rank)
                if len(self._ready) == self._workers:
                    self.say(f"{count(self._workers, 'worker')} ready in {seconds(self._clock() - self._began_s)}")
            case Progress() if rank == 0:
                self._show_progress(event)
            case EpochEnd() if rank == 0:
                self._last_progress_s = self._clock()
                self.say(f"{self._epoch_of(event)}  {self._figures(event)}  {seconds(event.seconds)}")
            case Validating() if rank == 0:
                self._display.update(facts="validating")

    def on_line(self, rank: int, stream: str, text: str) -> None:
        """Show a line that worker ``rank`` printed; tfmp's own lines are for the log file."""
        if self._verbosity > 0 or (self._verbosity == 0 and not text.startswith(_OWN_PREFIX) and text.strip()):
            self._display.print(f"[worker {rank}] {without_colours(text)}")

    def tick(self) -> None:
        """Called a few times per second during the run."""

    def close(self) -> None:
        """End the display; later lines are printed plainly."""
        self._display.close()

    def _show_progress(self, event: Progress) -> None:
        now_s, step = self._clock(), event.step
        done = (event.epoch - 1) * self._steps_per_epoch + step
        total = self._epochs * self._steps_per_epoch
        first_s, first_done = self._first_progress = self._first_progress or (now_s, done)
        facts = [f"{step:,}/{self._steps_per_epoch:,}", self._figures(event)]
        if done > first_done:
            facts.append(f"{seconds((now_s - first_s) / (done - first_done) * (total - done))} left")
        self._display.update(title=self._epoch_of(event), done=done, total=total, facts="  ".join(filter(None, facts)))
        is_due = now_s - self._last_progress_s >= _PLAIN_PROGRESS_EVERY_S and step < self._steps_per_epoch
        if is_due and not self._display.is_live:
            self._last_progress_s = now_s
            self.say(f"{self._epoch_of(event)}  step {step:,}/{self._steps_per_epoch:,}  {self._figures(event)}")

    def _epoch_of(self, event: Progress | EpochEnd) -> str:
        return f"epoch {event.epoch}/{self._epochs}"

    def _figures(self, event: Progress | EpochEnd) -> str:
        return f"{metrics_text(event.metrics)}  {rate(event.samples_per_second)}".strip()


def make_view(*, live: bool, epochs: int, steps_per_epoch: int, workers: int, verbosity: int = 0) -> View:
    """Return a view: live if one is wanted on a terminal, otherwise of plain lines."""
    display = make_display(live=live and verbosity >= 0)
    return View(display, epochs=epochs, steps_per_epoch=steps_per_epoch, workers=workers, verbosity=verbosity)
