"""What two launchers compare."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tfmp.config import RunConfig
from tfmp.ipc import NotOurs
from tfmp.rendezvous.identity import Identity, agreed_values, differences, installed_versions


def identity(rank: int = 0, **changes: object) -> Identity:
    values = {"cluster.workers": "a:1,b:2", "version of Keras": "3.15", "training.epochs": 5, **changes}
    return Identity(rank, {name: value for name, value in values.items() if value is not None}, "host", 1)


def test_an_identity_survives_the_way() -> None:
    one = replace(identity(3), run="Slurm step 1.0", port=2222)
    assert Identity.from_message(json.loads(json.dumps(one.to_message()))) == one


@pytest.mark.parametrize(
    "change",
    [
        {"rank": True},
        {"rank": "0"},
        {"agreed": []},
        {"host": None},
        {"pid": 1.5},
        {"run": 7},
        {"digest": "0"},
        {"port": ""},
    ],
)
def test_a_malformed_greeting_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(NotOurs):
        Identity.from_message({**identity().to_message(), **change})


def test_what_another_host_says_of_itself_cannot_move_the_terminal() -> None:
    message = replace(identity(), host="\x1b[2Jevil\n\ud800").to_message()
    assert Identity.from_message(message).host == "?[2Jevil??"


def test_differences_name_the_cluster_first_then_versions_then_settings() -> None:
    theirs = identity(
        1, **{"training.epochs": 6, "version of Keras": "3.14", "cluster.workers": "b:2,a:1", "a.new": None}
    )
    ours = identity(0, **{"a.new": [1]})
    found = [(one.name, one.ours, one.theirs) for one in differences(ours, theirs)]
    assert found == [
        ("cluster.workers", "a:1,b:2", "b:2,a:1"),
        ("version of Keras", "3.15", "3.14"),
        ("a.new", "[1]", "-"),
        ("training.epochs", "5", "6"),
    ]
    assert differences(ours, replace(ours, rank=1, host="other", pid=2)) == []


def test_settings_that_change_the_numbers_are_compared_and_each_hosts_own_are_not() -> None:
    values = agreed_values(RunConfig(), "a:1", {"Python": "3.11"}, content_of_the_data="abc")
    assert values["cluster.workers"] == "a:1"
    assert values["version of Python"] == "3.11"
    assert values["content of the data"] == "abc"
    assert (values["training.batch_size"], values["model.units"], values["data.limit_train"]) == (256, [128], None)
    assert {"cluster.collective", "cluster.strategy", "cluster.device"} <= values.keys()
    own = {"cluster.token", "cluster.start_timeout_s", "cluster.threads_per_worker", "data.cache_dir", "data.path"}
    assert not own & values.keys()
    assert not any(name.startswith("run.") for name in values)
    json.dumps(values)


def test_versions_come_from_the_installed_packages() -> None:
    versions = installed_versions()
    assert list(versions) == ["tfmp", "TensorFlow", "Keras", "Python"]
    assert all(version[0].isdigit() for version in versions.values())
    assert versions["Python"].count(".") == 1
