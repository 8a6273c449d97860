"""Where workers that share memory meet."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.agent.shm_setup import compose_shm_setup, local_shm_setup, settle_collective, shared_shm_setup
from tfmp.errors import UsageError


def meeting_plan(collective: str, *hosts: int) -> Any:
    return SimpleNamespace(collective=SimpleNamespace(name=collective), hosts=hosts)


def test_workers_that_share_memory_meet_in_a_private_folder(tmp_path: Path) -> None:
    assert local_shm_setup(tmp_path, meeting_plan("ring", 0, 1)) is None
    plan = meeting_plan("hierarchical", 0, 1, 0)
    place = local_shm_setup(tmp_path, plan)
    assert place is not None
    assert place.directory.stat().st_mode & 0o777 == 0o700
    assert len(bytes.fromhex(place.token)) == 16
    told = [place.of(rank, plan) for rank in range(3)]
    assert [(one["rank"], one["size"], one["hosts"]) for one in told] == [(0, 2, 2), (0, 1, 2), (1, 2, 2)]
    assert {(one["directory"], one["token"]) for one in told} == {(str(place.directory), place.token)}


def test_launchers_of_one_host_meet_in_one_folder_which_its_first_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = meeting_plan("hierarchical", 0, 1, 0)
    told = compose_shm_setup(plan, ["x", "y", "x"], [11, 12, 13])
    assert told["apart"] == []
    with shared_shm_setup(plan, 0, told) as first:
        with shared_shm_setup(plan, 2, told) as third, shared_shm_setup(plan, 1, told) as second:
            assert first is not None
            assert second is not None
            assert first == third != second
            assert first.directory.parent.name.startswith("tfmp-11-")
        assert first.directory.is_dir()
    assert not first.directory.parent.exists()
    with shared_shm_setup(meeting_plan("ring", 0, 1), 0, told) as nothing:
        assert nothing is None


def test_workers_of_one_address_without_common_memory_take_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfmp.agent.shm_setup.replace", lambda plan, collective: collective)
    plan = meeting_plan("shm", 0, 0)
    told = compose_shm_setup(plan, ["x", "y"], [1, 2])
    names = ["worker 0 (h:1)", "worker 1 (h:2)"]
    assert told["apart"] == [1]
    reason = "worker 0 (h:1) and worker 1 (h:2) have one address and share no folder for temporary files"
    assert settle_collective(plan, told, "auto", names) == ("ring", reason)
    with pytest.raises(UsageError, match="the collective shm is not possible: " + re.escape(reason)):
        settle_collective(plan, told, "shm", names)
    assert settle_collective(plan, compose_shm_setup(plan, ["x", "x"], [1, 2]), "auto", names) is plan
