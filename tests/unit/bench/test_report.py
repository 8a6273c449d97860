"""From measurements to tables, JSON and a plot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tfmp.bench.analysis import Measurement, analyse, unlike_weights
from tfmp.bench.machine import busy, busy_s, crowded, describe_machine, own_s, versions
from tfmp.bench.measure import read_trial
from tfmp.bench.plot import save_plot
from tfmp.bench.progress import LiveProgress, PlainProgress
from tfmp.bench.tables import advice_lines, show, tables
from tfmp.bench.trials import Trial, TrialPlan
from tfmp.errors import TfmpError
from tfmp.rundir.layout import RunFolder, finite

PLAN = TrialPlan((1, 2, 4), (256,), ("shm", "ring"), cores=2, train_samples=60000)


def measurement(trial: Trial, number: int, speed: float, **changed: Any) -> Measurement:
    settings: dict[str, Any] = {
        "rates": ((speed,),),
        "samples_per_second": speed,
        "first_step_s": 4.0 + number,
        "reached": ((6.0 + number, 0.95), (7.0 + number, 0.975), (8.0 + number, 0.98)),
        "seconds": 9.0,
        "collective": "none" if trial.workers == 1 else trial.collective,
        "weights_sha256": ("abc",),
        "foreign_cores": 0.0,
    }
    return Measurement(trial=trial, round=number, **{**settings, **changed})


SPEEDS = {
    "workers-1-batch-256": 100_000.0,
    "workers-2-batch-256-shm": 160_000.0,
    "workers-4-batch-256-shm": 80_000.0,
    "workers-2-batch-256-ring": 40_000.0,
    "workers-4-batch-256-ring": 20_000.0,
    "alone-on-1-batch-256": 90_000.0,
    "apart-2-batch-256": 200_000.0,
    "apart-4-batch-256": 150_000.0,
    "workers-2-batch-512-shm": 171_000.0,
    "workers-4-batch-1024-shm": 90_000.0,
}


def everything(rounds: int = 3) -> list[Measurement]:
    return [
        measurement(trial, number, SPEEDS[trial.name] * (1 + number / 1000))
        for number in range(1, rounds + 1)
        for trial in PLAN.trials()
    ]


def test_the_trials_of_the_plan_are_those_of_this_test() -> None:
    assert {trial.name for trial in PLAN.trials()} == set(SPEEDS)


def test_every_figure_is_held_against_its_reference() -> None:
    found = analyse(PLAN, everything(), 0.975)
    one, two, four = found.rows
    assert (one.strong, one.weak, one.against_one) == (None, None, None)
    assert two.rate.median == pytest.approx(160_320)
    assert two.against_one is not None
    assert two.against_one.ratio == pytest.approx(1.6)
    assert two.strong is not None
    assert two.strong.median == pytest.approx(160 / (2 * 90))
    assert two.weak is not None
    assert two.weak.median == pytest.approx(171 / (2 * 90))
    assert four.strong is not None
    assert four.strong.median == pytest.approx(80 / (4 * 90))
    assert [(batch, workers) for batch, workers, _ in found.splits] == [(256, 2), (256, 4)]
    split = found.splits[0][2]
    assert split.exchange_s == pytest.approx((256 / 160_000 - 256 / 200_000) / 1.002)
    assert found.collectives[0].against_first["ring"].ratio == pytest.approx(4.0)
    assert found.advice == "2 workers; 4 is slower here"


def test_times_are_to_the_first_epoch_that_reaches_the_accuracy() -> None:
    one = measurement(Trial("run", 1, 256), 1, 1.0)
    assert [one.seconds_to(target) for target in (0.9, 0.975, 0.98, 0.99)] == [7.0, 8.0, 9.0, None]
    row = analyse(PLAN, everything(), 0.976).rows[0]
    assert row.target_s is not None
    assert (row.target_s.median, row.target_s.low, row.target_s.high) == (10.0, 9.0, 11.0)
    assert row.first_step_s is not None
    assert row.first_step_s.median == 6.0
    assert analyse(PLAN, everything(), 0.99).rows[0].target_s is None
    without = [measurement(Trial("run", 1, 256), 1, 1.0, reached=((1.0, None),))]
    assert analyse(PLAN, without, 0.1).rows[0].target_s is None


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
        "soonest to val_accuracy 0.975 at global batch 256: 1 worker; 2 and 4 are not faster beyond the noise",
        "oversubscribed: 4 workers take turns on 2 cores; such figures say nothing of scaling",
        "advice: 2 workers; 4 is slower here",
    ]


def test_advice_from_a_busy_machine_is_limited_to_it() -> None:
    found = analyse(PLAN, everything(), 0.975)
    assert advice_lines(PLAN, found, 0.975, busy=True)[-1] == (
        "advice: 2 workers; 4 is slower here (while other programs keep this machine busy: repeat it on an idle one)"
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


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    save_plot(tmp_path / "bench.png", PLAN, analyse(PLAN, everything(), 0.975))
    assert (tmp_path / "bench.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    save_plot(tmp_path / "little.png", PLAN, analyse(PLAN, everything()[:1], 0.975))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["bench.png", "little.png"]


def test_without_matplotlib_the_way_to_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TfmpError, match=r"no plot: matplotlib is not installed[^']*pip install 'tfmp\[plot\]'"):
        save_plot(tmp_path / "bench.png", PLAN, analyse(PLAN, everything(), 0.975))
    assert not list(tmp_path.iterdir())


def test_runs_that_do_not_repeat_are_named() -> None:
    trial, other = PLAN.trials()[:2]
    same = [measurement(trial, number, 1.0) for number in (1, 2)]
    assert unlike_weights(same) == []
    assert unlike_weights([*same, measurement(other, 1, 1.0), measurement(other, 2, 1.0, weights_sha256=("d",))]) == [
        other
    ]


def run_folder(path: Path, speeds: list[float], first_step: float, sha: str) -> RunFolder:
    """A run folder as ``tfmp train`` leaves it, as far as a benchmark reads it."""
    path.mkdir()
    folder = RunFolder(path)
    folder.metrics.write_text("".join(json.dumps({"samples_per_second": speed}) + "\n" for speed in speeds))
    events: list[dict[str, Any]] = [{"time": first_step - 1, "event": "ready", "rank": 0}]
    events += [{"time": first_step, "event": "first_step", "rank": 0}]
    events += [
        {"time": first_step + 1 + n, "event": "epoch", "val_accuracy": 0.9 + n / 100} for n in range(len(speeds))
    ]
    folder.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    folder.summary.write_text(json.dumps({"collective": "shm", "weights_sha256": sha}))
    return folder


def test_a_run_folder_is_read_without_its_first_epoch(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [9e9, 10.0, 30.0, 20.0], 104.5, "abc")
    found = read_trial(PLAN.run(2, 256), 3, [folder], 100.0, 12.5, 0.25)
    assert found == Measurement(
        trial=Trial("run", 2, 256, "shm"),
        round=3,
        rates=((10.0, 30.0, 20.0),),
        samples_per_second=20.0,
        first_step_s=4.5,
        reached=((5.5, 0.9), (6.5, 0.91), (7.5, 0.92), (8.5, 0.93)),
        seconds=12.5,
        collective="shm",
        weights_sha256=("abc",),
        foreign_cores=0.25,
    )


def test_workers_apart_are_added_up_and_the_slowest_start_counts(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / "a", [1.0, 10.0, 30.0, 20.0], 104.0, "x"),
        run_folder(tmp_path / "b", [1.0, 5.0], 107.0, "y"),
    ]
    found = read_trial(PLAN.apart(2, 256), 1, folders, 100.0, 12.5, 0.25)
    assert (found.samples_per_second, found.first_step_s, found.weights_sha256) == (25.0, 7.0, ("x", "y"))


def test_a_run_without_figures_is_an_error(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [10.0], 104.5, "abc")
    with pytest.raises(TfmpError, match="no usable figures"):
        read_trial(PLAN.run(2, 256), 1, [folder], 100.0, 12.5, 0.25)
    folder.metrics.unlink()
    with pytest.raises(TfmpError, match=r"metrics\.jsonl"):
        read_trial(PLAN.run(2, 256), 1, [folder], 100.0, 12.5, 0.25)


def test_progress_says_what_runs_how_many_are_left_and_for_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    trials = PLAN.trials()[:2]
    progress = PlainProgress(trials, 2)
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
    PlainProgress(trials, 2, quiet=True).begin(trials[0], 1, trials)
    assert capsys.readouterr().out == ""


def test_the_live_display_keeps_a_line_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    trials = PLAN.trials()[:1]
    progress = LiveProgress(trials, 2)
    progress.begin(trials[0], 1, [*trials, *trials])
    progress.tick()
    progress.end(trials[0], 10.0, measurement(trials[0], 1, 100_000.0))
    progress.begin(trials[0], 2, trials)
    progress.tick()
    progress.close()
    assert "[1/2] round 1 of 2: 1 worker, batch 256: 100,000 samples/s, 10 s\n" in capsys.readouterr().out


def test_the_machine_is_described(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Fine CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: other\n")
    found = describe_machine(2, cpuinfo)
    assert (found["cpu"], found["cores"]) == ("A Fine CPU @ 2 GHz", 2)
    assert describe_machine(2, tmp_path / "none")["cpu"] == found["architecture"]
    assert {"tfmp", "python", "keras", "numpy"} <= versions().keys()
    assert busy(0.49, 2) is None
    assert busy(0.5, 2) == "this machine is busy (load 0.5 on 2 cores): expect noise, and fewer clear answers"


def test_cpu_time_of_others_is_what_is_neither_idle_nor_ours() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    busy_before_s, own_before_s, began = busy_s(cpus), own_s(), time.monotonic()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    wall_s, ours_s = time.monotonic() - began, own_s() - own_before_s
    assert 0.48 <= ours_s < 1.5  # counted in hundredths
    # The kernel counts in hundredths of a second.
    assert ours_s - 0.1 <= busy_s(cpus) - busy_before_s <= len(cpus) * wall_s + 0.1


def test_other_programs_are_named_from_a_tenth_of_the_machine_on() -> None:
    assert crowded([], 2) is None
    assert crowded([0.0, 0.2, 1.9], 2) is None
    assert crowded([0.0, 0.5, 1.9], 2) == (
        "other programs kept 0.5 of 2 cores busy meanwhile (at most 1.9): expect noise"
    )
