"""Clusters that go on: the same command line starts a run, resumes it, and says when nothing is left to do."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.cluster.worker_support import Launcher, free_ports, launchers
from tests.conftest import Run

_ARGUMENTS = ("configs/smoke.yaml", "--epochs", "12", "--collective", "ring", "--set", "run.tensorboard=no")


def _start(start: object, folder: Path, ports: list[int], rank: int, *more: object) -> Launcher:
    workers = ",".join(f"127.0.0.1:{port}" for port in ports)
    options = ("--workers", workers, "--index", rank, "--resume", *more)
    # The launchers of worker_support have a folder each; here all of a run share one, as containers share a volume.
    return start(f"w{rank}", *_ARGUMENTS, *options, shared=folder)  # type: ignore[operator]


def _sha(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["weights_sha256"])


def test_the_same_command_starts_resumes_and_ends_a_run(tmp_path: Path, trained: object) -> None:
    folder = tmp_path / "run"
    ports = free_ports(2)
    with launchers(tmp_path) as start:
        first = [_start(start, folder, ports, rank) for rank in range(2)]
        first[0].until("epoch 3/")
        first[1].send(signal.SIGTERM)  # all leave after the same step; the one that was asked is named, not the others
        assert [launcher.wait(20) for launcher in first] == [143, 143], first[0].text + first[1].text
        assert f"nothing to resume in {folder}: a new run" in first[0].text
        assert "error: worker 1 was interrupted by SIGTERM" in first[0].text
        assert (folder / "failure.json").exists()
        second = [_start(start, folder, ports, rank) for rank in range(2)]
        assert [launcher.wait() for launcher in second] == [0, 0], second[0].text + second[1].text
        point = re.search(r"^resuming at (step .*)$", second[0].text, re.M)
        assert point is not None
        assert int(point[1].split()[1]) >= 16, "the steps of two epochs"
        assert f"resuming at {point[1]}\n" in second[1].text
        assert not (folder / "failure.json").exists()
        # The settings, addresses among them, are in the folder.
        third = [start(f"w{rank}", "--index", rank, "--resume", shared=folder) for rank in range(2)]
        assert [launcher.wait() for launcher in third] == [0, 0], third[0].text + third[1].text
        for launcher in third:
            assert f"nothing left to do: {folder} finished after 12 epochs" in launcher.text
    whole: Run = trained(*_ARGUMENTS)  # type: ignore[operator]
    assert _sha(folder) == whole.summary["weights_sha256"], "as if it had never been interrupted"
    assert [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [
        *range(1, 13)
    ]
    own = folder / "worker-1"
    assert {path.name for path in own.iterdir()} == {"config.yaml", "events.jsonl", "logs"}
    assert {path.name for path in (own / "logs").iterdir()} == {"attempt-0", "attempt-1"}


def test_a_worker_that_does_not_share_the_run_folder_ends_the_group_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ports = free_ports(2)
    with launchers(tmp_path) as start:
        first = [_start(start, folder, ports, rank) for rank in range(2)]
        first[0].until("epoch 3/")
        first[0].send(signal.SIGTERM)
        assert [launcher.wait(20) for launcher in first] == [143, 143]
        elsewhere = tmp_path / "elsewhere"
        second = [_start(start, folder, ports, 0), _start(start, elsewhere, ports, 1)]
        assert [launcher.wait(30) for launcher in second] == [1, 1], second[0].text + second[1].text
    what = "the checkpoint from which worker 0 resumes cannot be read: No such file or directory"
    assert f"error: {what}" in second[1].text
    assert f"error: worker 1 could not start: {what}" in second[0].text
    assert "all workers need one --run-dir, on a file system that they share" in second[0].text


@pytest.mark.parametrize("rank", [0, 1])
def test_without_resume_a_run_is_not_touched(tmp_path: Path, rank: int) -> None:
    folder = tmp_path / "run"
    own = folder if rank == 0 else folder / "worker-1"
    own.mkdir(parents=True)
    (own / "config.yaml").write_text("an earlier run")
    with launchers(tmp_path) as start:
        workers = "127.0.0.1:1,127.0.0.1:2"
        one = start("w", *_ARGUMENTS, "--workers", workers, "--index", rank, shared=folder)
        assert one.wait(20) == 2
    assert "go on with that run: --resume" in one.text
    assert (own / "config.yaml").read_text() == "an earlier run"
