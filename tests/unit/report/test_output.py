"""A reader that goes away, or a full disk, ends no run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfmp.report.output import LastingOutput, lasting_output

_PROGRAM = """
import sys, time
from tfmp.report.output import lasting_output
with lasting_output():
    print("first")
    sys.stdin.read()  # until the reader has gone
    for i in range(3):
        print("lost", i, flush=True)
sys.exit(5)
"""


def test_output_without_a_reader_goes_nowhere_and_says_so_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "first\n"
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == "note: standard output was closed by its reader; the run continues\n"
    assert process.wait(20) == 5
    process.stderr.close()


def test_what_does_not_fit_on_the_disk_is_lost_and_the_rest_is_not(tmp_path: Path) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    gone: list[bool] = []
    try:
        output = LastingOutput(fd, lambda: gone.append(True))
        assert output.write(b"does not fit") == 12
        os.dup2(os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT), fd)
        assert output.write(b"there is room again") == 19
    finally:
        os.close(fd)
    assert (tmp_path / "out").read_bytes() == b"there is room again"
    assert gone == []


def test_other_errors_are_raised() -> None:
    read_end, write_end = os.pipe()
    with pytest.raises(OSError, match="Bad file descriptor"):
        LastingOutput(read_end, lambda: None).write(b"the wrong end")
    os.close(read_end)
    os.close(write_end)


def test_a_stream_that_is_not_the_processs_own_stays(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with lasting_output():
        assert sys.stdout is before
        print("kept")
    assert capsys.readouterr().out == "kept\n"
