"""`tfmp train` after a fault: the same weights as without it, and nothing left behind."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_train_faults import descendants_of, hook, running, wait_until
from tests.conftest import Run, run_program
from tfmp.errors import EXIT_INTERRUPTED

#: Two epochs of ten steps, a checkpoint after each execution of two: Dropout, so that random numbers count too.
_RUN = ("--workers", 2, "--epochs", 2, "--batch-size", 100, "--set", "data.limit_train=1000",
        "--set", "data.limit_validation=500", "--set", "training.validation_batch_size=100",
        "--set", "training.steps_per_execution=2", "--set", "model.dropout=0.2", "--set", "run.tensorboard=false",
        "--set", "run.checkpoint_every_s=0.000001")  # fmt: skip


def fault(text: str) -> tuple[str, str]:
    return ("--inject-fault", text)


def two_free_ports() -> int:
    """The first of two ports in a row that nobody listens on."""
    while True:
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            return port


@pytest.fixture
def whole(trained: Callable[..., Run]) -> Run:
    return trained(*_RUN)


def event(run: Run, kind: str) -> dict[str, Any]:
    (found,) = [one for one in run.events if one["event"] == kind]
    return found


def assert_as_good_as(run: Run, whole: Run, restarts: int = 1) -> None:
    assert run.done.code == 0, run.done.text
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert (run.summary["restarts"], run.summary["status"]) == (restarts, "done")
    numbers = [{name: line[name] for name in ("epoch", "step", "loss", "val_loss", "accuracy")} for line in run.metrics]
    assert numbers == [{name: line[name] for name in numbers[0]} for line in whole.metrics]
    assert not list(run.folder.rglob("*.tmp*"))
    assert "Traceback" not in run.done.text


def test_a_killed_worker_costs_the_steps_since_the_checkpoint_and_nothing_else(
    trained: Callable[..., Run], whole: Run
) -> None:
    ports = ("--base-port", two_free_ports(), "--set", "cluster.private_network=off")  # the same ones again, at once
    run = trained(*_RUN, *fault("kill:1@step=14"), *ports)
    assert_as_good_as(run, whole)
    starts = [one["plan"]["workers"] for one in run.events if one["event"] == "start"]
    assert [[worker["address"] for worker in workers] for workers in starts] == [
        [f"127.0.0.1:{ports[1]}", f"127.0.0.1:{ports[1] + 1}"]
    ] * 2
    restart = event(run, "restart")
    assert (restart["cause"], restart["culprits"]) == ("signal", [1])
    # Worker 1 dies after step 14, when the chief may have saved that or not. A step of the last 0.1 s may be untold.
    assert restart["from_step"] in (12, 14)
    assert restart["lost_steps"] in (0, 14 - restart["from_step"])
    assert restart["memory_evidence"]["conclusion"] == "killed from outside"
    text = f"attempt 2 of 4, restart 1 of 3, from step {restart['from_step']}, lost"
    assert re.search(rf"^worker 1 failed: signal 9 \(SIGKILL\)\nrestarting in 1\.0 s: {text}", run.done.err, re.M)
    assert (run.folder / "logs" / "attempt-1" / "worker-0.log").exists()
    assert (
        f"resumes at step {restart['from_step']} (epoch 2"
        in (run.folder / "logs" / "attempt-1" / "worker-0.log").read_text()
    )


def test_a_stopped_chief_in_validation_is_named(trained: Callable[..., Run], whole: Run) -> None:
    run = trained(*_RUN, *fault("stop:0@step=10,at=validation"))
    assert_as_good_as(run, whole)
    assert "worker 0 is stopped (SIGSTOP), and the others wait" in run.done.err
    assert event(run, "restart")["hang"]["odd_workers"] == [0]


def test_a_worker_that_is_asked_to_leave_costs_nothing(trained: Callable[..., Run], whole: Run) -> None:
    run = trained(*_RUN, *fault("term:1@step=6"))
    assert_as_good_as(run, whole)
    restart = event(run, "restart")
    assert (restart["cause"], restart["lost_steps"], restart["culprits"]) == ("preempted", 0, [1])
    assert "restarting: attempt 2" in run.done.err


def test_a_stop_in_a_validation_does_not_wait_for_its_end(trained: Callable[..., Run], whole: Run) -> None:
    run = trained(*_RUN, *fault("term:1@step=10,at=validation"), "--set", "run.checkpoint_every_s=60")
    assert_as_good_as(run, whole)
    restart = event(run, "restart")
    assert (restart["cause"], restart["from_step"], restart["lost_steps"]) == ("preempted", 10, 0)
    before = run.events[: run.events.index(restart)]
    # The epoch has no result yet: the only checkpoint was taken in the middle of its validation.
    assert [one["event"] for one in before if one["event"] in ("epoch", "checkpoint")] == ["checkpoint"]
    assert "resumes at step 10 (epoch 1, step 10 of 10)" in run.log(0, attempt=1)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(trained: Callable[..., Run], whole: Run) -> None:
    run = trained(*_RUN, *fault("corrupt-checkpoint@step=8"), *fault("disk-full@step=4"))
    assert_as_good_as(run, whole)
    # The fault strikes after step 8, before that is saved; the checkpoint of step 4 could not be written.
    assert re.search(r"checkpoint step-0000000006.npz is damaged: .* falling back to the one before", run.done.out)
    assert event(run, "restart")["from_step"] == 2
    assert event(run, "restart")["lost_steps"] in (2, 4, 6)
    assert "no checkpoint at step 4: File too large; training goes on" in run.done.out


def test_the_same_error_at_the_same_step_twice_is_not_tried_a_third_time(trained: Callable[..., Run]) -> None:
    run = trained(*_RUN, *hook("worker_1_raises"), ok=False)
    assert run.done.code == 1
    assert (run.summary["restarts"], run.summary["status"]) == (1, "failed")
    assert "the same error twice after step 2: not restarted" in run.done.err
    failure = json.loads((run.folder / "failure.json").read_text())
    assert (failure["worker"], failure["cause"], failure["step"]) == (1, "crash", 2)
    assert failure["victims"] in ([], [0])
    assert "  | RuntimeError: the disk of worker 1 is on fire" in run.done.err


def test_a_failure_before_the_first_step_is_not_tried_again(tmp_path: Path) -> None:
    callbacks = ("--set", "training.callbacks=[tests.train.programs.hooks:needs_what_is_not_there]")
    done = run_program("train", *_RUN, *callbacks, "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert "restarting" not in done.text
    assert "not restarted" in done.err
    assert "no_such_module" in done.err


def test_an_exit_code_is_passed_on_when_restarts_are_used_up(trained: Callable[..., Run]) -> None:
    run = trained(*_RUN, *fault("exit:7@rank=0,step=4"), "--max-restarts", 0, ok=False)
    assert run.done.code == 7
    assert re.search(r"worker 0 failed: exit code 7, after step ([24]) \(epoch 1, step \1\)", run.done.err)
    assert not re.search("restart", run.done.text)
    failure = json.loads((run.folder / "failure.json").read_text())
    assert (failure["worker"], failure["exit_code"], failure["culprits"]) == (0, 7, [0])


def test_a_worker_that_sleeps_is_found_by_its_stack(tmp_path: Path) -> None:
    arguments = ("--hang-timeout", 3, "--max-restarts", 0, *hook("worker_1_falls_asleep"))
    done = run_program("train", *_RUN, *arguments, "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert re.search(r"no step has finished for \d+ s: worker 1 is not where the others are", done.err)
    assert re.search(r"^  worker 0: .*quick_execute", done.err, re.M)
    assert re.search(r"^  worker 1: .*hooks\.py", done.err, re.M)
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (failure["worker"], failure["cause"]) == (1, "hang")


_LONGER = (*_RUN, "--epochs", 3, "--set", "data.limit_train=20000")


def trained_steps(folder: Path) -> int:
    """The newest checkpoint's step."""
    return max((int(path.stem[5:]) for path in (folder / "checkpoints").glob("step-*.npz")), default=0)


def test_ctrl_c_saves_and_resume_ends_the_same(tmp_path: Path, trained: Callable[..., Run]) -> None:
    folder = tmp_path / "run"
    with running(folder, *_LONGER) as process:
        assert wait_until(lambda: trained_steps(folder) > 10, 60)
        before, began_s = trained_steps(folder), time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
        assert time.monotonic() - began_s <= 5
    assert process.returncode == EXIT_INTERRUPTED
    assert [line for line in out.splitlines() if "interrupted" in line or "error" in line.lower()] == [
        f"interrupted by SIGINT after epoch {len(metrics(folder))} of 3; run folder: {folder}"
    ]
    assert f"  saved at step {trained_steps(folder):,}: --resume --run-dir {folder} goes on there" in out
    assert trained_steps(folder) >= before
    assert wait_until(lambda: not descendants_of(str(folder)), 1)

    again = run_program("train", "--resume", "--run-dir", folder)
    assert again.code == 0, again.text
    assert re.search(r"^resuming at step [\d,]+ \(epoch", again.out, re.M)
    whole = trained(*_LONGER)
    assert json.loads((folder / "summary.json").read_text())["weights_sha256"] == whole.summary["weights_sha256"]
    assert [line["epoch"] for line in metrics(folder)] == [1, 2, 3]

    finished = run_program("train", "--resume", "--run-dir", folder)
    assert (finished.code, finished.seconds < 10) == (0, True)
    assert "nothing left to do" in finished.out
    other = run_program("train", "--resume", "--run-dir", folder, "--seed", 5)
    assert other.code == 2
    assert "training.seed" in other.err


def metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_killed_fork_server_is_replaced_and_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(folder, *_LONGER) as process:
        assert wait_until(lambda: trained_steps(folder) > 4, 60)
        fork_server = next(p for p in descendants_of(str(folder)) if p.ppid() == process.pid)
        fork_server.kill()
        assert wait_until(lambda: (folder / "events.jsonl").read_text().count('"event": "start"') == 2, 30)
        assert '"cause": "fork-server"' in (folder / "events.jsonl").read_text()
        assert wait_until(lambda: len(descendants_of(str(folder))) == 4, 30)
        next(p for p in descendants_of(str(folder)) if p.name() == "tfmp-worker-1").kill()
        assert wait_until(lambda: (folder / "events.jsonl").read_text().count('"event": "restart"') == 2, 10)
        process.send_signal(signal.SIGINT)  # in the pause before the third attempt
        out, _ = process.communicate(timeout=5)
    assert process.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in out
    assert wait_until(lambda: not descendants_of(str(folder)), 1)


def test_another_number_of_workers_goes_on(tmp_path: Path, trained: Callable[..., Run]) -> None:
    folder = tmp_path / "run"
    first = run_program(
        "train", *_RUN, *fault("exit:3@step=8"), "--max-restarts", 0, "--set", "model.dropout=0", "--run-dir", folder
    )
    assert first.code == 3
    done = run_program("train", "--resume", "--run-dir", folder, "--workers", 3, "--max-restarts", 0)
    assert done.code == 0, done.text
    whole = trained(*_RUN, "--set", "model.dropout=0")
    assert metrics(folder)[-1]["val_loss"] == pytest.approx(whole.metrics[-1]["val_loss"], abs=1e-4)
    assert metrics(folder)[-1]["step"] == 20
