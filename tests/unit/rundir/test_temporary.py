"""The temporary folder of a run: gone with it, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfmp.rundir.temporary import in_use, temporary_folder

_HOLDS_ONE = """
import sys
from tfmp.rundir.temporary import temporary_folder
with temporary_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_is_private_and_goes_at_the_end(temporary: Path) -> None:
    with temporary_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("x")
        assert list(temporary.iterdir()) == [folder]
    assert list(temporary.iterdir()) == []


def test_one_in_use_stays_whatever_its_process_id_and_an_abandoned_one_goes(temporary: Path) -> None:
    """A launcher in another container has a process id that does not exist here."""
    other = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert other.stdout is not None
    held = Path(other.stdout.readline().strip())
    renamed = held.rename(held.with_name("tfmp-4194304-elsewhere"))  # beyond the largest process id
    with temporary_folder() as own:
        assert set(temporary.iterdir()) == {renamed, own}
    other.kill()
    other.communicate()
    theirs = {temporary / name for name in ("not-tfmp-1-x", "tfmp-mine-x", "tfmp-1-x")}
    for folder in theirs:
        folder.mkdir()
    with temporary_folder() as own:
        assert set(temporary.iterdir()) == {own, *theirs}


def test_several_may_use_one_and_one_without_a_lock_goes_when_it_is_old(temporary: Path) -> None:
    used, young, old = (temporary / f"tfmp-{os.getpid()}-{name}" for name in ("used", "young", "old"))
    for folder in (used, young, old):
        folder.mkdir()
    os.utime(old, (1, 1))
    with in_use(used):
        with in_use(used):
            pass
        with temporary_folder() as own:
            assert set(temporary.iterdir()) == {own, used, young}
    with temporary_folder() as own:
        assert set(temporary.iterdir()) == {own, young}


def test_a_link_is_not_followed(temporary: Path) -> None:
    target = temporary / "precious"
    target.mkdir()
    (target / "file").write_text("x")
    (temporary / "tfmp-1-link").symlink_to(target)
    with temporary_folder():
        assert (target / "file").exists()
