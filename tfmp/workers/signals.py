"""Stop signals as something a selector can wait for."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any


class SignalInbox:
    """While entered, stop signals neither end this process nor raise: :meth:`read` returns them.

    SIGHUP stays ignored where it was ignored from the start (``nohup``). Only the main thread may enter.

    Args:
        signals: Signal numbers to take over.
    """

    def __init__(self, signals: Sequence[int]) -> None:
        self._signals = signals
        self._previous: dict[int, Any] = {}
        self._previous_wakeup = -1
        self._read_end = self._write_end = -1

    def __enter__(self) -> SignalInbox:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in self._signals:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, _take_no_action)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: set by C code, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._read_end)
        os.close(self._write_end)

    def wait(self, delay_s: float) -> int | None:
        """Wait, unless a stop signal comes: then return it."""
        deadline_s = time.monotonic() + delay_s
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while True:
                for signum in self.read():
                    return signum
                if (left_s := deadline_s - time.monotonic()) <= 0:
                    return None
                selector.select(left_s)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has come."""
        return self._read_end

    def read(self) -> list[int]:
        """Return the signals that came since the last call, in order. Never waits."""
        try:
            numbers = os.read(self._read_end, 4096)
        except BlockingIOError:
            return []
        # The descriptor tells of every signal with a Python handler, whoever set it.
        return [number for number in numbers if number in self._previous]


def _take_no_action(signum: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has it already. A handler is needed all the same: without one Python writes nothing."""
