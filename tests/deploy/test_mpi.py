"""Real MPI launchers, Open MPI and MPICH's Hydra: on one host, and on two that learn of each other at --rendezvous."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.worker_support import SHORT
from tests.deploy.hosts_support import address, hosts, need, on, run

_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_PACKAGES = {"mpirun.openmpi": "openmpi-bin", "mpiexec.hydra": "mpich"}
_NAMES = {"mpirun.openmpi": "Open MPI", "mpiexec.hydra": "MPICH"}
#: ``--bind-to none`` as the guide says: Open MPI ties a process to a core.
_ONE_HOST = {"mpirun.openmpi": ("-n", 2, "--bind-to", "none"), "mpiexec.hydra": ("-n", 2)}
_AGENT = """#!/bin/bash
# In ssh's place: [-x] HOST COMMAND...
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "{prefix}$((${{host##*.}} - 10))" sh -c "$*"
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Two hosts, and what MPI uses to start something on one of them."""
    agent = tmp_path_factory.mktemp("agent") / "agent"
    with hosts("m", 2) as prefix:
        agent.write_text(_AGENT.format(prefix=prefix))
        agent.chmod(0o755)
        yield prefix, agent


def _two_hosts(program: str, prefix: str, agent: Path) -> tuple[object, ...]:
    where = "10.78.0.10,10.78.0.11"
    if program == "mpiexec.hydra":
        more: tuple[object, ...] = ("-hosts", where, "-launcher", "ssh", "-launcher-exec", agent, "-iface", "eth0")
    else:
        network = ("--mca", "oob_tcp_if_include", "10.78.0.0/24")
        more = ("--bind-to", "none", "--host", where, "--mca", "plm_rsh_agent", agent, *network)
    return (*on(prefix, 0), program, "-n", 2, *more)


def _sha256(folder: Path) -> str:
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["workers"], summary["replicas"]) == ("done", 2, 2)
    return str(summary["weights_sha256"])


@pytest.mark.parametrize("program", _PACKAGES)
def test_processes_of_one_host_train_together(program: str, tmp_path: Path) -> None:
    need(program, _PACKAGES[program])
    done = run(program, *_ONE_HOST[program], "tfmp", "worker", *SHORT, "--run-dir", tmp_path / "run", env=_AS_ROOT)
    assert done.code == 0, done.text
    assert _sha256(tmp_path / "run")
    assert (tmp_path / "run" / "worker-1" / "logs").exists()
    for rank in (0, 1):
        assert f"cluster: {_NAMES[program]}: process {rank} of 2 (" in done.out
    assert "\x1b" not in done.out, "Open MPI gives each process a terminal: no live view is painted over another"


@pytest.mark.parametrize("program", _PACKAGES)
def test_processes_of_two_hosts_meet_at_the_rendezvous(program: str, pair: tuple[str, Path], tmp_path: Path) -> None:
    need(program, _PACKAGES[program])
    command = (*_two_hosts(program, *pair), "tfmp", "worker", *SHORT)
    alone = run(*command, "--run-dir", tmp_path / "none", env=_AS_ROOT)
    assert alone.code != 0
    assert f"expected all 2 processes of {_NAMES[program]} on one host, found 1 here" in alone.text
    assert "--rendezvous HOST:2222" in alone.text
    assert not (tmp_path / "none").exists()
    done = run(*command, "--rendezvous", address(0), "--run-dir", tmp_path / "run", env=_AS_ROOT)
    assert done.code == 0, done.text
    assert _sha256(tmp_path / "run")
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert 'workers: ["10.78.0.10:2222", "10.78.0.11:2223"]' in config
