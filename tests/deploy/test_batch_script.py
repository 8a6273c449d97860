"""The batch script that ``tfmp generate slurm`` writes, run by a real Slurm on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_program

_SCRIPT = ROOT / "tests" / "deploy" / "start-slurm.sh"
_ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def slurm() -> None:
    """A Slurm that answers; started where there is none."""
    if shutil.which("scontrol") and " UP" in _run("scontrol", "ping", ok=False):
        return
    if os.geteuid() != 0 or not _SCRIPT.exists() or shutil.which("apt-get") is None:
        pytest.skip("no Slurm answers, and only root on a Debian machine can start one")
    done = subprocess.run([_SCRIPT, "up"], capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        pytest.skip(f"no Slurm can be started here: {done.stderr[-300:]}")


def _run(*command: object, cwd: Path | None = None, ok: bool = True) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=cwd, env=_ENV, timeout=240
    )
    assert not ok or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def _generate(folder: Path, *arguments: object) -> Path:
    done = run_program("generate", "slurm", *arguments, "--memory", 1, "--output", folder / "job.sbatch")
    assert done.code == 0, done.text
    return folder / "job.sbatch"


@pytest.fixture
def job(slurm: None, tmp_path: Path) -> Iterator[list[str]]:
    """Jobs to be cancelled at the end."""
    numbers: list[str] = []
    yield numbers
    for number in numbers:
        _run("scancel", "--signal=KILL", "--full", number, ok=False)
        _run("scancel", number, ok=False)


def _submit(script: Path, jobs: list[str]) -> str:
    number = _run("sbatch", "--parsable", script.name, cwd=script.parent).strip().partition(";")[0]
    jobs.append(number)
    return number


def _log(script: Path, number: str) -> str:
    found = list(script.parent.glob(f"tfmp-*-{number}.log"))
    return found[0].read_text(errors="replace") if found else ""


def _until(script: Path, number: str, text: str, timeout_s: float = 120, after: int = 0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while text not in _log(script, number)[after:]:
        assert time.monotonic() < deadline_s, (
            f"waited in vain for {text}\n{_log(script, number)}\n{_run('scontrol', 'show', 'job', number, ok=False)}"
        )
        time.sleep(0.3)


def test_slurm_takes_the_script_and_it_trains(job: list[str], tmp_path: Path) -> None:
    script = _generate(tmp_path, ROOT / "configs" / "smoke.yaml", "--workers", 2)
    _run("sbatch", "--test-only", script.name, cwd=tmp_path)
    number = _submit(script, job)
    _until(script, number, "weights_sha256")
    folder = tmp_path / "runs" / f"smoke-{number}"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["workers"], summary["collective"]) == (
        "done",
        2,
        "shm",
    )  # both nodes are this machine
    assert (folder / "worker-1" / "logs" / "attempt-0" / "worker-1.log").exists()
    deadline_s = time.monotonic() + 30
    while "JobState=COMPLETED" not in (state := _run("scontrol", "show", "job", number)):
        assert time.monotonic() < deadline_s, state
        time.sleep(0.3)
    assert "ExitCode=0:0" in state


def test_a_worker_that_dies_costs_an_attempt_and_scancel_saves(job: list[str], tmp_path: Path) -> None:
    long = ("--set", "training.epochs=100000", "--set", "run.tensorboard=no")
    script = _generate(tmp_path, ROOT / "configs" / "smoke.yaml", "--workers", 2, *long)
    number = _submit(script, job)
    _until(script, number, "epoch 2/")
    folder = tmp_path / "runs" / f"smoke-{number}"
    (pid,) = re.findall(r"pid (\d+) replicas", (folder / "worker-1/logs/attempt-0/worker-1.log").read_text())
    os.kill(int(pid), 9)
    _until(script, number, "error: worker 1 failed: signal 9 (SIGKILL)")
    _until(script, number, "resuming at step ")
    _until(script, number, "epoch ", after=_log(script, number).index("resuming at step "))
    before = sorted((folder / "checkpoints").iterdir())
    _run("scancel", number)
    _until(script, number, "interrupted by SIGTERM")
    deadline_s = time.monotonic() + 30
    while "JobState=CANCELLED" not in _run("scontrol", "show", "job", number):
        assert time.monotonic() < deadline_s
        time.sleep(0.3)
    assert sorted((folder / "checkpoints").iterdir())[-1] >= before[-1]
