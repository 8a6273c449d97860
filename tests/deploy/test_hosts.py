"""Three hosts with a network between them: the numbers of one process; a host that is cut off is named by the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.worker_support import LONG, SHORT, Launcher, launchers
from tests.deploy.hosts_support import address, hosts, on, script

_HOSTS = 3
_ADDRESSES = [address(host) for host in range(_HOSTS)]


@pytest.fixture(scope="module")
def prefix() -> Iterator[str]:
    """The hosts' prefix."""
    with hosts("h", _HOSTS) as name:
        yield name


def _start(start: Any, prefix: str, host: int, *arguments: object) -> Launcher:
    more = ("--workers", ",".join(_ADDRESSES), "--index", host)
    return start(f"h{host}", *arguments, *more, before=on(prefix, host))  # type: ignore[no-any-return]


def test_three_hosts_compute_what_one_process_does(prefix: str, tmp_path: Path, trained: Any) -> None:
    np = pytest.importorskip("numpy")
    keras = pytest.importorskip("keras")
    exact = (*SHORT, "--set", "training.precision=float64")
    with launchers(tmp_path) as start:
        group = [_start(start, prefix, host, *exact) for host in (1, 2)]
        group[0].until(f"waiting for 1 of 3 workers: worker 0 ({_ADDRESSES[0]})")
        group.append(_start(start, prefix, 0, *exact))
        assert [launcher.wait() for launcher in group] == [0, 0, 0], "\n".join(one.text for one in group)
        folder = group[-1].folder
    one = trained(*exact, "--workers", 1)
    ours, theirs = (keras.models.load_model(path / "model.keras").get_weights() for path in (folder, one.folder))
    assert max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)) < 1e-8


@pytest.mark.parametrize("lost", [1, 0], ids=["a worker", "the leader"])
def test_a_host_that_is_cut_off_is_named_by_the_others(prefix: str, tmp_path: Path, lost: int) -> None:
    with launchers(tmp_path) as start:
        group = [_start(start, prefix, host, *LONG) for host in range(_HOSTS)]
        for launcher in group:
            launcher.until("epoch 2/", 90)
        script("netns-hosts.sh", "cut", prefix, lost)
        try:
            began = time.monotonic()
            survivors = [launcher for host, launcher in enumerate(group) if host != lost]
            assert [launcher.wait(45) for launcher in survivors] == [138, 138], "\n".join(one.text for one in survivors)
            assert time.monotonic() - began < 45
            for launcher in survivors:
                assert f"error: worker {lost} is lost: nothing heard from it for" in launcher.text
                assert f"where: worker {lost} ({_ADDRESSES[lost]})" in launcher.text
            assert group[lost].wait(45) == 138, "the one that is cut off ends, too"
        finally:
            script("netns-hosts.sh", "join", prefix, lost)
    if lost != 0:
        assert json.loads((group[0].folder / "failure.json").read_text())["exit_code"] == 138


def test_hosts_that_know_only_where_to_meet_learn_of_each_other(prefix: str, tmp_path: Path) -> None:
    with launchers(tmp_path) as start:
        group = []
        for host in range(_HOSTS):
            mpi = {"RANK": host, "SIZE": _HOSTS, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
            env = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in mpi.items()}
            group.append(start(f"h{host}", *SHORT, "--rendezvous", _ADDRESSES[0], env=env, before=on(prefix, host)))
        assert [launcher.wait() for launcher in group] == [0, 0, 0], "\n".join(one.text for one in group)
    config = (group[0].folder / "config.yaml").read_text()
    assert 'workers: ["10.78.0.10:2222", "10.78.0.11:2223", "10.78.0.12:2224"]' in config
