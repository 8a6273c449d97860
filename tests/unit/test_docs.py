"""The documents say what the program does: every command, option and key; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.conftest import ROOT
from tfmp.cli.app import COMMANDS, tfmp
from tfmp.cli.options import KEY_FLAGS
from tfmp.config import schema_keys

_DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    assert f"## tfmp {name}\n" in text
    command = tfmp.get_command(click.Context(tfmp), name)
    assert command is not None
    section = text.split(f"## tfmp {name}\n")[1].split("\n## ")[0]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            for option in parameter.opts:
                assert option in section, f"regenerate: python -m tfmp.cli.reference > docs/commands.md ({option})"


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for key in schema_keys():
        assert f"| `{key.partition('.')[2]}` |" in text
    assert {flag.key for flag in KEY_FLAGS} <= set(schema_keys())


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target
