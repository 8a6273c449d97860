"""Clusters that train: the numbers are those of one machine; a lost worker is named by all others, at once."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.worker_support import LONG, SHORT, Launcher, free_ports, launchers
from tests.conftest import Run


def addresses(ports: list[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launcher, Launcher, list[int]]]:
    """Two workers that trained, the first started late, with proxy variables that lead nowhere."""
    ports = free_ports(2)
    env = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "corp.example"}
    arguments = (*SHORT, "--workers", addresses(ports), "--set", "cluster.token=open sesame")
    with launchers(tmp_path_factory.mktemp("pair")) as start:
        one = start("w1", *arguments, "--index", 1, env=env)
        one.until("waiting for 1 of 2 workers: worker 0")
        zero = start("w0", *arguments, "--index", 0, env=env)
        assert (zero.wait(), one.wait()) == (0, 0), zero.text + one.text
        yield zero, one, ports


def test_two_hosts_compute_what_two_local_workers_do(
    pair: tuple[Launcher, Launcher, list[int]], trained: object
) -> None:
    local: Run = trained(*SHORT, "--collective", "ring")  # type: ignore[operator]
    summary = json.loads((pair[0].folder / "summary.json").read_text())
    assert summary["weights_sha256"] == local.summary["weights_sha256"]
    assert (summary["status"], summary["workers"], summary["replicas"]) == ("done", 2, 2)


def test_the_chief_has_the_run_folder_and_the_others_their_logs(pair: tuple[Launcher, Launcher, list[int]]) -> None:
    zero, one, ports = pair
    chief = {path.name for path in zero.folder.iterdir()}
    assert {"config.yaml", "events.jsonl", "metrics.jsonl", "model.keras", "summary.json", "checkpoints"} <= chief
    own = one.folder / "worker-1"
    assert {path.name for path in own.iterdir()} == {"config.yaml", "events.jsonl", "logs"}
    assert "weights_sha256" in (own / "logs" / "attempt-0" / "worker-1.log").read_text()
    config = (zero.folder / "config.yaml").read_text()
    assert f'workers: ["127.0.0.1:{ports[0]}", "127.0.0.1:{ports[1]}"]' in config
    assert "sesame" not in config
    assert "sesame" not in zero.text


def test_a_late_leader_is_welcome(pair: tuple[Launcher, Launcher, list[int]]) -> None:
    assert "connection refused. Here: this one" in pair[1].text
    assert f"joined worker 0 (127.0.0.1:{pair[2][0]})" in pair[1].text


def test_a_chief_counts_as_a_worker_and_writes_the_model(tmp_path: Path) -> None:
    ports = free_ports(3)
    cluster = {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{port}" for port in ports[1:]]}
    with launchers(tmp_path) as start:
        members = []
        for kind, index in (("worker", 1), ("chief", 0), ("worker", 0)):
            config = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
            members.append(start(f"{kind}-{index}", *SHORT, env={"TF_CONFIG": json.dumps(config)}))
        codes = [member.wait() for member in members]
    assert codes == [0, 0, 0], "\n".join(member.text for member in members)
    assert "replicas: 3" in members[1].text
    assert (members[1].folder / "model.keras").exists()
    assert not list(members[0].folder.rglob("model.keras"))
    assert "waiting" not in members[1].text or "chief 0 (" not in members[1].text


def test_tasks_of_a_slurm_step_find_each_other_and_share_the_cores(tmp_path: Path) -> None:
    job = str(int(time.time()) % 100_000)
    step = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}  # fmt: skip
    with launchers(tmp_path) as start:
        tasks = [
            start("run", *SHORT, env={**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
            for rank in range(2)
        ]
        assert [task.wait() for task in tasks] == [0, 0], tasks[0].text + tasks[1].text
    assert (tmp_path / "run" / "model.keras").exists()
    assert (tmp_path / "run" / "worker-1" / "logs").exists(), "one --run-dir serves all tasks of a shared file system"


def test_processes_of_an_mpi_launcher_meet_without_addresses(tmp_path: Path) -> None:
    with launchers(tmp_path) as start:
        processes = []
        for rank in range(2):
            env = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                   "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "PMIX_NAMESPACE": os.getpid()}  # fmt: skip
            processes.append(start("run", *SHORT, env={name: str(value) for name, value in env.items()}))
        assert [one.wait() for one in processes] == [0, 0], processes[0].text + processes[1].text
    assert "cluster: Open MPI: process 1 of 2 (OMPI_COMM_WORLD_RANK" in processes[1].text


def test_without_its_chief_a_cluster_names_it(tmp_path: Path) -> None:
    ports = free_ports(2)
    cluster = {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    with launchers(tmp_path) as start:
        one = start("w", *SHORT, "--start-timeout", 3, env={"TF_CONFIG": json.dumps(config)})
        assert one.wait(20) == 1
    assert f"did not join within 3 s: chief 0 (127.0.0.1:{ports[0]}): connection refused" in one.text


def _training(start: object, ports: list[int], *more: object) -> list[Launcher]:
    found = [
        start(f"w{rank}", *LONG, "--workers", addresses(ports), "--index", rank, *more)  # type: ignore[operator]
        for rank in range(len(ports))
    ]
    for launcher in found:
        launcher.until("epoch 2/", 90)
    return found


def test_kill_9_of_a_worker_process_is_told_to_the_others(tmp_path: Path) -> None:
    ports = free_ports(3)
    with launchers(tmp_path) as start:
        zero, one, two = _training(start, ports)
        os.kill(one.worker_pid(), signal.SIGKILL)
        began = time.monotonic()
        codes = [launcher.wait(15) for launcher in (zero, one, two)]
        assert time.monotonic() - began < 10
    assert codes == [137, 137, 137]
    for launcher in (zero, one, two):
        assert "error: worker 1 failed: signal 9 (SIGKILL)" in launcher.text
        assert f"where: worker 1 (127.0.0.1:{ports[1]})" in launcher.text
        assert "out-of-memory" in launcher.text
    what = json.loads((zero.folder / "failure.json").read_text())["what"]
    assert what.startswith("worker 1 failed: signal 9 (SIGKILL), after step ")
    # The ports are free again at once.
    with launchers(tmp_path) as start:
        again = [start(f"n{rank}", *SHORT, "--workers", addresses(ports), "--index", rank) for rank in range(3)]
        assert [launcher.wait() for launcher in again] == [0, 0, 0], again[0].text
        assert "is in use" not in again[0].text


def test_kill_9_of_a_launcher_is_noticed_at_once_and_it_cannot_come_back_alone(tmp_path: Path) -> None:
    ports = free_ports(3)
    with launchers(tmp_path) as start:
        zero, one, two = _training(start, ports)
        # Another worker 1, on a port of its own, while the group trains.
        elsewhere = addresses([ports[0], free_ports(1)[0], ports[2]])
        late = start("late", *LONG, "--workers", elsewhere, "--index", 1, "--start-timeout", 60)
        assert late.wait(30) == 1
        assert "worker 0 is training already, without this worker" in late.text
        assert "the whole group must be restarted" in late.text
        assert all(launcher.process.poll() is None for launcher in (zero, one, two)), "the group is not disturbed"
        one.process.kill()
        began = time.monotonic()
        assert [zero.wait(15), two.wait(15)] == [138, 138]
        assert time.monotonic() - began < 8
        for launcher in (zero, two):
            assert "error: worker 1 is gone: its launcher ended without a word" in launcher.text
            assert f"where: worker 1 (127.0.0.1:{ports[1]})" in launcher.text
        again = start("again", *LONG, "--workers", addresses(ports), "--index", 1, "--start-timeout", 3)
        assert again.wait(20) == 1
        assert f"worker 0 (127.0.0.1:{ports[0]}): connection refused" in again.text
        assert "the whole group must be restarted" in again.text


@pytest.mark.parametrize("what", ["launcher", "worker process"])
def test_a_frozen_worker_is_named_by_the_others(tmp_path: Path, what: str) -> None:
    ports = free_ports(3)
    with launchers(tmp_path) as start:
        zero, one, two = _training(start, ports, "--set", "cluster.heartbeat_timeout_s=6")
        if what == "launcher":
            one.send(signal.SIGSTOP)
        else:
            os.kill(one.worker_pid(), signal.SIGSTOP)
        began = time.monotonic()
        codes = [launcher.wait(40) for launcher in (zero, two)]
        assert time.monotonic() - began < 6 + 8
        # A stopped worker process is seen by its own launcher, whose code is 1, and by the leader, which then speaks of
        # a peer: whichever is first.
        assert codes in ([[138, 138]] if what == "launcher" else [[1, 1], [138, 138]]), zero.text + two.text
        for launcher in (zero, two):
            how = "is lost: nothing heard from it for" if what == "launcher" else "is stopped"
            assert f"error: worker 1 {how}" in launcher.text
            assert f"where: worker 1 (127.0.0.1:{ports[1]})" in launcher.text


def test_a_survivor_that_is_idle_in_python_ends_at_once_too(tmp_path: Path) -> None:
    ports = free_ports(2)
    more = ("--set", "training.callbacks=[tests.train.programs.hooks:worker_1_falls_asleep]")
    with launchers(tmp_path) as start:
        zero, one = (
            start(f"w{rank}", *LONG, "--workers", addresses(ports), "--index", rank, *more) for rank in range(2)
        )
        log = one.folder / "worker-1" / "logs" / "attempt-0" / "worker-1.log"
        one.until(lambda text: "asleep" in log.read_text() if log.exists() else False)
        zero.process.kill()
        began = time.monotonic()
        assert one.wait(10) == 138, one.text
        assert time.monotonic() - began < 5
    assert "error: worker 0 is gone: its launcher ended without a word" in one.text


def test_sigterm_to_a_worker_process_is_told_by_the_name_that_the_cluster_gives_it(tmp_path: Path) -> None:
    """With a chief, the second worker is ``worker 0``. All leave together, and only one of them was asked to."""
    ports = free_ports(2)
    cluster = {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
    with launchers(tmp_path) as start:
        chief, one = (
            start(kind, *LONG, env={"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})})
            for kind in ("chief", "worker")
        )
        for launcher in (chief, one):
            launcher.until("epoch 2/", 90)
        os.kill(one.worker_pid(), signal.SIGTERM)
        began = time.monotonic()
        assert [one.wait(20), chief.wait(20)] == [143, 143], chief.text + one.text
        assert time.monotonic() - began < 10
    for launcher in (chief, one):
        assert "error: worker 0 failed: it was asked to leave by signal 15 (SIGTERM), and left" in launcher.text
        assert f"where: worker 0 (127.0.0.1:{ports[1]}) on " in launcher.text


def test_a_worker_that_holds_the_others_up_is_told_from_those_that_wait(tmp_path: Path) -> None:
    ports = free_ports(3)
    more = ("--hang-timeout", 5, "--set", "training.callbacks=[tests.train.programs.hooks:worker_1_falls_asleep]")
    with launchers(tmp_path) as start:
        group = [start(f"w{rank}", *LONG, "--workers", addresses(ports), "--index", rank, *more) for rank in range(3)]
        assert [launcher.wait(60) for launcher in group] == [1, 1, 1], "\n".join(one.text for one in group)
    for launcher in group:
        assert re.search(
            r"^error: worker 1 holds the others up: no step has finished for \d+ s; it is in .*\(hooks\.py:\d+\)",
            launcher.text,
            re.M,
        ), launcher.text
        assert f"where: worker 1 (127.0.0.1:{ports[1]})" in launcher.text


def test_ctrl_c_on_one_host_ends_the_others_by_name_and_a_new_group_may_use_the_ports(tmp_path: Path) -> None:
    ports = free_ports(2)
    with launchers(tmp_path) as start:
        zero, one = _training(start, ports, "--grace-period", 2)
        one.send(signal.SIGINT)
        assert one.wait(20) == 130
        assert zero.wait(10) == 130
        assert "error: worker 1 was interrupted by SIGINT" in zero.text
        began = time.monotonic()
        again = [start(f"n{rank}", *SHORT, "--workers", addresses(ports), "--index", rank) for rank in range(2)]
        assert [launcher.wait() for launcher in again] == [0, 0], again[0].text + again[1].text
        assert time.monotonic() - began < 25
