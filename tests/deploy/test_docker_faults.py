"""Containers that are killed, stopped or frozen: the others name them, the group comes back and goes on."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.docker_support import Group, Image, descendants, docker, named, run, zombies
from tfmp import __version__

_WORKERS = 3
#: Long enough for all that is done to it; checkpoints after each epoch of eight steps.
_LONG = ("training.epochs=100000", "run.name=long", "run.tensorboard=no", "run.max_restarts=20")

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def group(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A long training in the background."""
    folder = tmp_path_factory.mktemp("group")
    found = Group.generated(folder, f"tfmplong{os.getpid()}", "configs/smoke.yaml", _WORKERS, *_LONG)
    try:
        yield found
    finally:
        found.down()


def _train(group: Group) -> dict[str, int]:
    """Have the group train; return how much each has printed when it did."""
    group("up", "-d")
    seen = {name: len(group.log(name)) for name in group.names}
    # The first epoch takes long (functions are traced), and leaves little of the machine to whoever measures.
    group.until(lambda: all(group.log(name)[seen[name] :].count("epoch ") > 3 for name in group.names))
    return {name: len(group.log(name)) for name in group.names}


def _since(group: Group, name: str, seen: dict[str, int]) -> str:
    return group.log(name)[seen[name] :]


def _wait_for_end(group: Group, names: list[str], restarts: dict[str, int], timeout_s: float = 60) -> float:
    """Wait until each container has ended since, whether it runs again or not; return the seconds."""
    return group.until(
        lambda: all(
            group.state(name)["RestartCount"] > restarts[name] or not group.state(name)["State"]["Running"]
            for name in names
        ),
        timeout_s,
    )


def _checkpoints(group: Group) -> list[int]:
    listed = docker("run", "--rm", "-v", f"{group.project}_runs:/runs", "--entrypoint", "ls", f"tfmp:{__version__}",
                    "/runs/long/checkpoints")  # fmt: skip
    return sorted(int(step) for step in re.findall(r"step-(\d+)\.npz", listed))


@pytest.mark.parametrize("victim", ["worker-2", "worker-0"])
def test_a_killed_container_is_named_and_the_group_comes_back_and_resumes(group: Group, victim: str) -> None:
    seen = _train(group)
    restarts = {name: group.state(name)["RestartCount"] for name in group.names}
    os.kill(group.pid(victim), signal.SIGKILL)
    others = [name for name in group.names if name != victim]
    seconds = _wait_for_end(group, others, restarts)
    assert seconds < 60
    rank = victim[-1]
    for name in others:
        group.until(lambda name=name: "error: " in _since(group, name, seen))  # type: ignore[misc]
        assert f"error: worker {rank} is gone: its launcher ended without a word" in _since(group, name, seen)
        assert f"where: worker {rank} ({victim}:2222)" in _since(group, name, seen)
    for name in group.names:  # restart: on-failure
        group.until(lambda name=name: "resuming at step " in _since(group, name, seen))  # type: ignore[misc]
    points = {re.findall(r"resuming at (step .*)", _since(group, name, seen))[-1] for name in group.names}
    assert len(points) == 1, points
    group.until(lambda: all("epoch " in _since(group, name, seen).rpartition("resuming at")[2] for name in group.names))


def test_stop_takes_at_most_6_s_gives_143_and_saves_where_all_stopped(group: Group) -> None:
    seen = _train(group)
    before = _checkpoints(group)
    began = time.monotonic()
    group("stop")
    seconds = time.monotonic() - began
    codes = group.codes()
    assert codes == [143] * _WORKERS, group.logs()
    assert seconds <= 6, f"{seconds:.1f} s"
    assert _checkpoints(group)[-1] > before[-1]
    newest = _checkpoints(group)[-1]
    restarts = {name: group.state(name)["RestartCount"] for name in group.names}
    time.sleep(3)
    assert restarts == {name: group.state(name)["RestartCount"] for name in group.names}, "stopped is stopped"
    seen = {name: len(group.log(name)) for name in group.names}
    group("up", "-d")
    group.until(lambda: all("epoch " in _since(group, name, seen) for name in group.names))
    for name in group.names:
        assert f"resuming at step {newest:,} (" in _since(group, name, seen)


def test_one_stopped_container_ends_the_others_by_name_who_wait_for_it(group: Group) -> None:
    seen = _train(group)
    restarts = {name: group.state(name)["RestartCount"] for name in group.names}
    began = time.monotonic()
    docker("stop", group.id("worker-1"))
    assert time.monotonic() - began <= 6
    assert group.state("worker-1")["State"]["ExitCode"] == 143
    assert _wait_for_end(group, ["worker-0", "worker-2"], restarts) < 60
    for name in ("worker-0", "worker-2"):
        assert "error: worker 1 was interrupted by SIGTERM" in _since(group, name, seen)
        group.until(lambda name=name: group.state(name)["RestartCount"] == restarts[name] + 1)  # type: ignore[misc]
    group.until(lambda: "waiting for 1 of 3 workers: worker 1 (worker-1:2222)" in _since(group, "worker-0", seen))
    docker("start", group.id("worker-1"))
    group.until(lambda: all("resuming at step " in _since(group, name, seen) for name in group.names))


def test_health_tells_a_worker_that_stands_still(group: Group) -> None:
    _train(group)
    container = group.id("worker-1")
    assert "ok    workers     running: worker 1 (pid " in docker("exec", container, "tfmp", "doctor", "--quick")
    (worker,) = named(descendants(group.pid("worker-1")), "tfmp-worker-1")
    os.kill(worker, signal.SIGSTOP)
    try:
        done = run("docker", "exec", container, "tfmp", "doctor", "--quick", "--quiet", ok=False)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert done.returncode == 1, done.stdout
    assert re.search(r"^fail  workers +stopped: worker 1 \(pid \d+\)$", done.stdout, re.M), done.stdout


def test_process_1_leaves_no_zombies_and_hears_the_stop(image: Image, tmp_path: Path) -> None:
    engine = ("--read-only", "--tmpfs", "/tmp", "--health-interval", "2s")
    few = ("--set", "data.limit_train=2000", "--set", "data.limit_validation=100")
    train = ("train", "--workers", 2, "--epochs", 10000, *few, "--run-dir", "/runs/a")
    container = docker("run", "-d", *engine, image.name, *train).strip()
    try:
        _until_log(container, "epoch 2/")
        deadline_s = time.monotonic() + 30
        while docker("inspect", "--format", "{{.State.Health.Status}}", container).strip() != "healthy":
            assert time.monotonic() < deadline_s, docker("inspect", container)
            time.sleep(0.5)
        first = int(docker("inspect", "--format", "{{.State.Pid}}", container))
        (worker,) = named(descendants(first), "tfmp-worker-1")
        os.kill(worker, signal.SIGKILL)
        _until_log(container, "restarting")
        time.sleep(2)
        assert zombies([first, *descendants(first)]) == []
        _until_log(container, "starting 2 workers again")
        resumed = docker("logs", container).rpartition("starting 2 workers again")[0]
        _until_log(container, "epoch ", after=len(resumed))
        began = time.monotonic()
        docker("stop", container)
        assert time.monotonic() - began <= 6
        assert docker("wait", container).strip() == "143"
        assert "interrupted by SIGTERM" in docker("logs", container)
    finally:
        docker("rm", "-fv", container)


def _until_log(container: str, text: str, timeout_s: float = 90, after: int = 0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while text not in docker("logs", container)[after:]:
        assert time.monotonic() < deadline_s, f"waited in vain for {text}:\n{docker('logs', container)}"
        time.sleep(0.2)
