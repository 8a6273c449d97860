"""`tfmp verify` passes on code that is right and names what differs in code that is not. All ways: tests/models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Done
from tests.models.breaks import BREAKS, verified

STEPS = [0, 1, 2, 3, 4, 5, 6]


def test_workers_compute_what_one_process_does(tfmp: Callable[..., Done]) -> None:
    done = tfmp("verify", "--workers", 3, "--json")
    assert done.code == 0, done.text
    verdict = json.loads(done.out)
    assert verdict["passed"] is True
    assert verdict["first"] is None
    assert [worst["step"] for worst in verdict["steps"]] == STEPS
    assert max(worst["difference"] for worst in verdict["steps"]) < 1e-12


def test_a_broken_bridge_is_named(tmp_path: Path) -> None:
    fault = BREAKS["gradients stay on each worker"]
    done = verified(fault, tmp_path)
    assert done.code == 1
    assert f"error: the workers do not compute what one process does: {fault.named}" in done.err
    assert "after step 1, allowed" in done.err
    assert "passed" not in done.out


def test_bad_settings_start_nothing(tfmp: Callable[..., Done]) -> None:
    done = tfmp("verify", "--steps", 0)
    assert (done.code, done.seconds < 1) == (2, True)
    done = tfmp("verify", "--workers", 3, "--set", "model.factory=nowhere:build")
    assert (done.code, done.seconds < 1) == (2, True)
    assert "nowhere" in done.err
