"""`tfmp launch` as a user types it: culprits, restarts, whose lines are shown, other people's programs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, Done, run_program

_HEAD = "import os, sys, time; i = int(os.environ['RANK']); attempt = int(os.environ['TFMP_ATTEMPT'])\n"


def launch(code: str, *options: object, workers: int = 4) -> Done:
    return run_program("launch", "-n", workers, *options, "--", sys.executable, "-S", "-c", _HEAD + code)


def test_one_that_exits_ends_all_with_its_code_and_is_named() -> None:
    done = launch("sys.exit(7) if i == 2 else time.sleep(600)")
    assert done.code == 7
    assert done.seconds <= 5  # two on a machine that does nothing else
    assert "worker 2 failed first: exit code 7" in done.err
    assert "taken along: worker 0 (stopped by tfmp), worker 1 (stopped by tfmp), worker 3 (stopped by tfmp)" in done.err


def test_a_traceback_beats_an_earlier_exit_code() -> None:
    done = launch("os._exit(1) if i == 0 else None; time.sleep(0.3)\nif i == 1: raise LookupError('no label')\n"
                  "time.sleep(600)")  # fmt: skip
    assert (done.code, "worker 1 failed first" in done.err) == (1, True)
    assert "  | LookupError: no label" in done.err
    assert "worker 0 (exit code 1, after it)" in done.err


def test_a_killed_one_has_memory_evidence() -> None:
    done = launch("time.sleep(0.6)\nif i == 1: os.kill(os.getpid(), 9)\ntime.sleep(600)", workers=2)
    assert done.code == 137
    assert "worker 1 failed first: signal 9 (SIGKILL)" in done.err
    assert re.search(r"cause of death: (killed from outside|unknown)", done.err)
    assert "resident memory: " in done.err


def test_the_whole_group_starts_again_and_each_attempt_has_its_logs(tmp_path: Path) -> None:
    code = "print('attempt', attempt); sys.exit(3 if i == 1 and attempt < 2 else 0)"
    done = launch(code, "--max-restarts", 2, "--log-dir", tmp_path, "--log-worker", 0, workers=2)
    assert done.code == 0, done.text
    assert re.findall(r"restarting in .* s: restart \d of \d", done.err) == [
        "restarting in 1.0 s: restart 1 of 2", "restarting in 2.0 s: restart 2 of 2",
    ]  # fmt: skip
    assert done.out.count("[worker 0] attempt") >= 1
    assert "[worker 1]" not in done.out
    for attempt in range(3):
        assert (tmp_path / f"attempt-{attempt}" / "worker-1.log").read_text() == f"attempt {attempt}\n"


def test_restarts_end() -> None:
    done = launch("sys.exit(3)", "--max-restarts", 1, workers=1)
    assert done.code == 3
    assert "the restart is used up" in done.err
    done = launch("import nosuch", "--max-restarts", 3, workers=1)
    assert (done.code, done.err.count("ModuleNotFoundError")) == (1, 4)  # two attempts: printed, and in the block
    assert "the same error twice: not restarted" in done.err


def test_ctrl_c_ends_the_wait_for_a_restart() -> None:
    command = [sys.executable, "-m", "tfmp", "launch", "-n", "1", "--max-restarts", "3", "--", "sh", "-c", "exit 3"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=dict(os.environ))
    assert process.stderr is not None
    while "restart 2 of 3" not in process.stderr.readline():
        assert process.poll() is None
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, time.monotonic() - began_s < 2) == (130, True)
    assert "interrupted by SIGINT" in err


def test_gpus_are_shared_out() -> None:
    show = ("--", "sh", "-c", 'echo "[${CUDA_VISIBLE_DEVICES-unset}]"')
    done = run_program("launch", "-n", 2, *show, env={"CUDA_VISIBLE_DEVICES": "4,7"})
    assert sorted(done.out.splitlines()) == ["[worker 0] [4]", "[worker 1] [7]"]
    done = run_program("launch", "-n", 2, *show, env={"CUDA_VISIBLE_DEVICES": ""})
    assert sorted(done.out.splitlines()) == ["[worker 0] []", "[worker 1] []"]


def test_a_log_folder_that_cannot_be_made_is_named() -> None:
    done = run_program("launch", "-n", 2, "-q", "--log-dir", "/dev/null/x", "--", "true")
    assert done.code == 2, "before any process is started"
    assert "where: --log-dir /dev/null/x" in done.err


def test_a_reader_that_goes_away_ends_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tfmp", "launch", "-n", "1", "--", "yes"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "[worker 0] y\n"
    process.stdout.close()
    assert process.stderr.readline() == "note: standard output was closed by its reader; the run continues\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.stderr.read() == "interrupted by SIGTERM\n"
    assert process.wait(20) == 143
    process.stderr.close()


@pytest.mark.parametrize("ranks", ["4", "0,x", "-1", ""])
def test_ranks_that_are_none_are_refused(ranks: str) -> None:
    done = launch("pass", "--log-worker", ranks)
    assert done.code == 2
    assert "expected ranks from 0 to 3" in done.err


def test_a_pytorch_ddp_program_runs_unchanged() -> None:
    python = os.environ.get("TFMP_TEST_TORCH", sys.executable)
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.run([python, "-c", look], check=False).returncode:
        pytest.skip(f"PyTorch is not installed in {python}; TFMP_TEST_TORCH=PYTHON names another interpreter")
    done = run_program("launch", "-n", 2, "--", python, ROOT / "tests" / "cluster" / "launch_ddp.py")
    assert done.code == 0, done.text
    assert sorted(re.findall(r"rank .*", done.out)) == ["rank 0 of 2: gradient 0.5", "rank 1 of 2: gradient 0.5"]


def test_every_one_has_the_whole_cluster_and_a_way_past_the_proxy() -> None:
    env = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "corp.example"}
    code = "import os; print(os.environ['TF_CONFIG'], os.environ['no_proxy'])"
    done = run_program("launch", "-n", 4, "--", sys.executable, "-S", "-c", code, env=env)
    assert done.code == 0, done.text
    found = [line.rsplit(" ", 1) for line in done.out.splitlines() if "TF_CONFIG" in line or '"cluster"' in line]
    configs = [json.loads(text[text.index("{") :]) for text, _ in found]
    assert sorted(config["task"]["index"] for config in configs) == [0, 1, 2, 3]
    assert {len(set(config["cluster"]["worker"])) for config in configs} == {4}
    assert {entries for _, entries in found} == {"corp.example,127.0.0.1,localhost,::1"}


def test_a_local_training_waits_for_no_machine_of_an_inherited_variable() -> None:
    cluster = {"cluster": {"worker": ["far:1", "away:2"]}, "task": {"type": "worker", "index": 1}}
    env = {
        "TF_CONFIG": json.dumps(cluster),
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "1",
        "SLURM_STEP_NODELIST": "far,away",
        "SLURM_STEP_NUM_TASKS": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "JOB_COMPLETION_INDEX": "1",
    }
    done = run_program("train", "configs/smoke.yaml", "--workers", 2, "--collective", "ring", "--dry-run", env=env)
    assert done.code == 0, done.text
    configs = [json.loads(line.split("TF_CONFIG=")[1]) for line in done.out.splitlines() if "TF_CONFIG=" in line]
    assert [config["task"]["index"] for config in configs] == [0, 1]
    assert all(address.startswith("127.0.0.1:") for address in configs[0]["cluster"]["worker"])
