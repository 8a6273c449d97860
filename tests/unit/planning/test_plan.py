"""The plan of a run: batches, steps, collective, and what each worker is given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.planning.plans import config, header
from tests.unit.planning.plans import make as plan
from tfmp.cluster.spec import ClusterSpec
from tfmp.errors import UsageError
from tfmp.planning.host import Host
from tfmp.planning.plan import WORKER_COLUMNS, make_plan

MIRRORED: Any = {"cluster__strategy": "mirrored"}


def failure(**changes: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        plan(**changes)
    return caught.value


def test_mnist_on_four_workers() -> None:
    made = plan(training__epochs=5)
    assert made.describe() == [
        ("strategy", "multi-worker, 4 workers"),
        ("replicas", "4 on CPU"),
        ("collective", "shm: CPU workers on one host share its memory"),
        ("global batch", "256 samples"),
        ("per-replica batch", "64"),
        ("training samples", "60,000"),
        ("epochs", "5"),
        ("steps per epoch", "235 (the last with 96 samples)"),
        ("steps per execution", "30"),
        ("validation", "10,000 samples in 10 steps"),
    ]
    assert len(WORKER_COLUMNS) == 8
    assert made.worker_rows() == [
        (str(i), f"worker {i}", f"127.0.0.1:{2000 + i}", "1", "64", "4", "any", "-") for i in range(4)
    ]
    assert made.warnings == ()


def test_every_worker_gets_the_whole_cluster_and_its_own_index() -> None:
    workers = plan().workers
    configs = [json.loads(worker.env["TF_CONFIG"]) for worker in workers]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": i} for i in range(4)]
    assert {json.dumps(config["cluster"]) for config in configs} == {
        json.dumps({"worker": [f"127.0.0.1:{2000 + i}" for i in range(4)]})
    }
    assert [worker.tf_config for worker in workers] == [worker.env["TF_CONFIG"] for worker in workers]
    assert workers[0].unset == ()


def test_an_uneven_batch_is_said_and_shared() -> None:
    made = plan(workers=3, training__batch_size=64, train_samples=1001)
    assert made.batch.per_replica_batch == 22
    assert made.batch.uneven == "64 over 3 workers: 22, 21, 21"
    assert [worker.samples for worker in made.workers] == [22, 21, 21]
    assert (made.batch.steps_per_epoch, made.batch.last_batch_samples) == (16, 41)
    assert plan(workers=12, training__batch_size=28).batch.uneven == "28 over 12 workers: 4 with 3, 8 with 2"


def test_a_batch_that_divides_the_data_has_no_short_step() -> None:
    made = plan(workers=1, training__batch_size=100)
    assert (made.batch.steps_per_epoch, made.batch.last_batch_samples) == (600, 100)
    assert dict(made.describe())["steps per epoch"] == "600"
    assert made.collective == ("none", "one worker")


@pytest.mark.parametrize(
    ("steps", "asked", "execution"),
    [(None, None, 30), (20, None, 20), (1, None, 1), (20, 5, 5), (100, 40, 40), (100, 900, 100)],
)
def test_steps_per_execution_never_exceed_what_is_asked(steps: int | None, asked: int | None, execution: int) -> None:
    made = plan(training__steps_per_epoch=steps, training__steps_per_execution=asked)
    assert made.batch.steps_per_execution == execution
    assert made.batch.steps_per_epoch == (steps or 235)


def test_a_given_number_of_steps_is_shown_beside_a_whole_pass() -> None:
    rows = dict(plan(training__steps_per_epoch=20).describe())
    assert rows["steps per epoch"] == "20 (one pass over the samples: 235)"


@pytest.mark.parametrize("samples", [3, 0])
def test_fewer_samples_than_workers_names_both(samples: int) -> None:
    error = failure(train_samples=samples)
    assert error.what == f"expected at least one training sample for each of 4 workers, received {samples} samples"
    assert error.where == "data.limit_train"


def test_a_batch_smaller_than_the_replicas_names_both() -> None:
    gpus = ("0", "1", "2", "3")  # which the configuration alone does not know
    error = failure(workers=2, gpus=gpus, training__batch_size=3)
    assert error.what == "expected a global batch of at least one sample for each of 4 replicas, received 3"
    assert error.hint == "--batch-size 4"
    assert plan(workers=2, gpus=gpus, training__batch_size=4).batch.per_replica_batch == 1
    cluster = ClusterSpec.local("h", range(1, 5))
    assert "each of 4 workers, received 3" in failure(cluster=cluster, ranks=(0,), training__batch_size=3).what


def test_a_batch_larger_than_the_data_is_a_warning() -> None:
    made = plan(train_samples=100)
    assert (made.batch.steps_per_epoch, made.batch.last_batch_samples) == (1, 100)
    assert made.warnings == (
        "the global batch of 256 is larger than the 100 training samples: every step takes all of them",
    )


def test_more_workers_than_cores_warns_and_pins() -> None:
    made = plan(workers=3, cores=2, cpus=(0, 1))
    assert made.warnings == ("3 workers share 2 cores: they will take turns, not run faster",)
    assert [worker.cpus for worker in made.workers] == [frozenset({0}), frozenset({1}), frozenset({0})]
    assert [row[5:7] for row in made.worker_rows()] == [("1", "0"), ("1", "1"), ("1", "0")]


def test_a_chief_is_rank_0_of_the_plan() -> None:
    cluster = ClusterSpec.from_addresses(["h1:1", "h2:1"])
    cluster = ClusterSpec(cluster.workers, ClusterSpec.from_addresses(["h0:1"]).workers[0])
    made = plan(cluster=cluster, ranks=(1,))
    assert [(w.task_type, w.task_index, w.address) for w in made.workers] == [
        ("chief", 0, "h0:1"),
        ("worker", 0, "h1:1"),
        ("worker", 1, "h2:1"),
    ]
    assert (made.replicas, made.batch.shares) == (3, (86, 85, 85))
    assert [worker.local for worker in made.workers] == [False, True, False]
    assert [worker.threads for worker in made.workers] == [None, "16", None]
    assert made.workers[0].env == {}
    assert made.worker_rows()[0] == ("0", "chief 0", "h0:1", "1", "86", "-", "-", "-")


def test_local_workers_of_a_larger_cluster_share_this_machine() -> None:
    cluster = ClusterSpec.from_addresses(["h0:1", "h0:2", "h1:1", "h1:2"])
    made = plan(cluster=cluster, ranks=(2, 3), gpus=("0", "1"))
    assert [worker.gpus for worker in made.workers] == [(), (), ("0",), ("1",)]
    assert [worker.threads for worker in made.workers] == [None, None, "8", "8"]
    assert made.replicas == 4


def test_gpus_are_shared_and_counted_as_replicas() -> None:
    made = plan(workers=2, gpus=("4", "7", "GPU-a", "GPU-b"))
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in made.workers] == ["4,7", "GPU-a,GPU-b"]
    assert (made.device, made.replicas, made.batch.per_replica_batch) == ("gpu", 4, 64)
    assert [worker.samples for worker in made.workers] == [128, 128]
    assert made.collective == ("nccl", "GPU workers")
    assert "received 3 samples" in failure(workers=2, gpus=("0", "1", "2", "3"), train_samples=3).what


def test_gpus_that_do_not_divide_are_refused() -> None:
    assert "2 GPUs for 4 workers" in failure(gpus=("0", "1")).what


def test_training_on_the_cpu_hides_the_gpus_and_leaves_other_machines_alone() -> None:
    assert plan(gpus=("0", "1"), cluster__device="cpu").workers[0].env["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in plan().workers[0].env


@pytest.mark.parametrize(
    ("changes", "collective"),
    [
        ({"workers": 1}, ("none", "one worker")),
        ({"workers": 1, "gpus": ("0", "1")}, ("nccl", "GPUs of one process")),
        ({"workers": 2}, ("shm", "CPU workers on one host share its memory")),
        ({"workers": 2, "cluster__collective": "ring"}, ("ring", "as asked")),
        ({"workers": 2, "cluster__collective": "ring", "gpus": ("0", "1")}, ("ring", "as asked")),
        (MIRRORED, ("none", "one replica")),
        ({**MIRRORED, "cluster__devices": 2}, ("in-process", "CPU replicas of one process")),
        ({**MIRRORED, "gpus": ("0", "1")}, ("nccl", "GPUs of one process")),
    ],
)
def test_the_collective_follows_from_the_configuration(changes: dict[str, Any], collective: tuple[str, str]) -> None:
    assert plan(**changes).collective == collective


def test_mirrored_is_one_worker_with_several_replicas_and_no_cluster() -> None:
    made = plan(**MIRRORED, cluster__devices=3, cores=4, environ={"TF_CONFIG": "{}", "http_proxy": "p"})
    (worker,) = made.workers
    assert (made.replicas, worker.replicas, worker.samples, made.batch.per_replica_batch) == (3, 3, 256, 86)
    assert made.batch.uneven == "256 over 3 replicas: 86, 85, 85"
    assert (worker.address, worker.tf_config, worker.unset) == (None, None, ("TF_CONFIG",))
    assert worker.env == dict.fromkeys(["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"], "4")
    assert "3 replicas, received 2 samples" in failure(**MIRRORED, cluster__devices=3, train_samples=2).what


def test_mirrored_takes_as_many_gpus_as_asked() -> None:
    made = plan(**MIRRORED, gpus=("4", "7", "9"), cluster__devices=2)
    assert made.workers[0].env["CUDA_VISIBLE_DEVICES"] == "4,7"
    assert (made.replicas, made.workers[0].gpus) == (2, ("4", "7"))
    error = failure(**MIRRORED, gpus=("4", "7"), cluster__devices=3)
    assert error.what == "expected at most 2 devices, one for each visible GPU, received 3"


@pytest.mark.parametrize("collective", ["ring", "shm", "hierarchical"])
def test_mirrored_has_no_exchange_between_processes(collective: str) -> None:
    assert f"received {collective}" in failure(**MIRRORED, cluster__devices=2, cluster__collective=collective).what


def test_shared_memory_is_for_cpu_workers_of_one_host() -> None:
    assert "workers on GPUs" in failure(workers=2, cluster__collective="shm", gpus=("0", "1")).what
    hosts = ClusterSpec.from_addresses(["h0:1", "h1:1"])
    assert "several hosts" in failure(cluster=hosts, ranks=(0,), cluster__collective="shm").what
    assert plan(cluster=hosts, ranks=(0,)).collective == ("ring", "CPU workers on several hosts")
    same = ClusterSpec.from_addresses(["h0:1", "H0:2"])
    assert plan(cluster=same, ranks=(1,)).collective.name == "shm"


def test_hosts_with_several_workers_use_their_memory_and_the_ring_between_them() -> None:
    mixed = ClusterSpec.from_addresses(["h0:1", "h1:1", "h0:2"])
    made = plan(cluster=mixed, ranks=(0,))
    assert made.hosts == (0, 1, 0)
    reason = "CPU workers: the memory of each host, TensorFlow's ring between the hosts"
    assert made.collective == ("hierarchical", reason)
    assert plan(cluster=mixed, ranks=(0,), cluster__collective="hierarchical").collective.reason == "as asked"
    assert plan(cluster=mixed, ranks=(0,), cluster__collective="ring").collective.name == "ring"
    assert plan(cluster=mixed, ranks=(0,), gpus=("0",)).collective.name == "nccl"
    for addresses, received in ((["h0:1", "h1:1"], "one worker a host"), (["h0:1", "h0:2"], "all on one host")):
        cluster = ClusterSpec.from_addresses(addresses)
        assert failure(cluster=cluster, ranks=(0,), cluster__collective="hierarchical").what.endswith(received)


def test_proxy_exceptions_reach_every_worker() -> None:
    cluster = ClusterSpec.from_addresses(["h0:1", "h1:1"])
    made = plan(cluster=cluster, ranks=(0, 1), environ={"http_proxy": "http://127.0.0.1:9"})
    assert [worker.env["no_proxy"] for worker in made.workers] == ["h0,h1,127.0.0.1,localhost,::1"] * 2


def test_the_plan_is_plain_json_and_repeatable() -> None:
    made = plan(workers=3, cores=2, gpus=("a", "b", "c"))
    text = json.dumps(made.to_json(), sort_keys=True)
    assert text == json.dumps(plan(workers=3, cores=2, gpus=("a", "b", "c")).to_json(), sort_keys=True)
    data = json.loads(text)
    assert data["collective"] == {"name": "nccl", "reason": "GPU workers"}
    assert data["workers"][2]["cpus"] == [0]
    assert data["batch"]["shares"] == [86, 85, 85]


def test_ports_come_last() -> None:
    made = make_plan(config(cluster__workers=2), header(), Host(16, tuple(range(16)), environ={"http_proxy": "p"}))
    assert made.port_count == 2
    assert [(worker.address, worker.tf_config) for worker in made.workers] == [(None, None)] * 2
    assert "TF_CONFIG" not in made.workers[0].env
    with_ports = made.with_ports((7, 9))
    assert with_ports.port_count == 0
    assert [worker.address for worker in with_ports.workers] == ["127.0.0.1:7", "127.0.0.1:9"]
    assert {**made.workers[1].env, "TF_CONFIG": with_ports.workers[1].tf_config} == with_ports.workers[1].env
    assert with_ports.workers[0].env["no_proxy"] == "127.0.0.1,localhost,::1"
    assert made.with_ports((8, 9)).workers[0].address == "127.0.0.1:8", "each attempt may have others"


def test_a_lone_worker_starts_no_server() -> None:
    made = plan(workers=1, environ={"TF_CONFIG": "{}"})
    assert made.port_count == 0
    (worker,) = made.workers
    assert ("TF_CONFIG" in worker.env, worker.unset, worker.tf_config) == (False, ("TF_CONFIG",), None)
    (found,) = plan(cluster=ClusterSpec.from_addresses(["h0:1"]), ranks=(0,)).workers
    assert ("TF_CONFIG" in found.env, found.address, found.tf_config) == (False, "h0:1", None)


def test_who_has_addresses_needs_no_ports() -> None:
    mirrored = plan(**MIRRORED, cluster__devices=2)
    assert mirrored.port_count == 0
    assert mirrored.with_ports(()) is mirrored
    cluster = ClusterSpec.from_addresses(["h0:1"])
    assert plan(cluster=cluster, ranks=(0,)).port_count == 0


def test_a_missing_port_or_rank_is_a_programming_error() -> None:
    made = make_plan(config(cluster__workers=4), header(), Host(4, (0, 1, 2, 3)))
    with pytest.raises(ValueError, match="expected 4 ports, received 1"):
        made.with_ports((1,))
    with pytest.raises(ValueError, match="expected 0 ports, received 1"):
        plan(**MIRRORED).with_ports((1,))
    with pytest.raises(ValueError, match="ranks"):
        plan(cluster=ClusterSpec.from_addresses(["h0:1"]))


def test_addresses_are_for_tfmp_worker() -> None:
    with pytest.raises(UsageError, match="expected a number of workers, received addresses") as caught:
        make_plan(config(cluster__workers=["a:1", "b:1"]), header(), Host(1, (0,)))
    assert caught.value.where == "cluster.workers"


def test_labels_of_one_class_are_for_models_of_your_own() -> None:
    host = Host(1, (0,))
    with pytest.raises(UsageError, match="expected labels of at least two classes"):
        make_plan(config(model__factory=None), header(classes=1), host)
    assert make_plan(config(), header(classes=1), host).replicas == 1


def test_long_runs_of_the_built_in_model_are_compiled() -> None:
    long: dict[str, Any] = {"training__epochs": 100, "model__factory": None}
    assert plan(**long).compiled == "apply"
    assert plan(**{**long, "training__epochs": 2}).compiled == "none"
    assert plan(training__epochs=100).compiled == "none"
