"""What is shown while a benchmark runs."""

from __future__ import annotations

import pytest

from tests.unit.bench.support import PLAN, measurement
from tfmp.bench.progress import Progress
from tfmp.report.display import LiveDisplay, PlainDisplay


def test_progress_says_what_runs_how_many_are_left_and_for_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    trials = PLAN.trials()[:2]
    progress = Progress(PlainDisplay(), trials, 2)
    progress.begin(trials[0], 1, [*trials, *trials])
    progress.end(trials[0], 10.0, measurement(trials[0], 1, 100_000.0))
    progress.begin(trials[1], 1, [trials[1], *trials])
    progress.end(trials[1], 30.0, None)  # failed: it is not run again
    progress.begin(trials[0], 2, [trials[0]])
    assert capsys.readouterr().out.splitlines() == [
        "[1/4] round 1 of 2: 1 worker, batch 256",
        "  100,000 samples/s, 10 s",
        "[2/4] round 1 of 2: 2 workers, shm, batch 256; about 30 s left",
        "[3/3] round 2 of 2: 1 worker, batch 256; about 10 s left",
    ]
    Progress(None, trials, 2).begin(trials[0], 1, trials)
    assert capsys.readouterr().out == ""


def test_the_live_display_keeps_a_line_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    trials = PLAN.trials()[:1]
    progress = Progress(LiveDisplay(), trials, 2)
    progress.begin(trials[0], 1, [*trials, *trials])
    progress.tick()
    progress.end(trials[0], 10.0, measurement(trials[0], 1, 100_000.0))
    progress.begin(trials[0], 2, trials)
    progress.tick()
    progress.close()
    assert "[1/2] round 1 of 2: 1 worker, batch 256: 100,000 samples/s, 10 s\n" in capsys.readouterr().out
