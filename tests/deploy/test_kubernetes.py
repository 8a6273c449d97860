"""The Kubernetes file against the published schemas, of which a package carries each version's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, run_program

validator = pytest.importorskip("kubernetes_validate", reason="pip install 'tfmp[deploy]'")


def _parts(*arguments: object) -> list[dict[str, Any]]:
    done = run_program("generate", "kubernetes", *arguments, "--output", "-")
    assert done.code == 0, done.text
    return list(yaml.safe_load_all(done.out))


@pytest.fixture(scope="module")
def parts() -> list[dict[str, Any]]:
    """The project's main configuration, as four pods."""
    return _parts(ROOT / "configs" / "mnist.yaml", "--workers", 4)


@pytest.mark.parametrize("version", ["1.29", "1.31", "latest"])
def test_every_part_agrees_with_the_schemas(parts: list[dict[str, Any]], version: str) -> None:
    version = validator.latest_version() if version == "latest" else version
    kinds = [part["kind"] for part in parts]
    assert kinds == ["ConfigMap", "Service", "NetworkPolicy", "PersistentVolumeClaim", "Job"]
    for part in parts:
        validator.validate(part, version, strict=True)


def test_without_a_configuration_too() -> None:
    for part in _parts("--workers", 1, "--set", "run.max_restarts=0", "--cpus", 3, "--memory", 0.5):
        validator.validate(part, validator.latest_version(), strict=True)


def test_the_schemas_see_a_misspelt_key(parts: list[dict[str, Any]]) -> None:
    job = copy.deepcopy(parts[-1])
    job["spec"]["paralelism"] = job["spec"].pop("parallelism")
    with pytest.raises(validator.ValidationError, match="paralelism"):
        validator.validate(job, validator.latest_version(), strict=True)
