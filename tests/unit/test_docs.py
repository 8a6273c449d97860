"""The documents say what the program does: every command, option and key; links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.conftest import ROOT
from tfmp import __version__
from tfmp.cli import reference as commands
from tfmp.cli.app import COMMANDS, tfmp
from tfmp.cli.options import KEY_FLAGS
from tfmp.config import reference as configuration
from tfmp.config import schema_keys

_DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("[CS]*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    command = tfmp.get_command(click.Context(tfmp), name)
    assert command is not None
    section = commands.markdown().split(f"## tfmp {name}\n")[1].split("\n## ")[0]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for option in parameter.opts:
                assert (option in section) is not parameter.hidden, option


@pytest.mark.parametrize(
    ("document", "generator"),
    [("commands.md", commands), ("configuration.md", configuration)],
    ids=["commands", "keys"],
)
def test_a_generated_document_is_what_its_generator_writes(document: str, generator: ModuleType) -> None:
    written = (ROOT / "docs" / document).read_text(encoding="utf-8")
    assert written == generator.markdown(), f"run: python -m {generator.__name__} > docs/{document}"


def test_every_key_is_documented() -> None:
    text = configuration.markdown()
    for key in schema_keys():
        assert f"| `{key.partition('.')[2]}` |" in text
    assert {flag.key for flag in KEY_FLAGS} <= set(schema_keys())


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_files_that_name_the_version_name_this_one() -> None:
    """It is set in tfmp/__init__.py; these cannot read it there."""
    named = re.compile(r"tfmp:(\d+\.\d+\.\d+)|image\.version=\"([^\"]+)\"")
    found = {}
    for path in [*(ROOT / "docker").iterdir(), *(ROOT / "docs").rglob("*.md")]:
        if versions := {first or second for first, second in named.findall(path.read_text())}:
            found[path.name] = versions
    assert {"Dockerfile", "compose.yaml", "deploy.md"} <= found.keys()
    assert found == {name: {__version__} for name in found}


def test_the_picture_of_the_packages_is_drawn_from_the_code() -> None:
    spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs" / "images" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    assert written == module.draw(), "run: python docs/images/architecture.py"


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", text)
    assert len(names) > 40
    assert [name for name in names if not any((ROOT / top / name).exists() for top in ("tfmp", ""))] == []
