"""What speaks against one worker: how it ended, what it raised, what it printed last."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tfmp.events import UncaughtException, UserError
from tfmp.workers.spec import WorkerExit

#: Signals of a crash in native code.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})

#: What TensorFlow, gRPC, Gloo, NCCL and tfmp's own collective in shared memory say of a peer that is gone.
_PEER_GONE = re.compile(
    r"Collective ops is aborted|UnavailableError|AbortedError|CancelledError|DeadlineExceededError"
    r"|Socket closed|[Cc]onnection reset by peer|Connection closed by peer|failed to connect to all addresses"
    r"|stopped sending heartbeats|tasks are unhealthy|different incarnation|coordination service|Broken pipe"
    r"|NCCL communicator was aborted|ProcessGroup.*(aborted|terminated)|DistBackendError|[Pp]eer (is )?gone"
    r"|\bPeerLost\b|a call of this group has failed"
)
_TRACEBACK_END = re.compile(r"^([\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Refused))(?::\s*(.*))?$")
_TRACEBACK_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (\S+)')
_CRASH_TAIL_LINES = 12


class Weight(IntEnum):
    """What a worker's end says about it, from nothing to its own fault."""

    FINE = 0
    VICTIM = 1
    """It complains about others."""
    SILENT = 2
    """An exit code without a word."""
    ASKED_TO_LEAVE = 3
    OWN = 4
    """An error or a traceback of its own, a signal, a process that stands still."""


@dataclass(frozen=True)
class Evidence:
    """What is known of one worker.

    Args:
        exit: How it ended.
        error: The error it reported for the user to act on.
        exception: What it raised.
        asked_to_leave: It left because it got a SIGTERM that tfmp did not send.
        stands_still: It held the others up (see :mod:`tfmp.agent.failures.hang`).
        stopped: By SIGSTOP.
        tail: Its last lines.
        step: Its last step, counted over the run; ``None``: before this attempt's first.
    """

    exit: WorkerExit
    error: UserError | None = None
    exception: UncaughtException | None = None
    asked_to_leave: bool = False
    stands_still: bool = False
    stopped: bool = False
    tail: Sequence[str] = ()
    step: int | None = None

    @property
    def rank(self) -> int:
        """The worker."""
        return self.exit.rank

    @property
    def weight(self) -> Weight:
        """What speaks against it."""
        if self.stands_still:
            return Weight.OWN
        if self.exit.cause != "failed":
            return Weight.FINE
        if self.error is not None:
            return Weight.OWN
        if self.asked_to_leave:
            return Weight.ASKED_TO_LEAVE
        last_words = self._last_words()
        if _PEER_GONE.search(last_words):
            return Weight.VICTIM
        if self.exit.signal is not None or last_words:
            return Weight.OWN
        return Weight.SILENT

    @property
    def signature(self) -> str:
        """What makes two failures the same: what was raised and where, without what changes. ``""``: unknown."""
        if self.error is not None:
            return self.error.what
        last_words = self._last_words()
        if not last_words or self.exit.signal is not None:
            return f"signal {self.exit.signal}" if self.exit.signal is not None else ""
        frames = [match.groups() for line in self.tail if (match := _TRACEBACK_FRAME.match(line))]
        return f"{re.sub(r'0x[0-9a-f]+|[0-9]+', '#', last_words.splitlines()[0])} {frames[-3:]}"

    def _last_words(self) -> str:
        """What it raised, or, for a crash, what it printed last; ``""`` where it ended without a word."""
        if self.exception is not None:
            return f"{self.exception.type}: {self.exception.message}"
        if self.exit.signal is not None:
            # Native code that gives up says why in its log; who is killed had been saying something else.
            return "\n".join(self.tail[-_CRASH_TAIL_LINES:]) if self.exit.signal in CRASHES else ""
        found = ""
        in_traceback = False
        for line in self.tail:
            in_traceback = in_traceback or line.startswith(("Traceback (most recent call last)", "  File "))
            if in_traceback and (match := _TRACEBACK_END.match(line)):
                found, in_traceback = match[0], False
        return found
