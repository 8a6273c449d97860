"""The README's commands, run as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run, run_program


def commands() -> list[str]:
    """Lines of the README's shell blocks that start tfmp, but for those that name files of the reader's own."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("tfmp ") and "my_" not in line]


def test_there_are_commands_to_run() -> None:
    assert len(commands()) >= 4


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_works(tmp_path: Path, command: str) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    done = run_program(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.code == 0, done.text


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_keeps_what_its_heading_says(trained: Callable[..., Run], config: Path) -> None:
    lines = config.read_text().splitlines()
    assert lines[0] == f"# tfmp train configs/{config.name}"
    assert any(re.match(r"# Time: about \d+ s", line) for line in lines)
    (expected,) = re.findall(r"^# expected: val_accuracy about (0\.\d+)", config.read_text(), re.M)
    run = trained(f"configs/{config.name}")
    assert run.summary["val_accuracy"] == pytest.approx(float(expected), abs=0.02 if config.stem == "smoke" else 0.002)
