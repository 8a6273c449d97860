"""The command ``tfmp bench`` around its runs, which are stood in for here; real ones: tests/cluster/test_bench.py."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench.support import measurement
from tfmp.bench.analysis import Measurement
from tfmp.bench.measure import Bench, Interrupted
from tfmp.bench.trials import Trial
from tfmp.cli.app import _exit_code
from tfmp.commands import bench as job
from tfmp.errors import TfmpError

RunTrial = Callable[[Bench, Trial, int, Any, Any], Measurement]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, str]]:
    """Every run gives a figure at once; the list tells which were made. Nothing is drawn, which takes half a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "save_plot", lambda path, plan, analysis: path.touch())
    made: list[tuple[int, str]] = []

    def run_trial(bench: Bench, trial: Trial, number: int, inbox: Any, on_tick: Any) -> Measurement:
        made.append((number, trial.name))
        return measurement(trial, number, 1000.0 * trial.workers + number)

    monkeypatch.setattr(job, "run_trial", run_trial)
    return made


def after(stand_in: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, runs: int, error: Exception) -> None:
    """After so many runs the next one raises."""
    good: RunTrial = vars(job)["run_trial"]

    def run_trial(bench: Bench, trial: Trial, number: int, inbox: Any, on_tick: Any) -> Measurement:
        if len(stand_in) == runs:
            stand_in.append((number, f"{trial.name} fails"))
            raise error
        return good(bench, trial, number, inbox, on_tick)

    monkeypatch.setattr(job, "run_trial", run_trial)


SMALL = ("bench", "--workers", "1,2", "--batch-size", "256", "--rounds", "2", "--collective", "shm", "--output", "out")


def results() -> Any:
    return json.loads(Path("out/bench.json").read_text())


def test_everything_is_run_in_rounds_and_kept(
    stand_in: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code([*SMALL]) == 0
    half = len(stand_in) // 2
    assert [number for number, _ in stand_in] == [1] * half + [2] * half
    names = [name for _, name in stand_in[:half]]
    assert names == [name for _, name in stand_in[half:]], "in the same order each round"
    assert len(set(names)) == half
    assert {"workers-1-batch-256", "workers-2-batch-256-shm", "apart-2-batch-256", "workers-2-batch-512-shm"} < {*names}
    found = results()
    assert found["status"] == "done"
    assert len(found["runs"]) == len(stand_in)
    assert found["settings"]["epochs"] == 5
    assert {"cpu", "cores", "memory_bytes"} <= found["machine"].keys()
    assert {"tfmp", "python"} <= found["versions"].keys()
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "advice: 2 workers"
    assert found["analysis"]["advice"] == "2 workers"
    assert sorted(path.name for path in Path("out").iterdir()) == ["bench.json", "bench.png", "config.yaml"]


def test_an_interrupted_benchmark_keeps_and_shows_what_was_measured(
    stand_in: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after(stand_in, monkeypatch, 3, Interrupted(signal.SIGINT))
    assert _exit_code([*SMALL]) == 130
    assert results()["status"] == "interrupted"
    assert len(results()["runs"]) == 3
    captured = capsys.readouterr()
    assert "interrupted by SIGINT after 3 of" in captured.err
    assert "out/bench.json" in captured.err
    assert "throughput, collective shm\n" in captured.out


def test_interrupted_before_the_first_figure(
    stand_in: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after(stand_in, monkeypatch, 0, Interrupted(signal.SIGTERM))
    assert _exit_code([*SMALL]) == 143
    captured = capsys.readouterr()
    assert "interrupted by SIGTERM after 0 of" in captured.err
    assert "throughput" not in captured.out


def test_a_layout_that_fails_is_left_out_of_the_later_rounds(
    stand_in: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after(stand_in, monkeypatch, 1, TfmpError("a run failed", where="there"))
    assert _exit_code([*SMALL]) == 1
    assert stand_in[1] == (1, "workers-2-batch-256-shm fails")
    assert (2, "workers-2-batch-256-shm") not in stand_in
    assert (2, "workers-1-batch-256") in stand_in
    assert results()["failures"] == [
        {"name": "workers-2-batch-256-shm", "round": 1, "what": "a run failed", "where": "there"}
    ]
    captured = capsys.readouterr()
    assert captured.err.rstrip().endswith("error: 1 layout failed: workers-2-batch-256-shm")
    assert "advice: no advice" in captured.out


def test_where_the_first_run_fails_the_rest_is_not_tried(
    stand_in: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after(stand_in, monkeypatch, 0, TfmpError("a run failed", where="there"))
    assert _exit_code([*SMALL]) == 1
    assert len(stand_in) == 1
    assert "error: a run failed\n  where: there" in capsys.readouterr().err


def test_quick_is_small_and_lists_win(stand_in: list[tuple[int, str]]) -> None:
    assert _exit_code(["bench", "--quick", "--workers", "2", "--rounds", "1", "--output", "out"]) == 0
    assert {name for _, name in stand_in} <= {
        "workers-1-batch-256",
        "workers-2-batch-256-shm",
        "apart-2-batch-256",
        *(f"alone-on-{cores}-batch-256" for cores in range(1, 65)),
    }
    assert results()["settings"]["epochs"] == 3
    assert results()["settings"]["workers"] == [2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--workers", "1,x"), "received 'x' in '1,x'"),
        (("--workers", ""), "--workers"),
        (("--workers", "1,,2"), "received '' in '1,,2'"),
        (("--workers", "0,1"), "from 1 to 64"),
        (("--workers", "65"), "from 1 to 64"),
        (("--workers", "2,2"), "received 2 twice"),
        (("--workers", "1.5"), "1.5"),
        (("--batch-size", "32,-1"), "received '-1'"),
        (("--batch-size", "32;256"), "32;256"),
        (("--collective", "shm,rign"), "received 'rign'"),
        (("--collective", "ring,ring"), "received ring twice"),
        (("--rounds", "0"), "--rounds"),
        (("--target-accuracy", "97.5"), "--target-accuracy"),
        (("--epochs", "1"), "at least 2 epochs"),
        (("--workers", "1,8", "--batch-size", "4"), "received 4"),
        (("--set", "cluster.strategy=mirrored"), "cluster.strategy"),
        (("--set", "training.learing_rate=0.1"), "training.learning_rate"),
        (("no-such.yaml",), "no-such.yaml"),
        (("--workers", "2", "--collective", "nccl", "--set", "cluster.device=cpu"), "nccl"),
        (("--output", "taken"), "taken"),
        (("--output", "/dev/null/x"), "choose another --output"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_usage_starts_nothing(
    stand_in: list[tuple[int, str]], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    Path("taken").mkdir()
    Path("taken/config.yaml").write_text("earlier results")
    assert _exit_code(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert "Traceback" not in err
    assert stand_in == []
    assert [path.name for path in Path().iterdir()] == ["taken"]
    assert Path("taken/config.yaml").read_text() == "earlier results"


def test_more_workers_than_cores_are_allowed_and_said(
    stand_in: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(["bench", "--workers", "1,64", "--batch-size", "256", "--collective", "shm", "-q"]) == 0
    assert "oversubscribed: 64 workers take turns on" in capsys.readouterr().out
    assert len(list(Path("runs").glob("*-bench/bench.json"))) == 1


def test_a_configuration_of_many_epochs_is_cut_short_and_says_so(
    stand_in: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("long.yaml").write_text("training:\n  epochs: 100\n")
    assert _exit_code(["bench", "long.yaml", *SMALL[1:]]) == 0
    assert results()["settings"]["epochs"] == 5
    assert "5 of the 100 configured epochs" in capsys.readouterr().err


def test_epochs_that_are_asked_for_are_run(stand_in: list[tuple[int, str]]) -> None:
    assert _exit_code([*SMALL, "--epochs", "7"]) == 0
    assert results()["settings"]["epochs"] == 7


def test_other_programs_are_named_where_they_took_much(
    stand_in: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_trial(bench: Bench, trial: Trial, number: int, inbox: Any, on_tick: Any) -> Measurement:
        return measurement(trial, number, 1000.0 * trial.workers, foreign_cores=50.0)

    monkeypatch.setattr(job, "run_trial", run_trial)
    assert _exit_code([*SMALL]) == 0
    out = capsys.readouterr().out
    assert "warning: other programs kept 50.0 of" in out
    assert out.splitlines()[-1].startswith("advice: 2 workers (measured while other programs kept this machine busy")
