"""Who broke, and who only noticed: judged by what each worker left behind, not by who ended first.

When one worker dies, its peers fail too, sometimes earlier: a collective is cut, the coordination service gives up. So
a traceback of its own, an error it named, a signal from outside count for more than "peer gone"; the order of the
first signs decides only between equals.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tfmp.agent.restart_policy import Cause
from tfmp.workers.spec import GroupResult, WorkerExit

#: What TensorFlow, gRPC, Gloo, NCCL and tfmp's own collective in shared memory say of a peer that is gone.
_PEER_GONE = re.compile(
    r"Collective ops is aborted|UnavailableError|AbortedError|CancelledError|DeadlineExceededError"
    r"|Socket closed|[Cc]onnection reset by peer|Connection closed by peer|failed to connect to all addresses"
    r"|stopped sending heartbeats|tasks are unhealthy|different incarnation|coordination service|Broken pipe"
    r"|NCCL communicator was aborted|ProcessGroup.*(aborted|terminated)|DistBackendError|[Pp]eer (is )?gone"
    r"|\bPeerLost\b|\bPeerLate\b|a call of this group has failed"
)
_TRACEBACK_END = re.compile(r"^([\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Refused))(?::\s*(.*))?$")
_TRACEBACK_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (\S+)')
_PORT_TAKEN = re.compile(r"Could not start gRPC server|[Aa]ddress already in use|EADDRINUSE")
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})


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
        error: The error it reported for the user to act on: ``what``, ``where``, ``hint``.
        exception: Type and message of what it raised.
        asked_to_leave: It left because it got a SIGTERM that tfmp did not send.
        stands_still: It held the others up (see :mod:`tfmp.agent.failures.hang`).
        stopped: By SIGSTOP.
        tail: Its last lines.
        step: Its last step, counted over the run; ``None``: before this attempt's first.
    """

    exit: WorkerExit
    error: Mapping[str, Any] | None = None
    exception: tuple[str, str] | None = None
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
        said = self._words()
        if _PEER_GONE.search(said):
            return Weight.VICTIM
        if self.exit.signal is not None or said:
            return Weight.OWN
        return Weight.SILENT

    @property
    def signature(self) -> str:
        """What makes two failures the same: what was raised and where, without what changes. ``""``: unknown."""
        if self.error is not None:
            return str(self.error["what"])
        said = self._words()
        if not said or self.exit.signal is not None:
            return f"signal {self.exit.signal}" if self.exit.signal is not None else ""
        frames = [match.groups() for line in self.tail if (match := _TRACEBACK_FRAME.match(line))]
        return f"{re.sub(r'0x[0-9a-f]+|[0-9]+', '#', said.splitlines()[0])} {frames[-3:]}"

    def _words(self) -> str:
        """What it raised, or, for a crash, what it printed last; ``""`` where it ended without a word."""
        if self.exception is not None:
            return ": ".join(self.exception)
        if self.exit.signal is not None:
            # Native code that gives up says why in its log; who is killed had been saying something else.
            return "\n".join(self.tail[-12:]) if self.exit.signal in _CRASHES else ""
        found = ""
        in_traceback = False
        for line in self.tail:
            in_traceback = in_traceback or line.startswith(("Traceback (most recent call last)", "  File "))
            if in_traceback and (match := _TRACEBACK_END.match(line)):
                found, in_traceback = match[0], False
        return found


@dataclass(frozen=True)
class Verdict:
    """Who is to blame.

    Args:
        culprits: Ranks, the one to name first; empty if no worker is.
        independent: Whether more than one failed by itself and each differently.
        cause: The kind of failure, for the restart policy.
        victims: Ranks that failed because another did.
        step: The group's last step, counted over the run; ``None``: before this attempt's first.
        signature: See :class:`Evidence`.
    """

    culprits: tuple[int, ...]
    independent: bool
    cause: Cause
    victims: tuple[int, ...]
    step: int | None = None
    signature: str = ""
    evidence: Mapping[int, Evidence] = field(default_factory=dict)

    @property
    def culprit(self) -> Evidence | None:
        """The worker to name."""
        return self.evidence[self.culprits[0]] if self.culprits else None


def judge(evidence: Sequence[Evidence], result: GroupResult) -> Verdict:
    """Find the culprit.

    Args:
        evidence: Of each worker.
        result: How the group ended.
    """
    place = {rank: i for i, rank in enumerate(result.order)}
    failed = [one for one in evidence if one.weight > Weight.FINE]
    failed.sort(key=lambda one: (-one.weight, place.get(one.rank, len(place)), one.rank))
    heaviest = failed[0].weight if failed else Weight.FINE
    suspects = [one for one in failed if one.weight == heaviest]
    # Exit codes without a word, and those who only eprint about others, do not speak of two causes.
    if heaviest in (Weight.SILENT, Weight.VICTIM):
        suspects = suspects[:1]
    signatures = {one.signature for one in suspects}
    steps = [one.step for one in evidence if one.step is not None]
    ranks = tuple(one.rank for one in suspects)
    return Verdict(
        culprits=ranks,
        independent=heaviest is Weight.OWN and len(signatures) > 1,
        cause=_cause(suspects[0] if suspects else None, evidence, result),
        victims=tuple(one.rank for one in failed if one.rank not in ranks),
        step=max(steps, default=None),
        signature=suspects[0].signature if suspects else "",
        evidence={one.rank: one for one in evidence},
    )


def _cause(culprit: Evidence | None, evidence: Sequence[Evidence], result: GroupResult) -> Cause:
    before_first_step = all(one.step is None for one in evidence)
    if before_first_step and any(_PORT_TAKEN.search(line) for one in evidence for line in one.tail):
        return "ports"
    if culprit is None:
        if result.fork_server_lost:
            return "helper"
        return "start" if result.not_ready else "hang"
    if culprit.error is not None:
        return "error"
    if culprit.stands_still:
        return "signal" if culprit.stopped else "hang"
    if culprit.asked_to_leave:
        return "preempted"
    if culprit.exit.signal is not None and culprit.exit.signal not in _CRASHES:
        return "signal"
    return "crash"
