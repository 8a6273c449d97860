"""Resuming a run: its settings, its folder, its record, and over several hosts what rank 0 tells the others."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfmp.agent import resume
from tfmp.checkpoint import format as format_module
from tfmp.checkpoint.format import Checkpoint, CheckpointHeader, peek, save
from tfmp.config import Resolved, RunConfig, resolve
from tfmp.config.identity import changed, identity
from tfmp.errors import TfmpError, UsageError
from tfmp.events import decode
from tfmp.planning.task import ResumeFrom
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


def test_other_samples_than_those_of_the_run_are_refused(tmp_path: Path) -> None:
    folder = run_in(tmp_path)
    save(folder.checkpoints, Checkpoint(1, 0, 5, {"data_sha256": "a" * 64}, arrays=[np.zeros(1)]))
    point = resume.choose(folder, print)
    resume.check_same_data(point, "a" * 64)
    resume.check_same_data(None, "b" * 64)
    with pytest.raises(
        UsageError, match="not those that the run was trained on: expected data aaaaaaaaaaaa, received b"
    ):
        resume.check_same_data(point, "b" * 64)
    save(folder.checkpoints, Checkpoint(2, 0, 5, {}, arrays=[np.zeros(1)]))  # of an older tfmp
    resume.check_same_data(resume.choose(folder, print), "b" * 64)


@pytest.mark.parametrize(
    ("asked", "replicas", "expected"), [("auto", 2, "ring"), ("auto", 3, "auto"), ("nccl", 2, "nccl")]
)
def test_auto_means_the_collective_that_the_run_began_with(
    tmp_path: Path, asked: str, replicas: int, expected: str
) -> None:
    folder = run_in(tmp_path)
    facts = {"replicas": 2, "collective": "ring"}
    save(folder.checkpoints, Checkpoint(1, 0, 5, facts, arrays=[np.zeros(1)]))
    config = resolve(None, [f"cluster.collective={asked}"]).config
    found = resume.same_collective(config, resume.choose(folder, print), replicas)
    assert found.cluster.collective == expected


def test_two_launchers_never_share_a_run_folder(tmp_path: Path) -> None:
    running = "another tfmp is running in this folder"
    with locked(RunFolder(tmp_path)), pytest.raises(UsageError, match=running), locked(RunFolder(tmp_path)):
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


def settings(folder: Path | None, *sets: str) -> Resolved:
    return resolve(None, [*sets, *([f"run.dir={folder}"] if folder else [])])


def a_run(path: Path) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    folder.config.write_text(resolve(None, []).to_yaml())
    return folder


def a_checkpoint(folder: RunFolder, epoch: int) -> Path:
    facts = {"history": [{"epoch": 1}], "collective": "ring", "replicas": 2}
    return save(folder.checkpoints, Checkpoint(epoch, 0, 10, facts, arrays=[np.arange(3.0)]))


def find(
    resolved: Resolved, folder: Path | None, rank: int = 0, wanted: bool = True
) -> tuple[resume.EarlierRun, list[str]]:
    said: list[str] = []
    return resume.find_earlier(resolved, folder, rank=rank, wanted=wanted, tell=said.append), said


def test_without_a_run_it_is_a_new_one_and_rank_0_alone_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert find(settings(folder), folder) == (resume.EarlierRun(), [f"nothing to resume in {folder}: a new run"])
    assert find(settings(folder), folder, rank=1) == (resume.EarlierRun(), [])
    assert resume.EarlierRun().to_message() == {}


def test_nothing_is_looked_for_unless_wanted(tmp_path: Path) -> None:
    a_run(tmp_path)
    assert find(settings(tmp_path), tmp_path, wanted=False) == (resume.EarlierRun(), [])


def test_a_run_to_resume_needs_a_folder() -> None:
    with pytest.raises(UsageError) as caught:
        find(settings(None), None)
    assert caught.value.render() == (
        "error: expected a run folder to resume, received none\n  where: --resume\n  try:   --run-dir DIR names it"
    )


def test_rank_0_names_the_newest_checkpoint_and_the_others_verify_it(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    a_checkpoint(folder, 1)
    path = a_checkpoint(folder, 2)
    found, _ = find(settings(tmp_path), tmp_path)
    message = json.loads(json.dumps(found.to_message()))
    assert message == {"checkpoint": {"file": "step-0000000020.npz", "sha256": peek(path).digest}}
    point = resume.point_from_leader(message, tmp_path)
    assert point is not None
    assert (point.path, point.header.global_step) == (path, 20)
    assert resume.finished_message(message) is None


def test_from_the_beginning_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    assert find(settings(tmp_path), tmp_path)[0] == resume.EarlierRun(folder)
    assert resume.point_from_leader({}, tmp_path) is None


def test_a_member_finds_its_own_folder_and_decides_nothing(tmp_path: Path) -> None:
    own = a_run(tmp_path / "worker-1")
    a_checkpoint(own, 1)
    assert find(settings(tmp_path), own.path, rank=1)[0] == resume.EarlierRun(own)


def test_a_run_that_has_ended_well_is_told_to_all(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    folder.summary.write_text('{"status": "done", "epochs": 5}')
    folder.model.write_bytes(b"")
    found, _ = find(settings(tmp_path), tmp_path)
    assert found.to_message() == {"finished": 5}
    assert resume.finished_message(found.to_message()) == 5
    more, _ = find(settings(tmp_path, "training.epochs=6"), tmp_path)
    assert more.to_message() == {}


def test_other_settings_are_refused(tmp_path: Path) -> None:
    a_run(tmp_path)
    for rank in (0, 1):
        with pytest.raises(UsageError, match=r"training\.seed decides the numbers of a run"):
            find(settings(tmp_path, "training.seed=1"), tmp_path, rank=rank)


def test_a_checkpoint_that_cannot_be_read_or_is_another_is_named(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    path = a_checkpoint(folder, 1)
    told = find(settings(tmp_path), tmp_path)[0].to_message()
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(TfmpError) as caught:
        resume.point_from_leader(told, elsewhere)
    assert caught.value.what == ("the checkpoint from which worker 0 resumes cannot be read: No such file or directory")
    assert caught.value.where == str(elsewhere / "checkpoints" / path.name)
    assert caught.value.hint == "to resume, all workers need one --run-dir, on a file system that they share"
    with pytest.raises(TfmpError, match="expected its run folder, received none"):
        resume.point_from_leader(told, None)
    path.write_bytes(b"another")
    with pytest.raises(TfmpError, match="this checkpoint is not the one from which worker 0 resumes"):
        resume.point_from_leader(told, tmp_path)


def test_a_name_from_the_network_leads_nowhere_else(tmp_path: Path) -> None:
    told = {"checkpoint": {"file": "../../etc/passwd", "sha256": ""}}
    with pytest.raises(TfmpError) as caught:
        resume.point_from_leader(told, tmp_path)
    assert caught.value.where == str(tmp_path / "checkpoints" / "passwd")


def test_each_host_reads_the_file_once_and_never_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_run(tmp_path)
    path = a_checkpoint(folder, 1)
    verified: list[Path] = []
    verify = format_module.verify

    def counting(path: Path) -> CheckpointHeader:
        verified.append(path)
        return verify(path)

    monkeypatch.setattr(np, "load", None)
    monkeypatch.setattr(format_module, "load", None)
    monkeypatch.setattr(format_module, "verify", counting)
    monkeypatch.setattr(resume, "verify", counting)
    found, _ = find(settings(tmp_path), tmp_path)
    message = found.to_message()
    assert verified == [path]
    point = resume.point_from_leader(message, tmp_path)
    assert verified == [path, path]
    assert point == found.point
    assert point is not None
    assert point.to_task() == ResumeFrom(path, peek(path).digest)
    assert not hasattr(point.header, "arrays")


def test_a_sound_checkpoint_with_other_content_is_another(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    path = a_checkpoint(folder, 1)
    told = find(settings(tmp_path), tmp_path)[0].to_message()
    header = peek(path)
    save(folder.checkpoints, Checkpoint(1, 0, 10, header.facts, arrays=[np.arange(3.0) + 1]))
    with pytest.raises(TfmpError, match="this checkpoint is not the one from which worker 0 resumes"):
        resume.point_from_leader(told, tmp_path)
