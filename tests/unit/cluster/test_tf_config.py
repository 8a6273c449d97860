"""TF_CONFIG: what TensorFlow takes silently and gets wrong is an error that says where it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.cluster.tf_config import TfConfig, make_tf_config, parse_index, parse_tf_config
from tfmp.errors import UsageError

TWO = {"worker": ["a:1", "b:2"]}
FIRST = {"type": "worker", "index": 0}


def config(cluster: Any = TWO, task: Any = FIRST, **more: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task, **more})


def failure(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_tf_config(text)
    assert caught.value.exit_code == 2
    assert (caught.value.where or "").startswith("TF_CONFIG")
    assert "\n" not in caught.value.what
    assert len(caught.value.what) < 250
    return caught.value


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_an_empty_value_counts_as_unset(text: str | None) -> None:
    assert parse_tf_config(text) is None


def test_a_kubernetes_tfjob_is_understood() -> None:
    cluster = {"chief": ["job-chief-0.ns.svc:2222"], "worker": ["job-worker-0.ns.svc:2222", "job-worker-1.ns.svc:2222"]}
    parsed = parse_tf_config(config(cluster, {"type": "worker", "index": 1, "trial": "x"}, environment="cloud"))
    assert parsed is not None
    assert (parsed.task_type, parsed.index, parsed.rank, parsed.spec.size) == ("worker", 1, 2, 3)
    assert str(parsed.spec.address(0)) == "job-chief-0.ns.svc:2222"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("{'cluster': {}}", "expected JSON, received single quotes", 'JSON wants double quotes: {"cluster": ...}'),
        ('{"cluster":{"worker":["a:1","b:1",]}}', "a comma before a closing bracket", "remove the trailing comma"),
        ('{"cluster":{"worker":["a:1"],}}', "a comma before a closing bracket", "remove the trailing comma"),
        ('{"cluster":{"worker":["a:1",', "text that ends too early", "close every bracket and quote"),
        ('{\\"cluster\\":{}}', 'a backslash before "', None),
        ("\ufeff{}", "expected JSON, received", None),
        ("worker", 'received "worker" (Expecting value)', None),
        ('{"a": NaN}', "received NaN, which JSON does not have", None),
        ('{"a": ' + "9" * 5000 + "}", "received thousands of brackets or digits", None),
        ("[" * 60_000, "received thousands of brackets or digits", None),
        ("x" * 2**20, "expected at most 65,536 bytes, received 1,048,576 characters", None),
    ],
)
def test_text_that_is_no_json_is_explained(text: str, what: str, hint: str | None) -> None:
    error = failure(text)
    assert what in error.what
    if hint:
        assert error.hint == hint


def test_a_syntax_error_has_line_and_column() -> None:
    assert failure("{\n 'cluster': {}}").where == "TF_CONFIG line 2, column 2"


@pytest.mark.parametrize(
    ("text", "place", "what", "hint"),
    [
        ("[]", "", "expected a JSON object, received []", None),
        ('"x"', "", 'expected a JSON object, received "x"', None),
        ("null", "", "expected a JSON object, received null", None),
        (json.dumps(config()), "", "expected a JSON object, received", "remove the quotes around the whole value"),
        ("{}", " cluster", 'expected the key "cluster", received no keys', None),
        (json.dumps({"Cluster": TWO}), " cluster", 'received "Cluster"', 'rename "Cluster" to cluster'),
        (json.dumps({"cluster": TWO}), " task", 'expected the key "task", received "cluster"', None),
        (config([]), " cluster", "expected an object, received []", None),
        (config({}), " cluster.worker", "expected at least one worker, received none", None),
        (config({"worker": "a:1"}), " cluster.worker", 'a list of "host:port", received "a:1"', 'write ["a:1"]'),
        (config({"worker": {"0": "a:1"}}), " cluster.worker", 'received {"0": "a:1"}', None),
        (config({"worker": []}), " cluster.worker", "received an empty list", None),
        (config({"worker": ["a:1", 2]}), " cluster.worker[1]", 'expected "host:port", received 2', None),
        (config({"worker": ["a:1", "b"]}), " cluster.worker[1]", 'received "b"', "add the port, for example b:2222"),
        (config({"worker": ["a:1", "a:1"]}), " cluster.worker[1]", "which worker[0] already has", None),
        (config({"chief": ["a:1"], "worker": ["a:1"]}), " cluster.worker[0]", "which chief[0] already has", None),
        (config({"worker": ["a:1", "127.0.0.1:1"]}), " cluster.worker[1]", "received loopback 127.0.0.1:1", None),
        (config({"workers": ["a:1"]}), " cluster.workers", 'received "workers"', "did you mean worker?"),
        (config({"Worker": ["a:1"]}), " cluster.Worker", 'received "Worker"', "did you mean worker?"),
        (config({"worker_hosts": ["a:1"]}), " cluster.worker_hosts", 'received "worker_hosts"', "did you mean worker?"),
        (config({"ps": ["a:1"]}), " cluster.ps", "parameter servers are not supported", "remove the ps tasks"),
        (config({"master": ["a:1"]}), " cluster.master", "master is not supported", "name it chief"),
        (config({"chief": ["a:1", "b:1"]}), " cluster.chief", "expected at most one chief, received 2", None),
        (config(task=[]), " task", "expected an object, received []", None),
        (config(task={"index": 0}), " task.type", 'expected the key "type", received "index"', None),
        (config(task={"type": None, "index": 0}), " task.type", "received null", None),
        (config(task={"type": "Worker", "index": 0}), " task.type", 'received "Worker"', "did you mean worker?"),
        (config(task={"type": "master", "index": 0}), " task.type", "master is not supported", "name it chief"),
        (config(task={"type": "chief", "index": 0}), " task.type", "received chief, which has no address", None),
        ('{"cluster":{},"cluster":{}}', " cluster", 'expected each key once, received "cluster" twice', None),
        ('{"cluster":{"worker":[],"worker":[]}}', " cluster.worker", 'received "worker" twice', None),
        ('{"x":[{"a":1,"a":2}]}', " x[0].a", 'received "a" twice', None),
    ],
)
def test_a_wrong_shape_is_named_with_its_key_path(text: str, place: str, what: str, hint: str | None) -> None:
    error = failure(text)
    assert error.where == f"TF_CONFIG{place}"
    assert what in error.what
    if hint:
        assert error.hint == hint


def test_a_task_without_a_cluster_does_not_train_alone() -> None:
    error = failure('{"task":{"type":"worker","index":0}}')
    assert error.what == 'expected the key "cluster", received "task"'
    assert "each worker would train alone" in (error.hint or "")


@pytest.mark.parametrize("index", [2, -1, 0.9, 1.0, True, None, "one", "-1", " 1", "٣", [], "9" * 30])
def test_an_index_that_is_no_worker_names_value_and_range(index: object) -> None:
    error = failure(config(task={"type": "worker", "index": index}))
    assert error.where == "TF_CONFIG task.index"
    assert error.what == f"expected an index in 0..1, received {json.dumps(index)}"
    with pytest.raises(UsageError, match=r"expected an index in 0\.\.1") as caught:
        parse_index(index, 2, "--index")
    assert caught.value.where == "--index"


def test_a_missing_index_is_said() -> None:
    assert failure(config(task={"type": "worker"})).what == "expected an index in 0..1, received nothing"


@pytest.mark.parametrize("index", [1, "1", "01"])
def test_an_index_in_digits_counts_as_its_number(index: object) -> None:
    parsed = parse_tf_config(config(task={"type": "worker", "index": index}))
    assert parsed is not None
    assert parsed.rank == 1


@pytest.mark.parametrize("cluster", [TWO, {**TWO, "evaluator": ["e:1"]}])
def test_an_evaluator_has_no_rank_and_is_not_counted(cluster: dict[str, Any]) -> None:
    parsed = parse_tf_config(config(cluster, {"type": "evaluator", "index": 0}))
    assert parsed is not None
    assert (parsed.rank, parsed.spec.size) == (None, 2)


def test_tf_config_is_compact_and_always_the_same_text() -> None:
    spec = ClusterSpec((Address("::1", 2), Address("::1", 3)), Address("::1", 1), (Address("::1", 4),))
    assert make_tf_config(spec, "worker", 1) == (
        '{"cluster":{"chief":["[::1]:1"],"worker":["[::1]:2","[::1]:3"],"evaluator":["[::1]:4"]},'
        '"task":{"type":"worker","index":1}}'
    )
    with pytest.raises(UsageError, match=r"expected an index of worker in 0\.\.1, received 2"):
        make_tf_config(spec, "worker", 2)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.booleans(), st.data())
def test_what_is_written_is_read_back(workers: int, has_chief: bool, data: st.DataObject) -> None:
    addresses = tuple(Address(f"h{i}", 2222) for i in range(workers + 1))
    spec = ClusterSpec(addresses[1:], addresses[0] if has_chief else None)
    rank = data.draw(st.integers(0, spec.size - 1))
    task_type, index = spec.task(rank)
    parsed = parse_tf_config(make_tf_config(spec, task_type, index))
    assert parsed == TfConfig(spec, task_type, index)
    assert parsed.rank == rank


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet="aw:1\ud800", max_size=5)
    | st.sampled_from(["worker", "a:1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cluster", "task", "worker", "chief", "type", "index"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(json_values.map(json.dumps) | st.text(alphabet="{}[]:,\"'\\a1\ufeff\udcef ", max_size=40))
def test_any_text_is_understood_or_a_usage_error(text: str) -> None:
    try:
        parse_tf_config(text)
    except UsageError as error:
        error.render().encode()  # printable: no lone surrogates in the message
