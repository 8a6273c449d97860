"""A worker's part of a machine that several share, the addresses of workers that met, and what to type where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfmp.agent.placement import Placement, commands, find_placement, met_addresses, own_dir, share_host
from tfmp.cluster.discovery.found import Discovered
from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.errors import UsageError
from tfmp.planning.host import Host
from tfmp.rendezvous.identity import Identity

HOST = Host(cores=8, cpus=tuple(range(8)), gpus=("4", "7"), environ={})


def place(addresses: list[str], rank: int = 0, **changes: Any) -> Placement:
    spec = ClusterSpec.from_addresses(addresses)
    return find_placement(replace(Discovered("manual", "", spec.size, rank, spec=spec), **changes), rank)


def shared(where: Placement, host: Host = HOST, machine_cpus: int = 8) -> tuple[int, tuple[str, ...]]:
    share = share_host(host, where, machine_cpus)
    return share.cores, share.gpus


def test_workers_on_one_host_share_its_cores_and_gpus() -> None:
    addresses = ["h0:1", "h1:1", "h0:2"]
    assert shared(place(addresses, 0)) == (4, ("4",))
    assert shared(place(addresses, 1)) == (8, ("4", "7"))
    assert shared(place(addresses, 2)) == (4, ("7",))


def test_a_scheduler_that_bound_its_tasks_has_shared_the_machine_already() -> None:
    bound = place(["n1:1", "n1:2"], 1, local=(1, 2), bound=True)
    half = replace(HOST, cores=4, cpus=(4, 5, 6, 7))
    assert shared(bound, half)[0] == 4
    assert shared(bound, HOST)[0] == 4
    assert shared(place(["n1:1", "n1:2"], 1), half)[0] == 2, "nobody binds workers that were started by hand"


def test_gpus_given_to_each_task_are_its_own() -> None:
    own = replace(HOST, gpus=("0",))
    assert shared(place(["n1:1", "n1:2"], 1, local=(1, 2), bound=True), own)[1] == ("0",)
    per_task = replace(HOST, environ={"SLURM_GPUS_PER_TASK": "2"})
    assert shared(place(["n1:1", "n1:2"], 1, local=(1, 2), bound=True), per_task)[1] == ("4", "7")
    with pytest.raises(UsageError, match="received 1 GPU for 2 workers"):
        shared(place(["h:1", "h:2"]), own)


def test_workers_that_meet_have_a_port_each_and_the_address_they_came_from() -> None:
    meeting = Address("h0", 2222)
    found = Discovered("mpi", "", 3, 1, rendezvous=meeting, local=(1, 2))
    where = find_placement(found, 1)
    assert str(where.own) == "h0:2223"
    assert where.roster.addresses == ["h0:2222", "h0:2223", None]
    assert where.text == "3 workers that meet at h0:2222"
    peers = {
        2: (Identity(2, {}, "h1", 1, port=2224), "10.0.0.2"),
        1: (Identity(1, {}, "h0", 1, port=2223), "127.0.0.1"),
    }
    assert met_addresses(meeting, peers) == ["h0:2222", "h0:2223", "10.0.0.2:2224"]
    with pytest.raises(UsageError, match="expected 3 consecutive ports between 1 and 65535, received 65534 to 65536"):
        find_placement(replace(found, rendezvous=Address("h0", 65534)), 0)


def test_a_chief_is_named_as_such() -> None:
    spec = ClusterSpec((Address("w", 1),), Address("c", 1))
    where = find_placement(Discovered("tf-config", "", 2, 1, spec=spec), 1)
    assert (where.names, where.text) == (("chief 0", "worker 0"), "chief c:1,w:1")


def test_the_chief_alone_has_the_run_folder(tmp_path: Any) -> None:
    assert own_dir(tmp_path, 0) == tmp_path
    assert own_dir(tmp_path, 2) == tmp_path / "worker-2"
    assert own_dir(None, 2) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("manual", [("h0", "tfmp worker a.yaml --index 0"), ("h1", "tfmp worker a.yaml --index 1")]),
        ("slurm", [("in the allocation", "srun -n 2 --kill-on-bad-exit=1 tfmp worker a.yaml")]),
        ("mpi", [("here", "mpirun -n 2 --bind-to none tfmp worker a.yaml")]),
        ("kubernetes", [("in each pod", "tfmp worker a.yaml")]),
    ],
)
def test_the_command_of_each_host(source: str, expected: list[tuple[str, str]]) -> None:
    where = place(["h0:1", "h1:1"], source=source)
    assert commands(where, ["a.yaml"]) == expected


def test_tf_config_is_quoted_for_a_shell() -> None:
    where = place(["h0:1", "h1:1"], source="tf-config")
    (_, (host, command)) = commands(where, [])
    assert host == "h1"
    assert command == (
        """TF_CONFIG='{"cluster":{"worker":["h0:1","h1:1"]},"task":{"type":"worker","index":1}}' tfmp worker"""
    )
