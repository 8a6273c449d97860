"""What is asked of a layout: processes, replicas and their numbers."""

from __future__ import annotations

import pytest

from tfmp.errors import UsageError
from tfmp.planning.layout import Kind, Layout, mirrored_gpus


@pytest.mark.parametrize(
    ("kind", "workers", "devices", "multi_process", "replicas", "first", "noun"),
    [
        ("multi-worker", 1, 1, True, 1, [0], "worker"),
        ("multi-worker", 3, 1, True, 3, [0, 1, 2], "worker"),
        ("multi-worker", 2, 4, True, 8, [0, 4], "replica"),
        ("mirrored", 1, 1, False, 1, [0], "replica"),
        ("mirrored", 1, 2, False, 2, [0], "replica"),
    ],
)
def test_every_device_is_a_replica(
    kind: Kind, workers: int, devices: int, multi_process: bool, replicas: int, first: list[int], noun: str
) -> None:
    layout = Layout.data_parallel(kind, workers, devices)
    assert layout.is_multi_process is multi_process
    assert (layout.replicas, layout.replicas_per_worker, layout.model) == (replicas, devices, 1)
    assert [layout.first_replica(rank) for rank in range(workers)] == first
    assert layout.replica_noun == noun


def test_a_replica_may_take_several_devices_of_one_worker() -> None:
    layout = Layout("multi-worker", data=4, model=2, workers=2, devices_per_worker=4)
    assert (layout.replicas, layout.replicas_per_worker, layout.first_replica(1)) == (4, 2, 2)


@pytest.mark.parametrize("mesh", [(4, 1, 2, 1), (1, 2, 2, 1), (3, 2, 2, 3)])
def test_a_mesh_that_does_not_fit_the_workers_is_a_programming_error(mesh: tuple[int, int, int, int]) -> None:
    data, model, workers, devices = mesh
    with pytest.raises(ValueError, match="does not lay"):
        Layout("multi-worker", data, model, workers, devices)


def test_mirrored_takes_as_many_devices_as_asked() -> None:
    assert mirrored_gpus("cpu", None, ()) == ((), 1)
    assert mirrored_gpus("cpu", 3, ("0",)) == ((), 3)
    assert mirrored_gpus("gpu", None, ("4", "7")) == (("4", "7"), 2)
    assert mirrored_gpus("gpu", 1, ("4", "7")) == (("4",), 1)
    with pytest.raises(UsageError, match="expected at most 1 device, one for each visible GPU, received 2"):
        mirrored_gpus("gpu", 2, ("4",))
