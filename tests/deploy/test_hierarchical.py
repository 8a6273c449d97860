"""Two hosts with two workers each: sums in the memory of each, and over the network between their first workers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.worker_support import LONG, SHORT, Launcher, launchers
from tests.deploy.hosts_support import address, hosts, on

#: Ranks 0 and 2 are on the first host, 1 and 3 on the second: neighbours need not be on one host.
_HOST = (0, 1, 0, 1)
_ADDRESSES = [address(host, 2222 + rank) for rank, host in enumerate(_HOST)]


@pytest.fixture(scope="module")
def prefix() -> Iterator[str]:
    """The hosts' prefix."""
    with hosts("y", 2) as name:
        yield name


def _group(start: Any, prefix: str, *arguments: object) -> list[Launcher]:
    more = ("--workers", ",".join(_ADDRESSES))
    return [
        start(f"w{rank}", *arguments, *more, "--index", rank, before=on(prefix, host))
        for rank, host in enumerate(_HOST)
    ]


def test_four_workers_on_two_hosts_compute_what_one_process_does(prefix: str, tmp_path: Path, trained: Any) -> None:
    np = pytest.importorskip("numpy")
    keras = pytest.importorskip("keras")
    exact = (*SHORT, "--set", "training.precision=float64")
    with launchers(tmp_path) as start:
        group = _group(start, prefix, *exact)
        assert [launcher.wait(120) for launcher in group] == [0, 0, 0, 0], "\n".join(one.text for one in group)
        folder = group[0].folder
        for launcher in group:
            assert "4 workers, multi-worker, collective hierarchical" in launcher.text
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["collective"], summary["workers"], summary["replicas"]) == ("hierarchical", 4, 4)
    one = trained(*exact, "--workers", 1)
    ours, theirs = (keras.models.load_model(path / "model.keras").get_weights() for path in (folder, one.folder))
    assert max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)) < 1e-8


@pytest.mark.parametrize("lost", [3, 1], ids=["a worker", "the leader of a host"])
def test_a_worker_that_is_killed_is_named_by_all_others(prefix: str, tmp_path: Path, lost: int) -> None:
    with launchers(tmp_path) as start:
        group = _group(start, prefix, *LONG)
        for launcher in group:
            launcher.until("epoch 2/", 120)
        os.kill(group[lost].worker_pid(), signal.SIGKILL)
        began = time.monotonic()
        assert [launcher.wait(45) for launcher in group] == [137] * 4, "\n".join(one.text for one in group)
        assert time.monotonic() - began < 30
        for launcher in group:
            assert f"worker {lost} failed: signal 9 (SIGKILL), after step " in launcher.text
