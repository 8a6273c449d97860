"""The launcher's ends of one worker: its output and event pipes, its log, its pidfd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
from collections.abc import Callable, Iterator
from functools import partial

from tfmp import ipc
from tfmp.errors import TfmpError
from tfmp.events import EventReader, WorkerEvent
from tfmp.workers import linux
from tfmp.workers.logs import OUTPUTS, LogFile, WorkerLog
from tfmp.workers.spec import Stream, WorkerSpec

_READ_BYTES = 64 * 1024
_STACKS_BYTES = 256 * 1024


class WorkerHandle:
    """What the launcher holds of one worker.

    Args:
        spec: The worker.
        id: Its number at the fork server.
        selector: Gets the read ends; each key's ``data`` is the function to call when it is readable.
        on_line: See :class:`tfmp.workers.logs.WorkerLog`.
        on_event: Called with each whole event.

    Raises:
        TfmpError: The log file cannot be created.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        id: int,
        selector: selectors.BaseSelector,
        *,
        on_line: Callable[[int, Stream, str], None],
        on_event: Callable[[int, WorkerEvent], None],
    ) -> None:
        self.spec = spec
        self.id = id
        self.log = WorkerLog(spec.rank, LogFile(spec.log_path), on_line)
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.spawned = False
        self.ended = False
        self._selector = selector
        self._on_event = on_event
        self._events = EventReader()
        self._pipes: dict[int, Callable[[bytes], None]] = {}
        self._stacks_fd: int | None = None

    @property
    def alive(self) -> bool:
        """Whether it was asked for and has not ended."""
        return self.spawned and not self.ended

    @contextlib.contextmanager
    def open_pipes(self) -> Iterator[list[int]]:
        """Open the pipes; give the write ends of output, error and events, and a file for stacks.

        The write ends close on leaving.

        Raises:
            TfmpError: No descriptors left.
        """
        consumers: list[Callable[[bytes], None]] = [partial(self.log.feed, stream) for stream in OUTPUTS]
        consumers.append(self._take_events)
        with contextlib.ExitStack() as closing:
            write_ends = []
            for consume in consumers:
                try:
                    read_end, write_end = os.pipe2(os.O_CLOEXEC)
                except OSError as error:
                    what = f"cannot open the pipes of worker {self.spec.rank}: {error.strerror}"
                    raise TfmpError(what, hint="raise the limit of open files, see `ulimit -n`") from error
                closing.callback(os.close, write_end)
                write_ends.append(write_end)
                os.set_blocking(read_end, False)
                self._pipes[read_end] = consume
                self._selector.register(read_end, selectors.EVENT_READ, partial(self._read, read_end))
            # A file of its own: a worker that hangs may hang because its output is not taken.
            self._stacks_fd = ipc.anonymous_file()
            yield [*write_ends, self._stacks_fd]

    def stacks(self) -> str:
        """Return what the worker wrote of its stacks."""
        return "" if self._stacks_fd is None else os.pread(self._stacks_fd, _STACKS_BYTES, 0).decode(errors="replace")

    def signal(self, signum: int) -> None:
        """Send a signal to its process, if there is one: never to another that has got its number."""
        if self.pidfd is not None:
            linux.pidfd_signal(self.pidfd, signum)

    def end(self) -> None:
        """Read what a dead worker left in its pipes and close all that is its."""
        if self.ended:
            return
        self.ended = True
        try:
            for fd, consume in self._pipes.items():
                _drain(fd, consume)
            self.log.flush()
        finally:
            for fd in list(self._pipes):
                self._close(fd)
            self.log.close()
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None
            if self._stacks_fd is not None:
                os.close(self._stacks_fd)
                self._stacks_fd = None

    def _read(self, fd: int) -> None:
        consume = self._pipes.get(fd)
        if consume is None:  # drained and closed since the selector reported it
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(fd, _READ_BYTES)
            if data:
                consume(data)
            else:
                self._close(fd)

    def _close(self, fd: int) -> None:
        del self._pipes[fd]
        self._selector.unregister(fd)
        os.close(fd)

    def _take_events(self, data: bytes) -> None:
        for event in self._events.feed(data):
            self._on_event(self.spec.rank, event)


def _drain(fd: int, consume: Callable[[bytes], None]) -> None:
    # Not until end-of-file: a process that the worker started may hold the pipe and write for ever. What the worker
    # itself left is no more than the pipe holds.
    left_bytes = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    with contextlib.suppress(BlockingIOError):
        while left_bytes > 0 and (data := os.read(fd, min(left_bytes, _READ_BYTES))):
            left_bytes -= len(data)
            consume(data)
