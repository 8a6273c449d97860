"""The figures as tables, and the advice below them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.bench.support import PLAN, SPEEDS, everything, measurement
from tfmp.bench.analysis import analyse
from tfmp.bench.tables import advice_lines, show, tables
from tfmp.bench.trials import Trial
from tfmp.rundir.layout import finite


@pytest.mark.parametrize("runs", range(len(SPEEDS) + 3))
def test_after_any_interruption_what_is_there_is_shown(runs: int, tmp_path: Path) -> None:
    found = analyse(PLAN, everything()[:runs], 0.975)
    for table in tables(PLAN, found, 0.975):
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert advice_lines(PLAN, found, 0.975)[-1].startswith(
        "advice: no advice" if runs <= len(SPEEDS) + 1 else "advice: "
    )
    json.dumps(finite(found.to_json()), allow_nan=False)


def test_the_tables_on_paper(capsys: pytest.CaptureFixture[str]) -> None:
    found = analyse(PLAN, everything(), 0.975)
    for table in tables(PLAN, found, 0.975):
        show(table)
    text = capsys.readouterr().out
    assert text.startswith("throughput, collective shm\n")
    assert "  256           2        160,320    160,160 to 160,480  1.60 (1.60 to 1.60)  89%     95%\n" in text
    assert "  256           2        6.0 s (5.0 to 7.0)  9.0 s (8.0 to 10.0)\n" in text
    assert "  256           2        1.597 ms  0.319 ms  -        -\n" in text
    assert "shm is 4.00 (4.00 to 4.00) times as fast as ring" in text
    assert advice_lines(PLAN, found, 0.975) == [
        "global batch 256: 2 workers, 1.60 (1.60 to 1.60) times as fast as 1 worker; 4 is slower here",
        "fastest to val_accuracy 0.975 at global batch 256: 1 worker; 2 and 4 are not faster beyond noise",
        "oversubscribed: 4 workers take turns on 2 cores; these figures say nothing about scaling",
        "advice: 2 workers; 4 is slower here",
    ]


def test_advice_from_a_busy_machine_is_limited_to_it() -> None:
    found = analyse(PLAN, everything(), 0.975)
    assert advice_lines(PLAN, found, 0.975, busy=True)[-1] == (
        "advice: 2 workers; 4 is slower here "
        "(measured while other programs kept this machine busy; repeat on an idle one)"
    )


def test_a_worker_that_is_faster_on_fewer_cores_is_told() -> None:
    faster = [one for one in everything() if one.trial.kind != "alone"]
    faster += [measurement(PLAN.alone(2, 256), number, 130_000 * (1 + number / 1000)) for number in (1, 2, 3)]
    found = analyse(PLAN, faster, 0.975)
    assert [(batch, cores) for batch, cores, _ in found.narrower] == [(256, 1)]
    assert (
        "global batch 256: 1 worker is 1.30 (1.30 to 1.30) times as fast on 1 core as on all 2 "
        "(--set cluster.threads_per_worker=1)"
    ) in advice_lines(PLAN, found, 0.975)
    assert analyse(PLAN, everything(), 0.975).narrower == (), "slower on one core"


def test_an_exchange_inside_the_noise_has_no_figure() -> None:
    noisy = [one for one in everything() if one.trial.kind != "apart"]
    noisy += [
        measurement(Trial("apart", 2, 256), number, speed)
        for number, speed in enumerate((150e3, 170e3, 161e3), start=1)
    ]
    rows = next(table for table in tables(PLAN, analyse(PLAN, noisy, 0.975), 0.975) if "step" in table.title).rows
    # Rounds of 150, 170 and 161 thousand samples/s apart against 160.2, 160.3, 160.5: -0.108, 0.091, 0.005 ms.
    assert rows[0][3] == "0.005 ms (noise: below 0.244)"
