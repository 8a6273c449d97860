"""What is asked of a collective, and the ones that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tfmp.errors import UsageError
from tfmp.planning.collective import Collective, resolve_collective
from tfmp.planning.host import Device
from tfmp.planning.layout import Layout

MIRRORED = Layout.data_parallel("mirrored", 1, 2)


def workers(number: int) -> Layout:
    return Layout.data_parallel("multi-worker", number, 1)


@pytest.mark.parametrize(
    ("name", "shared_memory", "crosses_hosts", "communication"),
    [
        ("shm", True, False, "ring"),
        ("hierarchical", True, True, "ring"),
        ("ring", False, True, "ring"),
        ("nccl", False, True, "nccl"),
        ("in-process", False, False, "ring"),
        ("none", False, False, "ring"),
    ],
)
def test_what_a_collective_uses(name: str, shared_memory: bool, crosses_hosts: bool, communication: str) -> None:
    collective = Collective(name, "")
    assert collective.uses_shared_memory is shared_memory
    assert collective.crosses_hosts is crosses_hosts
    assert collective.communication == communication


@pytest.mark.parametrize(
    ("requested", "layout", "hosts", "device", "received"),
    [
        ("nccl", workers(2), (0, 0), "cpu", "for the collective nccl, received workers on the CPU: no GPU is visible"),
        ("shm", workers(2), (0, 1), "cpu", "for the collective shm, received workers on several hosts"),
        ("shm", workers(2), (0, 0), "gpu", "for the collective shm, received workers on GPUs"),
        ("hierarchical", workers(2), (0, 1), "cpu", "for the collective hierarchical, received one worker a host"),
        ("hierarchical", workers(2), (0, 0), "cpu", "for the collective hierarchical, received all on one host"),
        ("hierarchical", workers(3), (0, 0, 1), "gpu", "for the collective hierarchical, received workers on GPUs"),
        ("ring", MIRRORED, (0,), "gpu", "for the mirrored strategy, received ring: it joins processes, this is one"),
    ],
)
def test_what_does_not_fit_is_refused(
    requested: str, layout: Layout, hosts: Sequence[int], device: Device, received: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_collective(requested, layout, hosts, device)
    assert caught.value.what.endswith(received)
    assert caught.value.where == "cluster.collective"
