"""Events from a worker to its launcher: JSON objects, one a line, over a pipe."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

READY = "ready"
"""``{"event": "ready"}``: the worker has joined its group and is about to train."""
EXCEPTION = "exception"
"""``{"event": "exception", "type": …, "message": …}``: the target raised; sent before the process ends."""
NOT_STARTED = "tfmp.not_started"
"""``{"event": "tfmp.not_started", "reason": …}``: the program could not be executed. For the launcher alone."""

MAX_EVENT_BYTES = 8 * 1024 * 1024


class EventChannel:
    """The worker's end. Safe to use from several threads.

    Args:
        fd: Write end of the pipe. The channel owns it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, event: Mapping[str, Any]) -> None:
        """Send one event; waits while the launcher is behind.

        Args:
            event: JSON values; by convention ``"event"`` names the kind. Encoded, at most 8 MiB.

        Raises:
            TypeError: Holds what JSON cannot carry.
            ValueError: Too large.
        """
        line = json.dumps(dict(event)).encode() + b"\n"
        if len(line) > MAX_EVENT_BYTES:
            raise ValueError(f"expected an event of at most {MAX_EVENT_BYTES} bytes, received {len(line)}")
        view = memoryview(line)
        # Without a reader the launcher is dead, and the kernel is about to end this process too.
        with self._lock, suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._fd, view) :]


class EventReader:
    """The launcher's end: puts chunks together to whole events.

    What is no JSON object on one line is dropped, and so is a last line without its end: its writer died writing it.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take the next bytes of the pipe, return the events they complete."""
        *complete, rest = data.split(b"\n")
        events: list[dict[str, Any]] = []
        for part in complete:
            line = bytes(self._held) + part
            self._held.clear()
            skip, self._skipping = self._skipping, False
            if not skip:
                events += _parse(line)
        if not self._skipping:
            self._held += rest
            if len(self._held) > MAX_EVENT_BYTES:
                self._held.clear()
                self._skipping = True
        return events


def _parse(line: bytes) -> list[dict[str, Any]]:
    try:
        value = json.loads(line)
    except ValueError:
        return []
    return [value] if isinstance(value, dict) else []
