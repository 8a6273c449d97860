"""Which source describes the cluster, and what each says: MPI, Kubernetes, TF_CONFIG, addresses by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfmp.cluster.discovery.choose import Asked, discover
from tfmp.cluster.discovery.found import Discovered
from tfmp.errors import UsageError

SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "4711",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
TF_CONFIG = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {"chief": ["c.ns.svc:2222"], "worker": ["w.ns.svc:2222"], "evaluator": ["e.ns.svc:2222"]},
            "task": {"type": "worker", "index": 0},
            "environment": "cloud",
        }
    )
}


def find(environ: dict[str, str], hostname: str = "host", **asked: Any) -> Discovered:
    return discover(Asked(**asked), environ, hostname=hostname, parent_pid=99)


def refusal(environ: dict[str, str], hostname: str = "host", **asked: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        find(environ, hostname, **asked)
    return caught.value


def hosts(found: Discovered) -> list[str]:
    assert found.spec is not None
    return [str(address) for address in found.spec.addresses]


@pytest.mark.parametrize(
    ("environ", "asked", "source"),
    [
        ({**SLURM, **OPEN_MPI, **POD, **TF_CONFIG}, {"addresses": ["a:1", "b:1"], "index": "1"}, "manual"),
        ({**SLURM, **OPEN_MPI, **POD, **TF_CONFIG}, {}, "tf-config"),
        ({**SLURM, **OPEN_MPI, **POD, "TF_CONFIG": " "}, {}, "mpi"),
        ({**SLURM, **HYDRA, **POD}, {}, "mpi"),
        ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2", **POD}, {}, "slurm"),
        ({**SLURM, **OPEN_MPI}, {"source": "slurm"}, "slurm"),
        ({**SLURM, **OPEN_MPI, **TF_CONFIG}, {"source": "mpi"}, "mpi"),
    ],
)
def test_sources_speak_in_a_fixed_order_unless_one_is_named(
    environ: dict[str, str], asked: dict[str, Any], source: str
) -> None:
    assert find(environ, **asked).source == source


def test_addresses_by_hand_need_an_index_in_range() -> None:
    found = find({}, addresses=["h0:1", "h1:2"], index="1")
    assert (found.rank, found.size, hosts(found), found.local) == (1, 2, ["h0:1", "h1:2"], None)
    assert refusal({}, addresses=["h0:1", "h1:2"]).what.startswith("expected an index in 0..1, received nothing")
    assert refusal({}, addresses=["h0:1", "h1:2"], index="-1").what == 'expected an index in 0..1, received "-1"'


def test_loopback_beside_other_hosts_is_warned_of() -> None:
    warning = find({}, addresses=["127.0.0.1:1", "h1:2"], index="0").warning
    assert warning == (
        "cluster.workers[0]: expected addresses that every worker can reach, received loopback 127.0.0.1:1 beside h1:2"
    )
    assert find({}, addresses=["127.0.0.1:1", "127.0.0.1:2"], index="0").warning is None


def test_nothing_found_says_what_to_type() -> None:
    error = refusal({})
    assert error.what.startswith("expected a cluster, found none")
    assert (
        error.hint == "tfmp worker --workers HOST:PORT,HOST:PORT --index I, or on one machine: tfmp train --workers 2"
    )


def test_an_allocation_without_a_step_is_not_a_cluster_of_one() -> None:
    error = refusal({"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"})
    assert error.hint == "start the workers with srun: srun -n 2 tfmp worker"


def test_an_index_beside_a_scheduler_is_refused() -> None:
    assert refusal(SLURM, source="slurm", index="0").what == "expected no --index: Slurm says which worker this is"


def test_tf_config_has_a_chief_as_rank_0_and_evaluators_take_no_part() -> None:
    found = find(TF_CONFIG)
    assert (found.rank, found.size, hosts(found)) == (1, 2, ["c.ns.svc:2222", "w.ns.svc:2222"])
    assert found.found == "TF_CONFIG: worker 0 of a cluster of 2"
    evaluator = TF_CONFIG["TF_CONFIG"].replace('{"type": "worker"', '{"type": "evaluator"')
    assert find({"TF_CONFIG": evaluator}).rank is None


@pytest.mark.parametrize(("state", "environ"), [("is not set", {}), ("is empty", {"TF_CONFIG": ""})])
def test_a_forced_tf_config_must_be_there(state: str, environ: dict[str, str]) -> None:
    assert refusal(environ, source="tf-config").what == f"expected a cluster in TF_CONFIG, which {state}"


def test_open_mpi_on_one_host_gives_ports_of_its_job() -> None:
    found = find(OPEN_MPI)
    ports = [address.port for address in found.spec.addresses] if found.spec else []
    assert ports == [ports[0], ports[0] + 1, ports[0] + 2]
    assert (found.rank, found.local, found.run) == (2, (2, 3), "Open MPI job 4711")
    assert hosts(find({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})) == hosts(found)
    assert hosts(find({**OPEN_MPI, "PMIX_NAMESPACE": "4712"})) != hosts(found)
    assert hosts(find(OPEN_MPI, base_port=3000)) == ["127.0.0.1:3000", "127.0.0.1:3001", "127.0.0.1:3002"]


def test_hydra_without_a_job_takes_the_process_that_started_it() -> None:
    found = find(HYDRA)
    assert (found.rank, found.size, found.run) == (0, 2, "MPICH job 99")


def test_mpi_on_several_hosts_needs_a_place_to_meet() -> None:
    several = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    error = refusal(several)
    assert "expected all 3 processes of Open MPI on one host, found 1 here" in error.what
    assert "--rendezvous HOST:2222" in (error.hint or "")
    found = find(several, rendezvous="n1:2222")
    assert (found.spec, str(found.rendezvous), found.local) == (None, "n1:2222", (0, 1))


def test_numbers_that_are_none_are_named() -> None:
    assert refusal({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "3"}).what == "expected a rank in 0..2, received 3"
    assert "OMPI_COMM_WORLD_SIZE=" in refusal({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "-2"}).what
    assert refusal({}, source="mpi").where == "--cluster mpi"


def test_pods_of_an_indexed_job_are_named_in_a_row() -> None:
    found = find(POD, "train-1.workers.ns.svc.cluster.local", count=2)
    assert hosts(found) == [f"train-{index}.workers.ns.svc.cluster.local:2222" for index in range(2)]
    assert (found.rank, found.local) == (1, (0, 1))
    assert found.found == "Kubernetes Indexed Job (JOB_COMPLETION_INDEX, host name): pod 1 of 2"


def test_pods_of_a_stateful_set_are_recognised_by_their_host_name() -> None:
    found = find({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "web-0.nginx.ns.svc.cluster.local", count=3, base_port=99)
    assert hosts(found)[2] == "web-2.nginx.ns.svc.cluster.local:99"
    assert found.rank == 0


@pytest.mark.parametrize(
    ("hostname", "count", "named"),
    [
        ("train-1.workers.ns", None, "expected the number of pods"),
        ("train-1", 2, "expected a host name with the domain of a headless Service, received train-1"),
        ("train-0.workers.ns", 2, "expected a host name that ends in -1"),
        ("train-1.workers.ns", 1, "expected a rank in 0..0, received 1"),
    ],
)
def test_a_pod_that_cannot_know_the_others_says_what_is_missing(hostname: str, count: int | None, named: str) -> None:
    assert named in refusal(POD, hostname, count=count).what


@pytest.mark.parametrize(
    ("hostname", "rank"),
    [("h1", 1), ("H1", 1), ("h1.example.org", 1), ("full", 2), ("full.example.org", 2), ("full.example.com", None),
     ("h", None), ("twice", None), ("10", None)],
)  # fmt: skip
def test_without_an_index_the_hosts_name_tells(hostname: str, rank: int | None) -> None:
    addresses = ["h0:1", "h1:1", "full.example.org:1", "twice:1", "twice:2", "10.0.0.1:1"]
    if rank is None:
        assert refusal({}, hostname, addresses=addresses).where == "--index"
    else:
        found = find({}, hostname, addresses=addresses)
        assert (found.rank, found.found) == (
            rank,
            f"cluster.workers and this host's name ({hostname}): worker {rank} of 6",
        )
    assert find({}, hostname, addresses=addresses, index="0").rank == 0
