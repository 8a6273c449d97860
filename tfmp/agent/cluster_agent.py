"""One worker among launchers: gathering, training and leaving together with the others."""

from __future__ import annotations

import re
import selectors
import time
from signal import SIGABRT
from typing import TYPE_CHECKING, Any

from tfmp import procfs
from tfmp.agent.failures.hang import HangReport, Stack, in_collective
from tfmp.agent.monitor import Monitor
from tfmp.agent.reporter import TrainingReporter
from tfmp.errors import TfmpError
from tfmp.events import LeftOnRequest, WorkerEvent
from tfmp.rendezvous.peer_status import EndReason
from tfmp.rendezvous.protocol import Report
from tfmp.rendezvous.session import Session
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.group import WorkerGroup
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, signal_name

if TYPE_CHECKING:
    from tfmp.agent.failures.diagnosis import Diagnosis

#: Between two looks at the connections while workers run: how late a lost peer can be noticed.
TICK_S = 0.05
_LOOK_EVERY_S = 1.0
_WAIT_S = 0.1
#: For the leader's word on who is to blame. It has its own, shorter, wait.
_JUDGEMENT_TIMEOUT_S = 10.0
#: For the leader to write its summary and close its connections, and from then on for its process to end.
_LEADER_LEAVES_S = 10.0
_AFTER_LEADER_S = 0.5
#: What TensorFlow raises when a peer is lost, beside errors of its own.
_VICTIM_ERRORS = frozenset(
    {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "InternalError", "UnknownError"}
)
_SHOWN_FRAMES = 4
_MESSAGE_CHARS = 300


class WaitInterrupted(Exception):
    """The user ended the wait; ``signum`` is the signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def gather(session: Session, fork_server: ForkServer, inbox: SignalInbox) -> None:
    """Wait until all workers are here, agree and are ready, while the fork server imports TensorFlow.

    Raises:
        WaitInterrupted: A stop signal came.
        TfmpError: The group does not start, or this host's fork server failed: the others are told.
    """
    told = False
    with selectors.DefaultSelector() as selector:
        for source in (session, fork_server, inbox):
            selector.register(source, selectors.EVENT_READ)
        while not session.started:
            selector.select(_WAIT_S)
            for signum in inbox.read():
                raise WaitInterrupted(signum)
            try:
                while fork_server.receive() is not None:
                    pass
            except TfmpError as error:
                session.failed(Report(error.what, error.where, error.hint, error.exit_code))
                raise
            if fork_server.ready is not None and not told:
                told = True
                session.ready()
            session.poll()
            if session.end_reason is not None:
                raise session.end_reason.to_error()


def leave_after_leader(session: Session, rank: int) -> None:
    """Let the leader's process end first: where the first to leave ends all others, its exit code counts.

    ``docker compose up --exit-code-from worker-0`` is such a place.
    """
    deadline_s = time.monotonic() + _LEADER_LEAVES_S
    while rank and session.linked and time.monotonic() < deadline_s:
        session.poll(_WAIT_S)
    if rank:
        time.sleep(_AFTER_LEADER_S)


class ClusterAgent(TrainingReporter):
    """Reports the worker of this host, to the user and to the other launchers.

    Args:
        session: The connections to the other launchers.
        inbox: This process's stop signals: they end the waits for the others.
        rank: The worker's rank.
        name: What the group calls it.
        label: The same with its address.
        training: See :class:`TrainingReporter`.
    """

    def __init__(self, session: Session, inbox: SignalInbox, rank: int, name: str, label: str, *training: Any) -> None:
        super().__init__(*training)
        self._session = session
        self._inbox = inbox
        self._rank = rank
        self._name = name
        self._label = label
        self._left = self._was_asked = False  # in step with all others, because one was asked to
        self._next_look_s = 0.0

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """See :class:`tfmp.agent.controller.Reporter`."""
        super().on_event(rank, event)
        if isinstance(event, LeftOnRequest):
            self._left, self._was_asked = True, event.asked

    def on_tick(self, group: WorkerGroup, monitor: Monitor) -> None:
        """Serve the connections; end the worker where the group has ended."""
        super().on_tick(group, monitor)
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._session.stopped(any(state in (procfs.STOPPED, procfs.TRACED) for state in group.states().values()))
        self._session.poll()
        if self._session.hang_s is not None and monitor.hang is not None:
            monitor.hang.suspect(self._session.hang_s, group, now_s)
        if self._session.end_reason is not None:
            group.stop(self._session.end_reason.what)

    def succeeded(self, result: GroupResult) -> int:
        """Wait for the leader's word that all have ended well: a peer that leaves earlier looks like a dead one."""
        session = self._session
        if (reason := self._end_reason()) is not None:
            return self.fail(reason.to_error(), own=False)
        digest = self.recorder.digests.get(self._rank)
        if digest is None or (self._rank == 0 and not self.recorder.model_saved):
            error = TfmpError(f"{self._name} ended without a result", hint="look at its log")
            session.failed(Report(error.what, hint=error.hint))
            return self.fail(error)
        session.done(digest)
        if (signum := self._wait()) is not None:
            return self.interrupted(signum, result)
        if session.may_leave:
            code = super().succeeded(result)
            leave_after_leader(session, self._rank)
            return code
        reason = self._end_reason()
        assert reason is not None
        return self.fail(reason.to_error(), own=False)

    def interrupted(self, signum: int, result: GroupResult | None) -> int:
        """See :class:`tfmp.agent.controller.Reporter`."""
        what = f"{self._name} was interrupted by {signal_name(signum)}"
        self._session.failed(Report(what, exit_code=128 + signum))
        return super().interrupted(signum, result)

    def failed(self, diagnosis: Diagnosis, why: str | None) -> int:
        """Tell the group how the worker ended, hear who is to blame, say it."""
        session, result = self._session, diagnosis.result
        if self._left and result.signalled is not None:  # the worker has heard of it before its launcher
            return self.interrupted(result.signalled, result)
        error = self._own_error(diagnosis)
        if self._end_reason() is None:
            hang = waiting(diagnosis)
            victim = self._looks_like_a_victim(diagnosis)
            hang_s = hang.hang.waited_s if hang is not None else None
            session.failed(Report(error.what, error.where, error.hint, error.exit_code, victim, hang_s))
            if (signum := self._wait(_JUDGEMENT_TIMEOUT_S, until_end_reason=True)) is not None and self._left:
                return self.interrupted(signum, result)
        reason = self._end_reason()
        if reason is None or reason.culprit == self._rank:
            return self.fail(error, diagnosis)
        return self.fail(reason.to_error(), diagnosis, own=False)

    def _end_reason(self) -> EndReason | None:
        """Why the group has ended, as far as the leader has told."""
        self._session.poll()
        return self._session.end_reason

    def _wait(self, timeout_s: float | None = None, *, until_end_reason: bool = False) -> int | None:
        """Serve the connections until the group has ended; return a stop signal that came instead."""
        session = self._session
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while session.end_reason is None and (until_end_reason or not session.may_leave):
            session.poll(_WAIT_S)
            for signum in self._inbox.read():
                return signum
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return None
        return None

    def _own_error(self, diagnosis: Diagnosis) -> TfmpError:
        error = diagnosis.to_error()
        what = self._named(error.what)
        if (report := waiting(diagnosis)) is not None:
            what = describe_hang(self._name, what, report.stacks.get(self._rank, ()))
        elif (exception := diagnosis.evidence[self._rank].exception) is not None and not self.recorder.errors:
            message = exception.message.strip().split("\n")[0][:_MESSAGE_CHARS]
            what = f"{self._name} failed: {exception.type}: {message}"
        where = self._named(error.where or "") or self._label
        return TfmpError(what, where=where, hint=error.hint, exit_code=error.exit_code)

    def _named(self, text: str) -> str:
        """A text about this worker as the group calls it: with a chief, rank 1 is worker 0."""
        return re.sub(rf"\bworker {self._rank}\b", self._name, text)

    def _looks_like_a_victim(self, diagnosis: Diagnosis) -> bool:
        if self._left:
            return not self._was_asked
        if self.recorder.errors:
            return False
        if (report := waiting(diagnosis)) is not None:
            return in_collective(report.stacks.get(self._rank, ()))
        if (exception := diagnosis.evidence[self._rank].exception) is not None:
            return exception.type in _VICTIM_ERRORS
        first = diagnosis.result.first_failure
        return first is not None and first.signal == SIGABRT  # TensorFlow's coordination service gives up so


def waiting(diagnosis: Diagnosis) -> HangReport | None:
    """Where a worker is in which no step ends any more; ``None``: it did not hang, or was stopped."""
    report = diagnosis.hang
    return None if report is None or report.hang.stopped else report


def describe_hang(name: str, what: str, stack: Stack) -> str:
    """Say of a worker that does not get on whether it waits for the others or holds them up.

    Args:
        name: What the group calls it.
        what: How long, as ``no step has finished for 61 s``.
        stack: Where it is; empty where it did not answer.
    """
    if in_collective(stack):
        return f"{name} waits for the others: {what}"
    place = " < ".join(map(str, stack[:_SHOWN_FRAMES])) or "native code, or stopped: it did not answer"
    return f"{name} holds the others up: {what}; it is in {place}"
