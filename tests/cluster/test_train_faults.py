"""`tfmp train` when something goes wrong: the exit code, the name of the culprit, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT, Done, Run, run_program
from tfmp.errors import EXIT_TERMINATED
from tfmp.noise import is_noise

_HOOKS = "tests.train.programs.hooks"
_SHORT = ("--workers", 2, "--epochs", 1, "--set", "data.limit_train=1000", "--set", "data.limit_validation=100",
          "--set", "training.steps_per_execution=1", "--max-restarts", 0)  # fmt: skip
_LONG = ("--workers", 2, "--epochs", 500, "--set", "data.limit_train=5000", "--set", "data.limit_validation=100",
         "--set", "run.checkpoints=false", "--max-restarts", 0)  # fmt: skip


def hook(name: str) -> tuple[str, str]:
    return ("--set", f"training.callbacks=[{_HOOKS}:{name}]")


def descendants_of(marker: str) -> list[psutil.Process]:
    """Live processes whose environment carries ``marker``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TFMP_TEST_MARKER") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@contextlib.contextmanager
def running(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A training in the background, killed at the end whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tfmp", "train", *map(str, arguments), "--run-dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TFMP_TEST_MARKER": str(folder)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def epochs_done(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


@pytest.mark.parametrize(("rank", "restarts"), [(0, 0), (1, 1)])
def test_a_worker_that_is_killed_each_time_ends_the_run_with_137(tmp_path: Path, rank: int, restarts: int) -> None:
    arguments = (*_SHORT, *hook(f"worker_{rank}_is_killed"), "--max-restarts", restarts)
    done = run_program("train", *arguments, "--run-dir", tmp_path / "run")
    assert done.code == 137
    assert f"worker {rank} failed: signal 9 (SIGKILL)" in done.err
    assert "out-of-memory" in done.err
    assert ("restart 1 of 1" in done.err, "the restart is used up" in done.err) == (restarts == 1, restarts == 1)
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (failure["worker"], failure["signal"], failure["exit_code"]) == (rank, "SIGKILL", 137)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["restarts"]) == ("failed", restarts)


def test_sigterm_to_a_worker_ends_a_run_without_restarts_and_is_named(tmp_path: Path) -> None:
    done = run_program("train", *_SHORT, "--inject-fault", "term:1@step=1", "--run-dir", tmp_path / "run")
    assert done.code == 143
    assert "error: worker 1 failed: it was asked to leave by signal 15 (SIGTERM), and left" in done.err
    assert "taken along: worker 0" in done.err


def test_own_code_opens_no_port_to_others(tmp_path: Path) -> None:
    """TensorFlow's server answers everyone: a lone worker starts none, several are in a network of their own."""
    lone = ("configs/smoke.yaml", "--workers", 1, "--epochs", 1, *hook("listens_nowhere"))
    done = run_program("train", *lone, "--run-dir", tmp_path / "lone")
    assert done.code == 0, done.text
    assert "network is not private" not in done.err
    several = ("configs/smoke.yaml", "--workers", 2, "--epochs", 1, "--collective", "ring")
    done = run_program("train", *several, *hook("has_a_private_network"), "-q", "--run-dir", tmp_path / "several")
    if "network is not private" not in done.err:  # where the kernel refuses it, that is said although -q is given
        assert done.code == 0, done.text
    done = run_program("train", *several, *hook("has_a_private_network"), "-q", "--run-dir", tmp_path / "open",
                       "--max-restarts", 0, "--set", "cluster.private_network=off")  # fmt: skip
    assert done.code == 1
    assert "warning: the workers' network is not private: as asked (cluster.private_network). Whoever" in done.err


def test_a_worker_that_raises_is_named_with_its_last_lines(tmp_path: Path) -> None:
    done = run_program("train", *_SHORT, *hook("worker_1_raises"), "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert "worker 1 failed" in done.err
    assert "  | RuntimeError: the disk of worker 1 is on fire" in done.err
    assert not (tmp_path / "run" / "model.keras").exists()


@pytest.mark.parametrize(
    ("collective", "callback", "step"),
    [
        ("shm", "worker_1_stops_alone", 1),
        ("ring", "worker_1_stops_alone", 1),
        ("shm", "worker_1_stops_alone_at_an_epochs_end", 4),
        ("ring", "worker_1_stops_alone_at_an_epochs_end", 4),
    ],
)
def test_a_callback_that_stops_one_worker_alone_is_named_at_once(
    tmp_path: Path, collective: str, callback: str, step: int
) -> None:
    arguments = (*_SHORT, "--epochs", 2, "--max-restarts", 3, "--set", f"cluster.collective={collective}")
    done = run_program("train", *arguments, *hook(callback), "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert f"a callback of worker 1 stopped the training after step {step}, worker 0 goes on" in done.err
    assert "decide alike on all workers" in done.err
    assert not re.search("cause of death|restarting|Traceback", done.err)
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (failure["worker"], failure["cause"]) == (1, "error")


def test_an_epoch_that_a_callback_ends_is_recorded_as_far_as_it_came(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # A callback that acts on batches gets each of them: an execution then holds one step.
    small = ("--workers", 2, "--epochs", 1, "--set", "data.limit_train=1000", "--set", "data.limit_validation=100")
    done = run_program("train", *small, "--batch-size", 100, *hook("all_stop_at_the_third_batch"), "--run-dir", folder)
    assert done.code == 0, done.err
    (line,) = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert (line["epoch"], line["step"]) == (1, 3)
    assert "steps per execution: 1, because of user code" in (folder / "logs/attempt-0/worker-0.log").read_text()
    again = run_program("train", "--resume", "--run-dir", folder, "--epochs", 2)
    assert again.code == 0, again.err
    assert "a callback had ended the training there: no more epochs are trained" in again.out
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("collective", ["shm", "ring"])
def test_a_stop_of_all_workers_leaves_the_numbers_as_they_were(tmp_path: Path, collective: str) -> None:
    small = ("--workers", 2, "--epochs", 1, "--batch-size", 100, "--set", "data.limit_train=1000",
             "--set", "data.limit_validation=100", "--set", "training.schedule=constant",
             "--set", "model.dropout=0.3", "--set", "model.batch_normalization=true",
             "--set", f"cluster.collective={collective}")  # fmt: skip
    stopped = run_program("train", *small, *hook("all_stop_at_the_third_batch"), "--run-dir", tmp_path / "stopped")
    whole = run_program("train", *small, "--set", "training.steps_per_epoch=3", "--run-dir", tmp_path / "whole")
    assert (stopped.code, whole.code) == (0, 0), stopped.err + whole.err
    summaries, epochs = [], []
    for name in ("stopped", "whole"):
        summaries.append(json.loads((tmp_path / name / "summary.json").read_text())["weights_sha256"])
        line = json.loads((tmp_path / name / "metrics.jsonl").read_text())
        epochs.append({key: line[key] for key in ("loss", "accuracy", "val_loss", "val_accuracy")})
    assert summaries[0] == summaries[1]
    assert epochs[0] == epochs[1]


def test_a_loss_that_is_no_number_stops_all_workers_at_the_same_step(tmp_path: Path) -> None:
    arguments = ("--set", "training.optimizer=sgd", "--set", "training.schedule=constant", "--learning-rate", "1e30")
    done = run_program("train", *_SHORT, *arguments, "--run-dir", tmp_path / "run")
    assert done.code == 1
    (step,) = set(re.findall(r"the loss became (?:nan|inf) at step (\d+)", done.err))
    for rank in range(2):
        log = (tmp_path / "run" / "logs" / "attempt-0" / f"worker-{rank}.log").read_text()
        assert f"at step {step}: expected a finite number" in log
    assert "learning rate" in done.err
    shown = done.err[done.err.index("last lines of worker") :].splitlines()[1:]
    assert not any(is_noise(line.removeprefix("  | ")) for line in shown)


def test_sigterm_ends_the_run_with_143_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(folder, *_LONG, "--grace-period", 3) as process:
        assert wait_until(lambda: epochs_done(folder) >= 1, 60)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
        assert time.monotonic() - began <= 3 + 2
    assert process.returncode == EXIT_TERMINATED
    assert "interrupted by SIGTERM" in out
    assert "Traceback" not in out
    assert wait_until(lambda: not descendants_of(str(folder)), 1)
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert epochs_done(folder) >= 1, "what was trained stays on record"


def hold_while_connecting(folder: Path) -> None:
    """Stop worker 1 as soon as there is one: the other builds its strategy, and waits for it in C++."""

    def found() -> list[psutil.Process]:
        return [one for one in descendants_of(str(folder)) if one.name() == "tfmp-worker-1"]

    assert wait_until(lambda: bool(found()), 60)
    found()[0].suspend()
    time.sleep(0.5)
    assert '"event": "ready"' not in (folder / "events.jsonl").read_text()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_while_workers_connect_and_one_is_frozen(tmp_path: Path, signum: int, code: int) -> None:
    folder = tmp_path / "run"
    with running(folder, *_LONG) as process:
        hold_while_connecting(folder)
        began_s = time.monotonic()
        process.send_signal(signum)
        out, _ = process.communicate(timeout=20)
        assert time.monotonic() - began_s <= 5
    assert process.returncode == code
    assert f"interrupted by {signal.Signals(signum).name}" in out
    assert "Traceback" not in out
    assert wait_until(lambda: not descendants_of(str(folder)), 1)


@pytest.mark.parametrize("moment", ["importing", "connecting", "training"])
@pytest.mark.parametrize("victims", ["launcher", "fork-server", "both"])
def test_kill_9_leaves_no_orphan_and_the_next_run_starts(tmp_path: Path, victims: str, moment: str) -> None:
    folder = tmp_path / "run"

    def processes() -> list[psutil.Process]:
        return descendants_of(str(folder))

    with running(folder, *_LONG, "--set", "run.checkpoints=true") as process:
        if moment == "importing":
            assert wait_until(lambda: len(processes()) >= 2, 20)
            time.sleep(0.5)
        elif moment == "connecting":
            hold_while_connecting(folder)
        else:
            assert wait_until(lambda: any((folder / "checkpoints").glob("step-*.npz")), 60)
        fork_server = next(one for one in processes() if one.ppid() == process.pid)
        assert len(processes()) == (2 if moment == "importing" else 4)
        if victims != "fork-server":
            process.kill()
        if victims != "launcher":
            fork_server.kill()
        process.wait(10)
        assert wait_until(lambda: not processes(), 1), processes()
        if victims == "fork-server":
            assert process.returncode == 1
            out, _ = process.communicate(timeout=10)
            assert re.search(r"^error: the fork server .* was killed by signal 9 \(SIGKILL\)", out, re.M)
    if (victims, moment) == ("both", "training"):
        again = run_program("train", "--resume", "--run-dir", folder, "--epochs", epochs_done(folder) + 2)
        assert again.code == 0, again.text
        assert "resuming at step" in again.out


def test_a_reader_that_goes_away_does_not_end_the_training(tmp_path: Path) -> None:
    """As with `tfmp train | head -1`."""
    command = [sys.executable, "-m", "tfmp", "train", *map(str, _SHORT), "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("2 workers")
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0, err
    assert err == "note: standard output was closed by its reader; the run continues\n"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"


def test_a_run_folder_that_is_deleted_ends_the_run_and_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    with running(folder, *_LONG, "--set", "run.checkpoints=true", "--max-restarts", 3) as process:
        assert wait_until(lambda: epochs_done(folder) >= 1, 60)
        shutil.rmtree(folder.parent)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"error: the run folder is gone: it was deleted or moved during the run\n  where: {folder}" in out
    assert not re.search("Traceback|restarting", out)
    assert not folder.parent.exists()


def test_two_runs_at_once_on_an_empty_cache_both_end_well(tmp_path: Path) -> None:
    cache = ("--set", f"data.cache_dir={tmp_path / 'the cache'}")
    folders = [tmp_path / "a", tmp_path / "b"]
    with running(folders[0], *_SHORT, *cache) as first, running(folders[1], *_SHORT, *cache) as second:
        outs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outs
    addresses = [set(re.findall(r"127\.0\.0\.1:\d+", (folder / "events.jsonl").read_text())) for folder in folders]
    assert not addresses[0] & addresses[1]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]


def test_a_damaged_cache_is_rebuilt(tmp_path: Path, tfmp: Callable[..., Done]) -> None:
    cache = ("--set", f"data.cache_dir={tmp_path}")
    assert tfmp("train", "--dry-run", *cache).code == 0
    largest = max(tmp_path.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    with largest.open("r+b") as file:
        file.truncate(1_000_000)
    done = tfmp("train", *_SHORT, *cache, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.text
    assert "rebuil" in done.out or "damaged" in done.out


def test_a_chief_that_saves_slowly_is_waited_for(tmp_path: Path) -> None:
    done = run_program("train", *_SHORT, *hook("chief_is_slow_to_save"), "--run-dir", tmp_path / "run")
    assert done.code == 0, done.text
    assert done.seconds > 15
    for rank in range(2):
        log = (tmp_path / "run" / "logs" / "attempt-0" / f"worker-{rank}.log").read_text()
        assert not re.search("heartbeat|UNAVAILABLE|Unavailable", log)


@pytest.fixture(scope="session")
def stopped_early(trained: Callable[..., Run]) -> Run:
    arguments = ("--epochs", 8, "--learning-rate", "0.5", "--set", "training.schedule=constant")
    data = ("--set", "data.limit_train=1001", "--batch-size", 32, "--set", "data.limit_validation=1000")
    return trained("--workers", 3, *arguments, *data, "--set", "training.early_stopping_patience=0")


def test_early_stopping_stops_every_worker_at_the_same_epoch(stopped_early: Run) -> None:
    epochs = [re.findall(r"^tfmp: (epoch .*)$", stopped_early.log(rank), re.M) for rank in range(3)]
    assert 1 <= len(epochs[0]) < 8
    assert epochs[0] == epochs[1] == epochs[2], "the same numbers on all workers"


def test_an_uneven_last_batch_is_trained(stopped_early: Run) -> None:
    # 1001 samples in batches of 32 over 3 workers: 32 steps, the last with 9 samples; 1000 are validated.
    assert stopped_early.metrics[0]["step"] == 32
    assert 0 <= stopped_early.summary["val_accuracy"] <= 1


def test_validation_only_at_the_end(trained: Callable[..., Run]) -> None:
    run = trained(*_SHORT, "--epochs", 2, "--set", "training.validation_every=0", "--set", "run.tensorboard=false")
    assert ["val_loss" in line for line in run.metrics] == [False, True]
    assert not (run.folder / "tensorboard").exists()


@pytest.fixture(scope="session")
def odd_environment(trained: Callable[..., Run]) -> Run:
    env = {
        "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "corp.example",
        "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "3",
        "TF_CONFIG": '{"cluster":{"worker":["10.0.0.1:1","10.0.0.2:1"]},"task":{"type":"worker","index":0}}',
    }  # fmt: skip
    settings = ("--set", "training.precision=mixed_float16", "--set", "training.jit_compile=true")
    return trained(*_SHORT, *settings, "--seed", 1, *hook("shows_environment"), env=env)


def test_an_odd_environment_does_not_break_a_local_run(odd_environment: Run) -> None:
    assert odd_environment.summary["status"] == "done"
    assert "KERAS_BACKEND=jax is overridden" in odd_environment.done.out
    log = odd_environment.log(1)
    assert "Collective ops must be configured" not in log
    shown: dict[str, Any] = json.loads(re.findall(r"^environment (.*)$", log, re.M)[0])
    assert shown["OMP_NUM_THREADS"] == "3", "the user's own number of threads is kept"
    assert shown["TF_NUM_INTRAOP_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert {"corp.example", "127.0.0.1"} <= set(shown["no_proxy"].split(","))


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    done = run_program("train", *_SHORT, "--run-dir", "/dev/full/run")
    assert done.code == 2
    assert "/dev/full/run" in done.err
