"""The end of a worker: all it left is read, nothing is waited for, every descriptor is closed."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfmp.events import Ready, WorkerEvent
from tfmp.workers.handle import WorkerHandle
from tfmp.workers.spec import Stream, WorkerSpec


class Seen:
    def __init__(self, path: Path) -> None:
        self.lines: list[tuple[int, Stream, str]] = []
        self.events: list[tuple[int, WorkerEvent]] = []
        self.selector = selectors.DefaultSelector()
        self.worker = WorkerHandle(
            WorkerSpec(2, {}, path, argv=("true",)),
            1,
            self.selector,
            on_line=lambda *line: self.lines.append(line),
            on_event=lambda *event: self.events.append(event),
        )


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Seen]:
    open_before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    seen = Seen(tmp_path / "w.log")
    yield seen
    assert len(seen.selector.get_map()) == 0
    seen.selector.close()
    assert sorted(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208


def test_what_is_left_in_the_pipes_is_read_at_the_end(seen: Seen, tmp_path: Path) -> None:
    with seen.worker.open_pipes() as (out, err, events, stacks):
        os.write(out, b"o" * 60_000 + b"\nlast words")
        os.write(err, b"Traceback\n")
        os.write(events, b'{"event": "ready"}\n{"event": "to')
        os.write(stacks, b"in a collective")
        assert seen.worker.stacks() == "in a collective"
        seen.worker.end()
        assert seen.events == [(2, Ready())]
    assert [line for line in seen.lines if line[1] == "stderr"] == [(2, "stderr", "Traceback")]
    assert "".join(text for _, stream, text in seen.lines if stream == "stdout") == "o" * 60_000 + "last words"
    assert (tmp_path / "w.log").stat().st_size == 60_000 + len("\nlast words") + len("Traceback\n")
    seen.worker.end()  # again: nothing


def test_a_pipe_that_someone_else_fills_for_ever_does_not_hold_the_end(seen: Seen, tmp_path: Path) -> None:
    with seen.worker.open_pipes() as (out, *_):
        writer = subprocess.Popen(["yes"], stdout=out)
        assert seen.selector.select(5)
        began_s = time.monotonic()
        seen.worker.end()
        assert time.monotonic() - began_s < 2
    assert 0 < (tmp_path / "w.log").stat().st_size <= 64 * 1024
    assert writer.wait(5) != 0  # the pipe is closed: SIGPIPE


def test_a_caller_that_raises_leaves_nothing_open(seen: Seen) -> None:
    def on_line(rank: int, stream: Stream, text: str) -> None:
        raise BrokenPipeError

    seen.worker.log._on_line = on_line
    with seen.worker.open_pipes() as (out, *_):
        os.write(out, b"line\n")
        with pytest.raises(BrokenPipeError):
            seen.worker.end()
