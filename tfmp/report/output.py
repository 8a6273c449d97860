"""What the launcher prints: a reader that goes away (``tfmp train | head``) does not end a training."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tfmp.text import noop

_GONE = frozenset({errno.EPIPE, errno.EIO})
"""A pipe without a reader; a terminal that was closed."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LastingOutput(io.FileIO):
    """A descriptor whose writes never fail because of the reader or the disk.

    Once the reader is gone, output goes to ``/dev/null``. On a full disk, what does not fit is lost.

    Args:
        fd: The descriptor; it stays open.
        on_gone: Called once, when the reader is gone.
    """

    def __init__(self, fd: int, on_gone: Callable[[], None]) -> None:
        super().__init__(fd, "w", closefd=False)
        self._on_gone = on_gone

    def write(self, data: Any) -> int:
        """Write; never raises because of the reader or the disk."""
        size = memoryview(data).nbytes
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno in _GONE:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())
                os.close(null)
                self._on_gone()
            elif error.errno not in _FULL:
                raise
            return size


@contextmanager
def lasting_output() -> Iterator[None]:
    """Make standard output and standard error outlive their readers; a note on stderr tells if stdout's is gone."""
    before = sys.stdout, sys.stderr

    def note() -> None:
        print("note: standard output was closed by its reader; the run continues", file=sys.stderr, flush=True)

    sys.stdout = _lasting(sys.stdout, 1, note)
    sys.stderr = _lasting(sys.stderr, 2, noop)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO, fd: int, on_gone: Callable[[], None]) -> TextIO:
    """Return a lasting stream; one that is not the process's own is returned as it is."""
    try:
        if stream.fileno() != fd:
            return stream
    except (OSError, ValueError):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(LastingOutput(fd, on_gone)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )
