"""A real Slurm: ``srun`` gives each worker its place, jobs do not meet, ``scancel`` ends all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.worker_support import LONG, SHORT
from tests.conftest import ROOT, Run
from tests.deploy.hosts_support import ENV, INSTALL_S, hosts, on, run, script

_WHERE = """
import os
from tfmp.cluster.discovery.slurm import from_slurm
found = from_slurm(os.environ)
node, rank, local = (os.environ["SLURM" + name] for name in ("D_NODENAME", "_PROCID", "_LOCALID"))
mine = found.spec.address(found.rank)
print(int(rank) == found.rank, mine.host == node, int(local) == found.local[0], *map(str, found.spec.addresses))
"""


def _start_slurm(*arguments: object) -> str:
    """Start what is not running and return the configuration file; skip where it cannot be."""
    if os.geteuid() != 0:
        pytest.skip("needs root to start Slurm")
    if shutil.which("slurmctld") is None and shutil.which("apt-get") is None:
        pytest.skip("Slurm is not installed, and there is no apt-get to install it with")
    try:
        return script("start-slurm.sh", *arguments, timeout_s=INSTALL_S).strip().splitlines()[-1]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Slurm does not start here: {error.stdout}{error.stderr}")


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """Two nodes, both this machine."""
    running = shutil.which("scontrol") is not None and "is UP" in run("scontrol", "ping").text
    _start_slurm("up", 2)
    yield
    if not running:
        script("start-slurm.sh", "down")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Two nodes, each a host of its own: what to put in front of ``srun``, and its environment."""
    with hosts("s", 3) as prefix:
        try:
            yield on(prefix, 0), {"SLURM_CONF": _start_slurm("hosts", prefix, 2)}
        finally:
            script("start-slurm.sh", "down", prefix)


def _summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.usefixtures("slurm")
def test_srun_trains_a_configuration_as_it_stands(tmp_path: Path, trained: Callable[..., Run]) -> None:
    done = run("srun", "-n", 2, "tfmp", "worker", "configs/mnist.yaml", "--run-dir", tmp_path / "run")
    assert done.code == 0, done.text
    summary = _summary(tmp_path / "run")
    assert (summary["status"], summary["workers"], summary["replicas"], summary["epochs"]) == ("done", 2, 2, 5)
    assert summary["val_accuracy"] > 0.975
    local = trained("configs/mnist.yaml", "--workers", 2, "--collective", "ring")
    assert summary["weights_sha256"] == local.summary["weights_sha256"]
    assert "(SLURM_PROCID, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE)" in done.out
    assert "cluster.workers (4, configs/mnist.yaml:9) is for tfmp train; slurm says 2" in done.out


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("layout", "nodes"),
    [
        ("-N 2 -n 4 -m block", "1122"),
        ("-N 2 -n 4 -m cyclic", "1212"),
        ("-N 2 -n 3", "112"),
        ("-N 2 -n 3 -m cyclic", "121"),
        ("-N 2 -n 5 -O -m plane=2", "11221"),
        ("-n 1 -w node2", "2"),
    ],
)
def test_every_task_finds_its_rank_on_its_own_host(layout: str, nodes: str) -> None:
    done = run("srun", *layout.split(), sys.executable, "-c", _WHERE)
    assert done.code == 0, done.text
    lines = set(done.out.splitlines())
    assert len(lines) == 1, "all tasks see the same cluster"
    facts = lines.pop().split()
    assert facts[:3] == ["True", "True", "True"]
    assert [address.partition(":")[0] for address in facts[3:]] == [f"node{node}" for node in nodes]


@pytest.mark.usefixtures("slurm")
def test_a_layout_of_the_users_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node2\nnode1\nnode2\n")
    command = ("srun", "-n", 3, "-m", "arbitrary", "tfmp", "worker", "--dry-run")
    done = run(*command, env={"SLURM_HOSTFILE": str(tmp_path / "hosts")})
    assert done.code == 2
    assert done.err.count("received another one: SLURM_PROCID=") == 3


@pytest.mark.usefixtures("slurm")
def test_a_batch_script_is_no_worker_but_its_steps_are(tmp_path: Path) -> None:
    batch = tmp_path / "job.sh"
    batch.write_text("#!/bin/bash\ntfmp worker --dry-run\necho code $?\nexec srun tfmp worker --dry-run\n")
    done = run("sbatch", "--wait", "-n", 2, "-o", tmp_path / "out", batch)
    said = (tmp_path / "out").read_text()
    assert done.code == 0, said
    assert "inside a Slurm allocation, but not in a step" in said
    assert "try:   start the workers with srun" in said
    assert "code 2\n" in said
    assert said.count("dry run: nothing was started") == 2
    assert said.count("cluster: Slurm step ") == 2


def test_two_jobs_on_the_same_two_hosts_do_not_meet(
    cluster: tuple[tuple[str, ...], dict[str, str]], tmp_path: Path
) -> None:
    before, env = cluster
    command = [*before, "srun", "-N", "2", "-n", "2", "tfmp", "worker", *SHORT, "--run-dir"]
    jobs = [
        subprocess.Popen(
            [*command, str(tmp_path / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ENV, **env},
        )
        for name in ("one", "two")
    ]
    said = [job.communicate(timeout=120)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], "\n".join(said)
    one, two = (_summary(tmp_path / name) for name in ("one", "two"))
    assert one["workers"] == two["workers"] == 2
    assert one["weights_sha256"] == two["weights_sha256"]
    configs = [(tmp_path / name / "config.yaml").read_text() for name in ("one", "two")]
    workers = [next(line for line in text.splitlines() if "workers:" in line) for text in configs]
    assert all("host1:" in line and "host2:" in line for line in workers), workers
    assert workers[0] != workers[1], "each job has ports of its own"


def test_scancel_ends_every_task_and_keeps_the_progress(
    cluster: tuple[tuple[str, ...], dict[str, str]], tmp_path: Path
) -> None:
    before, env = cluster
    out = tmp_path / "out.txt"
    arguments = [*LONG, "--set", "run.checkpoints=yes", "--run-dir", str(tmp_path / "run")]
    with out.open("wb") as file:
        job = subprocess.Popen(
            [*before, "srun", "-N", "2", "-n", "2", "tfmp", "worker", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **ENV, **env},
        )
    try:
        deadline_s = time.monotonic() + 60
        while "epoch 2/" not in out.read_text():
            assert time.monotonic() < deadline_s, out.read_text()
            assert job.poll() is None, out.read_text()
            time.sleep(0.1)
        number = run(*before, "squeue", "-h", "-o", "%A", env=env).out.split()
        assert len(number) == 1
        began = time.monotonic()
        run(*before, "scancel", *number, env=env)
        assert job.wait(20) != 0
        assert time.monotonic() - began < 10
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
            job.send_signal(signal.SIGINT)
            job.wait(20)
    said = out.read_text()
    assert said.count("interrupted by SIGTERM") == 2, said
    assert "error: worker" not in said
    assert _summary(tmp_path / "run")["status"] == "interrupted"
    assert list((tmp_path / "run" / "checkpoints").glob("step-*.npz"))
    assert not [text for text in _commands() if str(tmp_path) in text], "nothing is left"


def _commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
