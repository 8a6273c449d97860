"""``data.factory`` in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.data.test_cache import Data
from tfmp.data.cache import prepare
from tfmp.errors import TfmpError, UsageError

SOURCE = """
import os
import numpy as np

def load():
    print("reading")
    x = np.random.normal(size=(8, 3))
    return (x, x.sum(1)), (x[:2], x[:2].sum(1))

def fails():
    return {}["absent"]

def dies():
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)


def test_its_samples_are_those_of_the_function_and_drawn_alike_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    first = prepare(Data(factory="own_data:load"), lines.append).open()
    assert (first.name, first.classes, first.train.x.shape) == ("own_data:load", 0, (8, 3))
    assert first.train.y.tolist() == first.train.x.sum(1).tolist()
    assert prepare(Data(factory="own_data:load")).open().train.x.tolist() == first.train.x.tolist()
    assert lines == ["data: calling own_data:load"]
    out, err = capfd.readouterr()
    assert out == ""  # it belongs to the command
    assert err == "reading\n" * 2


def test_an_error_names_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        prepare(Data(factory="own_data:fails"))
    assert caught.value.what == "KeyError: 'absent'"
    assert caught.value.where == "data.factory: own_data:fails at own_data.py:11 in fails"
    assert "Traceback" in capfd.readouterr().err


def test_a_killed_process_is_told() -> None:
    with pytest.raises(TfmpError, match=r"the process of data\.factory ended with signal 9"):
        prepare(Data(factory="own_data:dies"))


def test_a_missing_function_is_named() -> None:
    with pytest.raises(UsageError, match="expected a function 'absent' in own_data, found dies, fails, load"):
        prepare(Data(factory="own_data:absent"))
