"""Going on with a run of several hosts: what rank 0 finds and tells, what the others make of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tfmp.agent.cluster_resume import GoingOn, find_earlier, finished_message, point_from_leader
from tfmp.checkpoint.format import Checkpoint, save_checkpoint
from tfmp.config import Resolved, resolve
from tfmp.errors import TfmpError, UsageError
from tfmp.rundir.layout import RunFolder


def settings(folder: Path | None, *sets: str) -> Resolved:
    return resolve(None, [*sets, *([f"run.dir={folder}"] if folder else [])])


def a_run(path: Path) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    folder.config.write_text(resolve(None, []).to_yaml())
    return folder


def a_checkpoint(folder: RunFolder, epoch: int) -> Path:
    facts = {"history": [{"epoch": 1}], "collective": "ring", "replicas": 2}
    return save_checkpoint(folder.checkpoints, Checkpoint(epoch, 0, 10, [np.arange(3.0)], facts))


def find(resolved: Resolved, folder: Path | None, rank: int = 0, wanted: bool = True) -> tuple[GoingOn, list[str]]:
    said: list[str] = []
    return find_earlier(resolved, folder, rank=rank, wanted=wanted, tell=said.append), said


def test_without_a_run_it_is_a_new_one_and_rank_0_alone_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert find(settings(folder), folder) == (GoingOn(), [f"nothing to resume in {folder}: a new run"])
    assert find(settings(folder), folder, rank=1) == (GoingOn(), [])
    assert GoingOn().to_message() == {}


def test_nothing_is_looked_for_unless_wanted(tmp_path: Path) -> None:
    a_run(tmp_path)
    assert find(settings(tmp_path), tmp_path, wanted=False) == (GoingOn(), [])


def test_a_run_that_goes_on_needs_a_folder() -> None:
    with pytest.raises(UsageError) as caught:
        find(settings(None), None)
    assert caught.value.render() == (
        "error: expected a run folder to resume, received none\n  where: --resume\n  try:   --run-dir DIR names it"
    )


def test_rank_0_names_the_newest_checkpoint_and_the_others_read_it(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    a_checkpoint(folder, 1)
    path = a_checkpoint(folder, 2)
    found, _ = find(settings(tmp_path), tmp_path)
    message = json.loads(json.dumps(found.to_message()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert message == {"checkpoint": {"file": "step-0000000020.npz", "sha256": digest}}
    point = point_from_leader(message, tmp_path)
    assert point is not None
    assert (point.path, point.checkpoint.global_step) == (path, 20)
    assert finished_message(message) is None


def test_from_the_beginning_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    assert find(settings(tmp_path), tmp_path)[0] == GoingOn(folder)
    assert point_from_leader({}, tmp_path) is None


def test_a_member_finds_its_own_folder_and_decides_nothing(tmp_path: Path) -> None:
    own = a_run(tmp_path / "worker-1")
    a_checkpoint(own, 1)
    assert find(settings(tmp_path), own.path, rank=1)[0] == GoingOn(own)


def test_a_run_that_has_ended_well_is_told_to_all(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    folder.summary.write_text('{"status": "done", "epochs": 5}')
    folder.model.write_bytes(b"")
    found, _ = find(settings(tmp_path), tmp_path)
    assert found.to_message() == {"finished": 5}
    assert finished_message(found.to_message()) == 5
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
        point_from_leader(told, elsewhere)
    assert caught.value.what == ("the checkpoint from which worker 0 resumes cannot be read: No such file or directory")
    assert caught.value.where == str(elsewhere / "checkpoints" / path.name)
    assert caught.value.hint == "to resume, all workers need one --run-dir, on a file system that they share"
    with pytest.raises(TfmpError, match="expected its run folder, received none"):
        point_from_leader(told, None)
    path.write_bytes(b"another")
    with pytest.raises(TfmpError, match="this checkpoint is not the one from which worker 0 resumes"):
        point_from_leader(told, tmp_path)


def test_a_name_from_the_network_leads_nowhere_else(tmp_path: Path) -> None:
    told = {"checkpoint": {"file": "../../etc/passwd", "sha256": ""}}
    with pytest.raises(TfmpError) as caught:
        point_from_leader(told, tmp_path)
    assert caught.value.where == str(tmp_path / "checkpoints" / "passwd")
