"""Slurm's lists in their full syntax, and a step's ranks on the right hosts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.cluster.discovery.slurm import expand_counts, expand_hostlist, from_slurm, in_step
from tfmp.errors import UsageError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("alpha,beta", ["alpha", "beta"]),
        ("linux[1,2]", ["linux1", "linux2"]),
        ("n[001-003]", ["n001", "n002", "n003"]),
        ("host[001,003-004,006]", ["host001", "host003", "host004", "host006"]),
        ("n7", ["n7"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("gpu[1,3]-ib", ["gpu1-ib", "gpu3-ib"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("b[2-3],a1,c[1].example.org", ["b2", "b3", "a1", "c1.example.org"]),
    ],
)
def test_node_lists_keep_their_order_and_their_zeros(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text, "X") == hosts


@pytest.mark.parametrize(
    "text",
    ["n[1-", "n1]", "n[[1]]", "n[3-1]", "n[a-b]", "n[]", "n[1,]", ",n1", "n1,,n2", "", "n[1-99999999]", "n 1", "n[٣]"],
)
def test_a_malformed_node_list_is_quoted_with_its_variable(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand_hostlist(text, "SLURM_STEP_NODELIST")
    assert f"SLURM_STEP_NODELIST={text}:" in caught.value.what
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x2),1", [2, 2, 1]), ("1(x3)", [1, 1, 1]), ("3,1(x2),2", [3, 1, 1, 2])]
)
def test_tasks_a_node_are_expanded(text: str, counts: list[int]) -> None:
    assert expand_counts(text, "X") == counts


@pytest.mark.parametrize("text", ["", "0", "x2", "2(x)", "2(2)", "1,,1", "-1", "2(x2", "1(x9999999)"])
def test_malformed_task_counts_are_quoted_with_their_variable(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_TASKS_PER_NODE="):
        expand_counts(text, "SLURM_TASKS_PER_NODE")


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="n1[]-,()x 0", max_size=20))
def test_no_text_makes_anything_but_hosts_or_a_usage_error(text: str) -> None:
    for expand in (expand_hostlist, expand_counts):
        try:
            assert expand(text, "X")
        except UsageError:
            pass


def step(rank: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node[9-10]",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_PROCID": str(rank),
        **more,
    }


def addresses(environ: dict[str, str]) -> list[str]:
    spec = from_slurm(environ).spec
    assert spec is not None
    return [str(address) for address in spec.addresses]


_PORT = 16384 + 12 * 64
_BLOCK = [f"node9:{_PORT}", f"node9:{_PORT + 1}", f"node10:{_PORT}", f"node10:{_PORT + 1}"]
_CYCLIC = [f"node9:{_PORT}", f"node10:{_PORT}", f"node9:{_PORT + 1}", f"node10:{_PORT + 1}"]


def test_a_step_gives_every_task_the_same_cluster_and_its_own_rank() -> None:
    found = [from_slurm(step(rank)) for rank in range(4)]
    assert [one.rank for one in found] == [0, 1, 2, 3]
    assert {tuple(map(str, one.spec.addresses)) for one in found if one.spec} == {tuple(_BLOCK)}
    assert [one.local for one in found] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert found[1].run == "Slurm step 12.0"
    assert found[1].found == (
        "Slurm step 12.0: task 1 of 4 on node[9-10] (SLURM_PROCID, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE)"
    )


@pytest.mark.parametrize(
    ("rank", "node", "local", "together"), [(0, 0, 0, "0,2"), (1, 1, 0, "1,3"), (2, 0, 1, "0,2"), (3, 1, 1, "1,3")]
)
def test_a_cyclic_distribution_is_recognised_by_every_task(rank: int, node: int, local: int, together: str) -> None:
    own = {"SLURM_NODEID": str(node), "SLURM_LOCALID": str(local), "SLURM_GTIDS": together}
    assert addresses(step(rank, **own)) == _CYCLIC


def test_what_a_task_knows_of_itself_beats_the_distribution_that_was_asked_for() -> None:
    own = {"SLURM_NODEID": "0", "SLURM_LOCALID": "1", "SLURM_GTIDS": "0,1", "SLURM_DISTRIBUTION": "cyclic"}
    assert addresses(step(1, **own)) == _BLOCK
    assert addresses(step(0, SLURM_DISTRIBUTION="cyclic")) == _CYCLIC


@pytest.mark.parametrize(
    ("rank", "node", "local", "together"), [(1, 0, 1, "0,1,4"), (3, 1, 1, "2,3"), (4, 0, 2, "0,1,4")]
)
def test_planes_go_round_the_nodes(rank: int, node: int, local: int, together: str) -> None:
    # As srun -N 2 -n 5 -O -m plane=2 sets them.
    own = {"SLURM_NODEID": str(node), "SLURM_LOCALID": str(local), "SLURM_GTIDS": together}
    plane = {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"}
    tasks = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "3,2"}
    assert addresses(step(rank, **own, **plane, **tasks)) == [*_BLOCK, f"node9:{_PORT + 2}"]


def test_another_layout_is_refused() -> None:
    with pytest.raises(UsageError, match="SLURM_NODEID=1, SLURM_LOCALID=1") as caught:
        from_slurm(step(0, SLURM_NODEID="1", SLURM_LOCALID="1"))
    assert caught.value.hint == "start with srun -m block"


def test_jobs_and_steps_near_each_other_never_share_a_port() -> None:
    def first(job: int, number: int) -> int:
        spec = from_slurm(step(0, SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(number))).spec
        assert spec is not None
        return spec.addresses[0].port

    ports = [first(job, number) for job in range(1000, 1020) for number in range(3)]
    assert len(set(ports)) == 60
    assert all(16384 <= port <= 32768 - 64 and port % 64 == 0 for port in ports)


def test_a_base_port_leaves_room_for_the_tasks_of_a_node() -> None:
    with pytest.raises(UsageError, match="consecutive ports between 1 and 65535") as caught:
        from_slurm(step(0), base_port=65535)
    assert caught.value.where == "cluster.base_port"


def test_a_base_port_replaces_the_one_of_the_job() -> None:
    spec = from_slurm(step(0), base_port=3000).spec
    assert spec is not None
    assert [address.port for address in spec.addresses] == [3000, 3001, 3000, 3001]


def test_without_a_step_the_allocation_speaks() -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "linux[1,2]", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    spec = from_slurm(job).spec
    assert spec is not None
    assert [address.host for address in spec.addresses] == ["linux1", "linux1", "linux2", "linux2"]
    assert not in_step(job)
    assert in_step(step(0))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"SLURM_PROCID": "4"}, "expected a rank in 0..3, received 4"),
        ({"SLURM_PROCID": "x"}, "received SLURM_PROCID=x"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "SLURM_STEP_TASKS_PER_NODE=2(x3), which are 3"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1"}, "SLURM_STEP_TASKS_PER_NODE=2,1, which are 3"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST=n[1-"),
    ],
)
def test_variables_that_do_not_fit_are_named_with_their_value(changes: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_slurm(step(0, **changes))
    assert named in caught.value.what


def test_tasks_that_cannot_be_spread_evenly_need_their_variable() -> None:
    job = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"}
    with pytest.raises(UsageError, match="SLURM_NTASKS=3"):
        from_slurm(job)
    with pytest.raises(UsageError, match="neither of which is set"):
        from_slurm({"SLURM_JOB_NODELIST": "n1", "SLURM_PROCID": "0"})
