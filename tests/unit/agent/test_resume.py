"""Going on with a run: its settings, its folder, its record."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfmp.agent import resume
from tfmp.checkpoint.format import Checkpoint, save_checkpoint
from tfmp.config import RunConfig, resolve
from tfmp.config.identity import changed, identity
from tfmp.errors import UsageError
from tfmp.events import decode
from tfmp.rundir import recorder as recorder_module
from tfmp.rundir.claim import locked
from tfmp.rundir.layout import RunFolder
from tfmp.rundir.recorder import Recorder


def run_in(path: Path, *sets: str, **summary: Any) -> RunFolder:
    folder = RunFolder(path)
    (folder.config).write_text(resolve(None, sets).to_yaml())
    if summary:
        folder.summary.write_text(json.dumps(summary))
        folder.model.write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    "setting", ["training.seed=1", "training.batch_size=64", "model.units=[64]", "data.limit_train=1000"]
)
def test_what_decides_the_numbers_may_not_change(tmp_path: Path, setting: str) -> None:
    folder = run_in(tmp_path)
    with pytest.raises(UsageError) as caught:
        resume.check_same_run(folder, resolve(None, [setting]))
    assert setting.partition("=")[0] in str(caught.value)
    assert "--set" in str(caught.value)


def test_what_does_not_decide_them_may(tmp_path: Path) -> None:
    folder = run_in(tmp_path)
    free = ["training.epochs=9", "training.steps_per_execution=3", "cluster.workers=3", "run.max_restarts=0"]
    now = resolve(None, free)
    resume.check_same_run(folder, now)
    resume.update_saved_config(folder, now)
    assert "epochs: 9" in folder.config.read_text()


def test_keys_of_another_version_are_no_difference() -> None:
    config = identity(RunConfig())
    assert changed({**config, "model.gone": 1}, config) == []
    assert changed(config, {**config, "model.new": 1}) == []


def test_a_finished_run_is_finished_unless_more_epochs_are_asked_for(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "training.epochs=5", status="done", epochs=3)  # three: it stopped early
    assert resume.finished_epochs(folder, resolve(None, ["training.epochs=5"]).config) == 3
    assert resume.finished_epochs(folder, resolve(None, ["training.epochs=2"]).config) == 3
    assert resume.finished_epochs(folder, resolve(None, ["training.epochs=6"]).config) is None
    folder.summary.write_text(json.dumps({"status": "interrupted", "epochs": 3}))
    assert resume.finished_epochs(folder, resolve(None, ["training.epochs=5"]).config) is None


def test_without_a_run_folder_the_last_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--run-dir DIR"):
        resume.settings_file(None)
    for age, name in enumerate(["b", "a"]):
        (tmp_path / "runs" / name).mkdir(parents=True)
        config = tmp_path / "runs" / name / "config.yaml"
        config.write_text("")
        os.utime(config, (age, age))
    with pytest.raises(UsageError, match="runs/a was the last"):
        resume.settings_file(None)
    assert resume.settings_file(Path("runs/b")) == Path("runs/b/config.yaml")
    assert resume.settings_file(Path("runs/c")) is None


@pytest.mark.parametrize(
    ("asked", "replicas", "expected"), [("auto", 2, "ring"), ("auto", 3, "auto"), ("nccl", 2, "nccl")]
)
def test_auto_means_the_collective_that_the_run_began_with(
    tmp_path: Path, asked: str, replicas: int, expected: str
) -> None:
    folder = run_in(tmp_path)
    facts = {"replicas": 2, "collective": "ring"}
    save_checkpoint(folder.checkpoints, Checkpoint(1, 0, 5, [np.zeros(1)], facts))
    config = resolve(None, [f"cluster.collective={asked}"]).config
    found = resume.same_collective(config, resume.choose(folder, print), replicas)
    assert found.cluster.collective == expected


def test_two_launchers_never_share_a_run_folder(tmp_path: Path) -> None:
    with locked(RunFolder(tmp_path)), pytest.raises(UsageError, match="going on"), locked(RunFolder(tmp_path)):
        pass
    with locked(RunFolder(tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == []


def epoch(number: int, **values: Any) -> dict[str, Any]:
    return {"epoch": number, "val_loss": 0.5, "loss": number / 10, "step": number * 7, **values}


def lines(folder: RunFolder) -> list[int]:
    return [json.loads(line)["epoch"] for line in folder.metrics.read_text().splitlines()]


def test_metrics_have_each_epoch_once_whatever_was_lost(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = Recorder(folder, lambda: 0.0, 0.0)
    recorder.new_attempt(())
    assert not folder.metrics.exists()
    for number in (1, 2, 3):
        recorder.on_event(0, decode({"event": "epoch", **epoch(number)}))
        recorder.on_event(1, decode({"event": "epoch", **epoch(number)}))
    assert lines(folder) == [1, 2, 3]
    recorder.new_attempt([epoch(1)])
    recorder.on_event(0, decode({"event": "epoch", **epoch(2)}))
    assert lines(folder) == [1, 2]
    Recorder(folder, lambda: 0.0, 0.0).new_attempt([epoch(1), epoch(2), epoch(3)])
    assert lines(folder) == [1, 2, 3]
    assert list(json.loads(folder.metrics.read_text().splitlines()[2])) == ["epoch", "loss", "val_loss", "step"]
    recorder.new_attempt(())
    assert lines(folder) == []


def test_a_full_disk_costs_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    recorder = Recorder(folder, lambda: 0.0, 0.0)
    recorder.on_event(0, decode({"event": "epoch", **epoch(1)}))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "append_json_line", full)
        patch.setattr(recorder_module, "write_text", full)
        recorder.on_event(0, decode({"event": "epoch", **epoch(2)}))
        recorder.on_event(0, decode({"event": "epoch", **epoch(3)}))
    assert lines(folder) == [1]
    recorder.catch_up()
    assert lines(folder) == [1, 2, 3]


def test_attempts_are_counted_and_half_written_files_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.next_attempt() == 0
    folder.log(0, 1).parent.mkdir(parents=True)
    folder.log(10, 0).parent.mkdir()
    (folder.logs / "attempt-old").mkdir()
    assert folder.next_attempt() == 11
    folder.checkpoints.mkdir()
    for path in (folder.checkpoints / ".step-0000000001.77.tmp.npz", tmp_path / ".model.77.tmp.keras"):
        path.write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"the user's")
    folder.remove_temporaries()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "checkpoints", "logs"]
    assert list(folder.checkpoints.iterdir()) == []
