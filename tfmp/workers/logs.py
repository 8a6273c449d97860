"""A worker's output: every byte into its log file, whole lines to the console, the last lines kept for a report."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from tfmp.errors import TfmpError
from tfmp.workers.spec import Stream

TAIL_LINES = 20
MAX_LINE_BYTES = 16 * 1024
"""Longer lines reach the console in pieces of this size. The log file has them whole."""

_HOLD_LIMIT_BYTES = 64 * 1024

Output = Literal["stdout", "stderr"]
OUTPUTS: Final[tuple[Output, Output]] = ("stdout", "stderr")


class LineSplitter:
    """Cuts a stream of bytes into lines of text, in bounded memory.

    The lines depend on the bytes alone, not on how they were cut into chunks. ``\\n`` and ``\\r\\n`` end a line. A lone
    ``\\r`` starts the line over, as on a terminal: of a progress bar the last state remains. Bytes that are not UTF-8
    become U+FFFD.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes, return the lines they complete, without their ends."""
        *complete, rest = (self._held + data).split(b"\n")
        lines: list[str] = []
        for part in complete:
            lines.append(_decode(_shown(part, lines)))
        # Held are the shown part so far and, behind a \r, the mark that what follows replaces it.
        self._held = _shown(rest, lines) + (b"\r" if rest.endswith(b"\r") else b"")
        return lines

    def finish(self) -> list[str]:
        """Return the last line if it has no end."""
        held, self._held = self._held.rstrip(b"\r"), b""
        return [_decode(held)] if held else []


def _shown(part: bytes, lines: list[str]) -> bytes:
    """Return what of a line remains after its lone ``\\r``, adding to ``lines`` the pieces of absurdly long text."""
    if len(part) <= MAX_LINE_BYTES:  # almost always
        return part.rstrip(b"\r").rpartition(b"\r")[2]
    shown = b""
    for segment in part.split(b"\r"):
        while len(segment) > MAX_LINE_BYTES:
            cut = MAX_LINE_BYTES
            while cut > MAX_LINE_BYTES - 4 and segment[cut] & 0xC0 == 0x80:  # never inside a UTF-8 character
                cut -= 1
            lines.append(_decode(segment[:cut]))
            segment = segment[cut:]
        shown = segment or shown
    return shown


def _decode(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


class LogFile:
    """A file that takes every byte. A full disk loses bytes, not the run: the gap is marked once there is room again.

    Args:
        path: Replaced if it exists; parent folders are made.

    Raises:
        TfmpError: It cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lost_bytes = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise TfmpError(
                f"cannot create a worker's log file: {error.strerror}",
                where=str(path),
                hint="choose another folder with --run-dir",
            ) from error

    def write(self, data: bytes) -> str | None:
        """Write bytes at once.

        Returns:
            Why they were lost, as ``"No space left on device"``; ``None`` if they were not.
        """
        mark = b""
        if self._lost_bytes:
            text = f"\n[tfmp: {self._lost_bytes} bytes of output are missing here: they could not be written]\n"
            mark = text.encode()
        whole = mark + data
        written = 0
        try:
            while written < len(whole):
                written += os.write(self._fd, whole[written:])
        except OSError as error:
            if written < len(mark):
                self._lost_bytes += len(data)
            else:  # the earlier gap is marked
                self._lost_bytes = len(whole) - written
            return error.strerror
        self._lost_bytes = 0
        return None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class WorkerLog:
    """Everything one worker prints.

    Args:
        rank: The worker.
        file: Receives the bytes of both streams; a line of one is not torn by the other while it is being written.
        on_line: Called as ``on_line(rank, stream, text)`` for each whole line, without its end.
    """

    def __init__(self, rank: int, file: LogFile, on_line: Callable[[int, Stream, str], None]) -> None:
        self._rank = rank
        self._file = file
        self._on_line = on_line
        self._splitters = {stream: LineSplitter() for stream in OUTPUTS}
        self._unwritten = dict.fromkeys(OUTPUTS, b"")
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._told = False

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, at most 20, of both streams."""
        return tuple(self._tail)

    def feed(self, stream: Output, data: bytes) -> None:
        """Take the next bytes of a stream."""
        held = self._unwritten[stream] + data
        cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        if len(held) - cut > _HOLD_LIMIT_BYTES:
            cut = len(held)
        self._unwritten[stream] = held[cut:]
        if cut:
            self._write(held[:cut])
        self._emit(stream, self._splitters[stream].feed(data))

    def write_unfinished(self) -> None:
        """Write lines without an end too; for a pause in the output, so that the file shows what was printed."""
        for stream, held in self._unwritten.items():
            if held:
                self._unwritten[stream] = b""
                self._write(held)

    def flush(self) -> None:
        """The worker has ended and all its output was fed: write and show what is left."""
        self.write_unfinished()
        for stream in OUTPUTS:
            self._emit(stream, self._splitters[stream].finish())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _emit(self, stream: Stream, lines: list[str]) -> None:
        self._tail.extend(lines)
        for line in lines:
            self._on_line(self._rank, stream, line)

    def _write(self, data: bytes) -> None:
        trouble = self._file.write(data)
        if trouble is not None and not self._told:
            self._told = True
            self._on_line(self._rank, "tfmp", f"cannot write {self._file.path}: {trouble}; the run goes on without it")
