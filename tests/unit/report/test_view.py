"""What people see of a run."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console

from tfmp.events import EpochEnd, Progress, Ready, Validating
from tfmp.report.display import LiveDisplay, PlainDisplay
from tfmp.report.view import View

METRICS = {"val_loss": 0.2, "loss": 0.25, "accuracy": 0.9, "val_accuracy": 0.91}
EPOCH = EpochEnd(1, METRICS, seconds=1.25, samples_per_second=48000.4, step=235)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def view(**settings: Any) -> tuple[View, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    made = View(PlainDisplay(out), epochs=5, steps_per_epoch=235, workers=2, clock=clock, **settings)
    return made, out, clock


def test_plain_lines() -> None:
    shown, out, clock = view()
    clock.now += 3.25
    shown.on_event(0, Ready())
    shown.on_event(1, Ready())
    shown.on_event(0, Progress(1, 32, metrics={"loss": 0.5}))
    clock.now += 11
    shown.on_event(0, Progress(1, 64, 1234.5, {"loss": 0.5}))
    shown.on_event(0, EPOCH)
    shown.on_event(1, EPOCH)
    shown.on_line(1, "stderr", "a word of the worker's")
    shown.on_line(1, "stdout", "tfmp: for the log only")
    assert out.getvalue().splitlines() == [
        "2 workers ready in 3.2 s",
        "epoch 1/5  step 64/235  loss 0.5000  1,234 samples/s",
        "epoch 1/5  loss 0.2500  accuracy 0.9000  val_loss 0.2000  val_accuracy 0.9100  48,000 samples/s  1.2 s",
        "[worker 1] a word of the worker's",
    ]


def test_quiet_and_verbose() -> None:
    shown, out, _ = view(verbosity=-1)
    shown.on_event(0, EPOCH)
    shown.on_line(0, "stdout", "text")
    assert out.getvalue() == ""
    shown, out, _ = view(verbosity=1)
    shown.on_line(0, "stdout", "tfmp: for the log")
    assert out.getvalue() == "[worker 0] tfmp: for the log\n"


def test_the_live_view_keeps_finished_lines_and_removes_its_bar() -> None:
    out = io.StringIO()
    live = View(LiveDisplay(out), epochs=5, steps_per_epoch=235, workers=1)
    live.on_event(0, Progress(1, 32, 10.0, {"loss": 0.5}))
    live.on_event(0, Progress(1, 64, 10.0, {"loss": 0.5}))
    live.on_event(0, Validating(1))
    live.on_event(0, EPOCH)
    live.close()
    assert "epoch 1/5  loss 0.2500" in out.getvalue()


def test_a_narrow_terminal_cuts_the_facts_and_nothing_else() -> None:
    display = LiveDisplay(io.StringIO())
    display.update(
        title="epoch 3/10", done=118, total=235, facts="118/235  loss 0.1234  accuracy 0.9712  123,456 samples/s"
    )
    page = io.StringIO()
    Console(file=page, width=60).print(display._progress.get_renderable())
    display.close()
    assert re.search(r" epoch 3/10 \S+ +\d:\d\d:\d\d 118/235  loss 0\.1234 .*…$", page.getvalue().rstrip())
