"""A worker's place in its group while the group gathers, trains and leaves."""

from __future__ import annotations

import re
import selectors
import time
from typing import Any

from tfmp import procfs
from tfmp.agent.failures.hang import HangReport, Stack, in_collective
from tfmp.agent.failures.watchdog import Hang
from tfmp.agent.run import Run
from tfmp.errors import EXIT_OK, TfmpError
from tfmp.rendezvous.protocol import Report
from tfmp.rendezvous.session import Session
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.group import GroupControl
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, signal_name

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
_SIGABRT = 6  # TensorFlow's coordination service gives up so


class Interrupted(Exception):
    """The user ended the wait; ``signum`` is the signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def gather(session: Session, fork_server: ForkServer, inbox: SignalInbox) -> None:
    """Wait until all workers are here, agree and are ready, while the fork server imports TensorFlow.

    Raises:
        Interrupted: A stop signal came.
        TfmpError: The group does not start, or this host's fork server failed: the others are told.
    """
    told = False
    with selectors.DefaultSelector() as selector:
        for source in (session, fork_server, inbox):
            selector.register(source, selectors.EVENT_READ)
        while not session.started:
            selector.select(_WAIT_S)
            for signum in inbox.read():
                raise Interrupted(signum)
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
            if session.verdict is not None:
                raise session.verdict.to_error()


def leave_after_leader(session: Session, rank: int) -> None:
    """Let the leader's process end first: where the first to leave ends all others, its exit code counts.

    ``docker compose up --exit-code-from worker-0`` is such a place.
    """
    deadline_s = time.monotonic() + _LEADER_LEAVES_S
    while rank and session.linked and time.monotonic() < deadline_s:
        session.poll(_WAIT_S)
    if rank:
        time.sleep(_AFTER_LEADER_S)


class GroupWatch:
    """Carries news between the worker process of this host and the group.

    Args:
        session: The group.
        run: The worker.
        rank: Its rank.
        name: What the group calls it.
        label: The same with its address.
    """

    def __init__(self, session: Session, run: Run, rank: int, name: str, label: str | None = None) -> None:
        self._session = session
        self._run = run
        self._rank = rank
        self._name = name
        self._label = label or name
        self._exception: dict[str, Any] | None = None
        self._autopsy: HangReport | None = None
        self._left = self._was_asked = False  # in step with all others, because one was asked to
        self._next_look_s = 0.0

    def on_event(self, rank: int, event: dict[str, Any]) -> None:
        """Take an event of the worker process."""
        if event.get("event") == "exception":
            self._exception = event
        elif event.get("event") == "stopped":
            self._left, self._was_asked = True, event["asked"]

    def on_tick(self, control: GroupControl) -> None:
        """Serve the connections; end the worker where the group has ended."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._session.stopped(any(procfs.is_stopped(pid) for pid in control.pids.values()))
        self._session.poll()
        if self._session.hang_s is not None:
            self._run.attempt.suspect(self._session.hang_s, control)
        self._autopsy = self._run.attempt.hang_report
        if self._session.verdict is not None:
            control.stop(self._session.verdict.what)

    def finish(self, result: GroupResult, inbox: SignalInbox) -> int:
        """Tell the group how the worker ended, hear what the group says, leave with it; return the exit code."""
        run, session = self._run, self._session
        run.note_exits(result)
        if result.stopped_by is not None:
            return self._interrupted(result.stopped_by)
        if self._left and result.signalled is not None:  # the worker has heard of it before its launcher
            return self._interrupted(result.signalled)
        session.poll()
        if session.verdict is None:
            if result.exit_code == EXIT_OK:
                return self._leave(result, inbox)
            own = self._own_error(result)
            victim = self._looks_like_a_victim(result)
            hang_s = self._hang.waited_s if self._hang is not None else None
            session.failed(Report(own.what, own.where, own.hint, own.exit_code, victim, hang_s))
            if (signum := self._wait(inbox, _JUDGEMENT_TIMEOUT_S, until_verdict=True)) is not None and self._left:
                return self._interrupted(signum)
        verdict = session.verdict
        if verdict is None or verdict.culprit == self._rank:
            return run.fail(result, self._own_error(result))
        return run.fail(result, verdict.to_error(), own=False)

    def _interrupted(self, signum: int) -> int:
        what = f"{self._name} was interrupted by {signal_name(signum)}"
        self._session.failed(Report(what, exit_code=128 + signum))
        return self._run.interrupted(signum)

    def _leave(self, result: GroupResult, inbox: SignalInbox) -> int:
        """Wait for the leader's word that all have ended well: a peer that leaves earlier looks like a dead one."""
        digest = self._run.recorder.digests.get(self._rank)
        if digest is None or (self._rank == 0 and not self._run.recorder.model_saved):
            error = TfmpError(f"{self._name} ended without a result", hint="look at its log")
            self._session.failed(Report(error.what, hint=error.hint))
            return self._run.fail(result, error)
        self._session.done(digest)
        if (signum := self._wait(inbox)) is not None:
            return self._interrupted(signum)
        if self._session.may_leave:
            code = self._run.succeed()
            leave_after_leader(self._session, self._rank)
            return code
        assert self._session.verdict is not None
        return self._run.fail(result, self._session.verdict.to_error(), own=False)

    def _wait(self, inbox: SignalInbox, timeout_s: float | None = None, *, until_verdict: bool = False) -> int | None:
        """Serve the connections until the group has ended; return a stop signal that came instead."""
        session = self._session
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while session.verdict is None and (until_verdict or not session.may_leave):
            session.poll(_WAIT_S)
            for signum in inbox.read():
                return signum
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return None
        return None

    def _own_error(self, result: GroupResult) -> TfmpError:
        error = self._run.describe(result)
        if self._hang is not None:
            what = describe_hang(self._name, self._named(error.what), self._stack)
        elif self._exception is not None and not self._run.recorder.errors:
            message = str(self._exception.get("message", "")).strip().split("\n")[0][:300]
            what = f"{self._name} failed: {self._exception.get('type')}: {message}"
        else:
            what = self._named(error.what)
        return TfmpError(
            what, where=self._named(error.where or "") or self._label, hint=error.hint, exit_code=error.exit_code
        )

    @property
    def _hang(self) -> Hang | None:
        """That no step ended any more; ``None``: the worker did not hang, or was stopped."""
        hang_report = self._autopsy
        return None if hang_report is None or hang_report.hang.stopped else hang_report.hang

    @property
    def _stack(self) -> Stack:
        """Where it was then."""
        return () if self._autopsy is None else self._autopsy.stacks.get(self._rank, ())

    def _named(self, text: str) -> str:
        """A text about this worker as the group calls it: with a chief, rank 1 is worker 0."""
        return re.sub(rf"\bworker {self._rank}\b", self._name, text)

    def _looks_like_a_victim(self, result: GroupResult) -> bool:
        if self._left:
            return not self._was_asked
        if self._run.recorder.errors:
            return False
        if self._hang is not None:
            return in_collective(self._stack)
        if self._exception is not None:
            return self._exception.get("type") in _VICTIM_ERRORS
        first = result.first_failure
        return first is not None and first.signal == _SIGABRT


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
