"""`tfmp verify` with all known ways to break the bridge, random layers and several devices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Done
from tests.models.breaks import BREAKS, verified


@pytest.mark.parametrize("name", BREAKS)
def test_verify_finds_it(name: str, tmp_path: Path) -> None:
    done = verified(BREAKS[name], tmp_path)
    assert done.code == 1, done.text
    assert "the workers do not compute what one process does" in done.err
    assert BREAKS[name].named in done.err


def test_random_layers_are_compared_beside_their_natural_spread(tfmp: Callable[..., Done]) -> None:
    done = tfmp("verify", "--set", "model.dropout=0.5", "--steps", 2, "--json")
    assert done.code == 0, done.text
    last = json.loads(done.out)["steps"][-1]
    assert last["difference"] > 1e-6  # the workers drop other units
    assert last["spread"] > 1e-6
    assert last["allowed"] >= last["spread"]


def test_devices_of_one_process_compute_what_one_does(tfmp: Callable[..., Done]) -> None:
    done = tfmp("verify", "--strategy", "mirrored", "--devices", 2)
    assert done.code == 0, done.text
    assert done.out.splitlines()[-1].startswith("passed: 6 steps equal one process; the largest difference is ")
