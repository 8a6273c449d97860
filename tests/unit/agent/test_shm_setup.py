"""Where workers join to share memory: one launcher, a launcher each, and hosts that turn out to be several."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.planning.plans import make
from tfmp.agent.shm_setup import compose_shm_setup, local_shm_setup, settle_collective, shared_shm_setup
from tfmp.cluster.spec import ClusterSpec
from tfmp.errors import UsageError
from tfmp.planning.plan import Plan
from tfmp.planning.task import ShmJoin

NAMES = ["worker 0 (h:1)", "worker 1 (h:2)"]


def plan(*addresses: str) -> Plan:
    return make(cluster=ClusterSpec.from_addresses(addresses), ranks=(0,))


def test_workers_of_one_launcher_join_in_a_private_folder(tmp_path: Path) -> None:
    made = plan("h0:1", "h1:1", "h0:2")
    assert local_shm_setup(tmp_path, replace(made, collective=plan("h0:1", "h1:1").collective)) is None
    setup = local_shm_setup(tmp_path, made)
    assert setup is not None
    assert setup.directory.stat().st_mode & 0o777 == 0o700
    assert len(bytes.fromhex(setup.token)) == 16
    assert [setup.join(rank, made) for rank in range(3)] == [
        ShmJoin(setup.directory, setup.token, rank=0, size=2, hosts=2),
        ShmJoin(setup.directory, setup.token, rank=0, size=1, hosts=2),
        ShmJoin(setup.directory, setup.token, rank=1, size=2, hosts=2),
    ]


def test_launchers_of_one_host_join_in_one_folder_which_its_first_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = plan("h0:1", "h1:1", "h0:2")
    told = compose_shm_setup(made, ["x", "y", "x"], [11, 12, 13])
    assert told["apart"] == []
    with shared_shm_setup(made, 0, told) as first:
        with shared_shm_setup(made, 2, told) as third, shared_shm_setup(made, 1, told) as second:
            assert first is not None
            assert second is not None
            assert first == third != second
            assert first.directory.parent.name.startswith("tfmp-11-")
        assert first.directory.is_dir()
    assert not first.directory.parent.exists()
    with shared_shm_setup(plan("h0:1", "h1:1"), 0, told) as nothing:
        assert nothing is None


def test_workers_of_one_address_without_common_memory_take_the_ring() -> None:
    made = plan("h:1", "h:2")
    told = compose_shm_setup(made, ["x", "y"], [1, 2])
    assert told["apart"] == [1]
    reason = "worker 0 (h:1) and worker 1 (h:2) have one address, but do not share a folder for temporary files"
    settled = settle_collective(made, told, "auto", NAMES)
    assert settled == replace(made, collective=settled.collective)
    assert settled.collective == ("ring", reason)
    with pytest.raises(UsageError, match="the collective shm is not possible: " + re.escape(reason)):
        settle_collective(made, told, "shm", NAMES)
    assert settle_collective(made, compose_shm_setup(made, ["x", "x"], [1, 2]), "auto", NAMES) is made
