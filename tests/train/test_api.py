"""`tfmp.train` from Python: results and errors as objects."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tfmp
from tests.conftest import ROOT, Run
from tfmp.errors import TfmpError, UsageError

SMOKE = ROOT / "configs" / "smoke.yaml"


def test_it_returns_what_the_command_writes(tmp_path: Path, trained: Callable[..., Run]) -> None:
    result = tfmp.train(SMOKE, workers=2, run_dir=tmp_path / "run", verbosity=-1)
    assert result.run_dir == tmp_path / "run"
    assert (result.run_dir / "model.keras").is_file()
    expected = trained("configs/smoke.yaml", "--workers", 2).summary
    assert result.summary.weights_sha256 == expected["weights_sha256"]
    assert result.summary.values["val_accuracy"] == expected["val_accuracy"]
    assert [epoch.values["val_accuracy"] for epoch in result.metrics] == [expected["val_accuracy"]]
    with pytest.raises(UsageError, match="already holds a run"):
        tfmp.train(SMOKE, workers=2, run_dir=tmp_path / "run")
    again = tfmp.train(SMOKE, workers=2, run_dir=tmp_path / "run", resume=True)  # nothing is left to do
    assert again.summary == result.summary


def test_a_failure_is_an_exception_with_the_text_of_the_command(tmp_path: Path) -> None:
    settings = {"training.callbacks": ["tests.train.programs.hooks:worker_1_raises"], "run.max_restarts": 0}
    with pytest.raises(TfmpError, match="RuntimeError: the disk of worker 1 is on fire") as caught:
        tfmp.train(SMOKE, workers=2, run_dir=tmp_path / "run", settings=settings, verbosity=-1)
    assert str(caught.value.where).startswith("tests/train/programs/hooks.py:")
    assert caught.value.exit_code == 1


def test_wrong_settings_name_the_argument() -> None:
    with pytest.raises(UsageError) as caught:
        tfmp.train(workers=0)
    assert caught.value.where == "workers="
    with pytest.raises(UsageError, match="expected"):
        tfmp.train(settings={"training.epochs": "many"})


def test_another_thread_is_refused_by_name() -> None:
    found: list[Exception] = []

    def call() -> None:
        try:
            tfmp.train()
        except UsageError as error:
            found.append(error)

    thread = threading.Thread(target=call, name="side")
    thread.start()
    thread.join()
    assert "tfmp.train in thread 'side'" in str(found[0])


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, tfmp, json; print(json.dumps([m for m in ('pydantic', 'tensorflow') if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout) == []
