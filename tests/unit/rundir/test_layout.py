"""Files of the run folder appear whole or not at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfmp.errors import UsageError
from tfmp.rundir.claim import claim_run_folder, default_run_dir
from tfmp.rundir.layout import RunFolder, append_json_line, atomic_write, finite, write_json


def test_a_failed_write_leaves_the_previous_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "model.keras"
    target.write_text("previous")

    def fail() -> None:
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "previous"
    assert list(tmp_path.iterdir()) == [target]
    with atomic_write(target) as temporary:
        assert temporary.suffix == ".keras", "Keras insists on it"
        temporary.write_text("next")
    assert target.read_text() == "next"
    assert list(tmp_path.iterdir()) == [target]


def test_kill_9_in_the_middle_of_a_write_leaves_the_previous_file(tmp_path: Path) -> None:
    target = tmp_path / "model.keras"
    target.write_text("previous")
    code = (
        "import sys, time; from pathlib import Path; from tfmp.rundir.layout import atomic_write\n"
        f"with atomic_write(Path({str(target)!r})) as t:\n"
        "    t.write_text('half'); print('writing', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert target.read_text() == "previous"


def test_json_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": float("nan"), "list": [1.5, float("inf")], "text": "x"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": None, "list": [1.5, None], "text": "x"}
    append_json_line(tmp_path / "b.jsonl", {"epoch": 1})
    append_json_line(tmp_path / "b.jsonl", {"epoch": 2})
    assert (tmp_path / "b.jsonl").read_text() == '{"epoch": 1}\n{"epoch": 2}\n'
    assert finite({"a": (float("-inf"),)}) == {"a": [None]}


def test_a_run_folder_belongs_to_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    assert claim_run_folder(folder, lambda: folder, "x: 1\n").config.read_text() == "x: 1\n"
    with pytest.raises(UsageError, match="already holds a run"):
        claim_run_folder(folder, lambda: folder, "x: 2\n")
    assert (folder / "config.yaml").read_text() == "x: 1\n"
    assert claim_run_folder(None, lambda: folder, "x: 3\n").path == tmp_path / "runs" / "a-2"
    assert claim_run_folder(None, lambda: folder, "x: 4\n").path == tmp_path / "runs" / "a-3"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml"]


def test_two_runs_at_the_same_moment_never_share_a_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tfmp.rundir.claim import claim_run_folder\n"
        f"print(claim_run_folder(None, lambda: Path({str(tmp_path / 'run')!r}), 'x').path.name)"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) for _ in range(4)]
    names = {process.communicate()[0].decode().strip() for process in started}
    assert names == {"run", "run-2", "run-3", "run-4"}


def test_the_default_name_says_when_and_what() -> None:
    now = datetime(2026, 11, 30, 6, 5, 4)
    assert default_run_dir(None, None, "mnist", now) == Path("runs/20261130-060504-mnist")
    assert default_run_dir(None, Path("configs/smoke.yaml"), "mnist", now) == Path("runs/20261130-060504-smoke")
    assert default_run_dir("a b/c", Path("x.yaml"), "csv", now) == Path("runs/20261130-060504-a-b-c")


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        claim_run_folder(Path("/proc/run"), lambda: Path("/proc/run"), "x")
    assert caught.value.where == "/proc/run"
    assert caught.value.exit_code == 2


def test_paths_of_the_run_folder() -> None:
    assert RunFolder(Path("r")).log(0, 3) == Path("r/logs/attempt-0/worker-3.log")
