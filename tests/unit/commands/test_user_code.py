"""The user's own functions are looked for in the text of their files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.commands.user_code import check_user_code
from tfmp.config import RunConfig
from tfmp.errors import UsageError

SOURCE = """
import functools
from os.path import join as joined

raise RuntimeError("nothing is run")

if True:
    def inside(): ...
try:
    import nothing_of_the_kind
except ImportError:
    nothing_of_the_kind = None

def build(input_shape, classes): ...

class Callback: ...

partial = functools.partial(build)
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no package is imported either')")
    (package / "models.py").write_text(SOURCE)
    (package / "broken.py").write_text("def build(:\n")
    (package / "star.py").write_text("from somewhere import *\n")
    monkeypatch.chdir(tmp_path)


def check(factory: str | None = None, *callbacks: str) -> None:
    config = RunConfig.model_validate({"model": {"factory": factory}, "training": {"callbacks": callbacks}})
    resolved: Any = SimpleNamespace(config=config, origin=lambda key: f"run.yaml:{len(key)}")
    check_user_code(resolved)


@pytest.mark.parametrize(
    "name", ["build", "inside", "Callback", "partial", "joined", "functools", "nothing_of_the_kind"]
)
def test_what_a_file_defines_is_found(name: str) -> None:
    check(f"own_package.models:{name}")


@pytest.mark.parametrize("reference", ["own_package.star:whatever", "os:getcwd", "json:loads", "math:sqrt"])
def test_what_the_text_cannot_tell_is_left_to_the_workers(reference: str) -> None:
    check(None, reference)


@pytest.mark.parametrize(
    ("reference", "what", "hint"),
    [
        (
            "models:biuld",
            "expected a function 'biuld' in .*models.py, found Callback, build",
            "own_package.models:build",
        ),
        ("modles:build", "cannot find module own_package.modles in ", "import own_package.modles"),
        ("broken:build", "own_package.broken cannot be imported: invalid syntax", None),
    ],
)
def test_what_is_not_there_is_named_with_its_place(reference: str, what: str, hint: str | None) -> None:
    reference = f"own_package.{reference}"
    for arguments, place in (
        ((reference,), "model.factory (run.yaml:13)"),
        ((None, reference), "training.callbacks ("),
    ):
        with pytest.raises(UsageError, match=what) as caught:
            check(*arguments)
        assert place in str(caught.value.where)
        assert hint is None or hint in str(caught.value.hint)


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"cannot find module no_such_package\.models in "):
        check("no_such_package.models:build")


def test_a_syntax_error_is_told_with_its_line() -> None:
    with pytest.raises(UsageError) as caught:
        check("own_package.broken:build")
    assert "broken.py:1, model.factory" in str(caught.value.where)


@pytest.mark.parametrize(
    "setting", [("data", "factory"), ("model", "factory"), ("training", "loss"), ("training", "metrics")]
)
def test_each_key_that_names_a_function_is_checked(setting: tuple[str, str]) -> None:
    section, name = setting
    value: Any = "own_package.models:missing"
    sections: dict[str, dict[str, Any]] = {"model": {"factory": "own_package.models:build"}}
    sections.setdefault(section, {})[name] = [value] if name == "metrics" else value
    resolved: Any = SimpleNamespace(config=RunConfig.model_validate(sections), origin=lambda key: "run.yaml:3")
    with pytest.raises(UsageError, match="expected a function 'missing'") as caught:
        check_user_code(resolved)
    assert caught.value.where == f"{section}.{name} (run.yaml:3)"
