"""Run one group of workers to its end: the processes, pipes, signals and timers around the state machine.

One thread, one selector. No wait is without a bound, and no output is read faster than it is passed on, so that a
worker that prints without end waits in its own pipe instead of filling the launcher's memory.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any

from tfmp.workers import linux
from tfmp.workers.events import EXCEPTION, NOT_STARTED, READY
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_errors import ForkServerDied
from tfmp.workers.handle import WorkerHandle
from tfmp.workers.lifecycle import STOP_SIGNALS, Lifecycle, StopPolicy
from tfmp.workers.lifecycle_events import (
    Action,
    Event,
    Exited,
    Failing,
    ForkServerLost,
    GiveUp,
    Kill,
    NotForked,
    Ready,
    Reason,
    SignalReceived,
    Started,
    StopRequested,
    Terminate,
)
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, Stream, WorkerSpec

OnEvent = Callable[[int, dict[str, Any]], None]
OnLine = Callable[[int, Stream, str], None]

_ABORT_TIMEOUT_S = 3.0
# As the first process of a container tfmp gets every orphan there is, such as those of `docker exec`.
_INIT_PID = 1


class GroupControl:
    """What a caller may do to a running group from its tick.

    Args:
        run: The group.
    """

    def __init__(self, run: _GroupRun) -> None:
        self._run = run

    @property
    def pids(self) -> Mapping[int, int]:
        """Process ids of the workers that are alive, by rank."""
        return {worker.spec.rank: worker.pid for worker in self._run.alive() if worker.pid is not None}

    def signal(self, rank: int, signum: int) -> None:
        """Send a signal to a worker's process; nothing happens if it has ended."""
        for worker in self._run.alive():
            if worker.spec.rank == rank:
                worker.signal(signum)

    def stacks(self) -> dict[int, str]:
        """What workers that are functions have written of their Python stacks so far, after a SIGUSR1, by rank."""
        return {worker.spec.rank: worker.stacks() for worker in self._run.alive()}

    def stop(self, reason: str) -> None:
        """Stop the group as failed, quickly; ``reason`` becomes the result's ``problem``."""
        self._run.handle(StopRequested(reason))


OnTick = Callable[[GroupControl], None]


def run_group(
    fork_server: ForkServer,
    specs: Sequence[WorkerSpec],
    *,
    on_event: OnEvent | None = None,
    on_line: OnLine | None = None,
    on_tick: OnTick | None = None,
    grace_period_s: float = 10.0,
    failure_grace_s: float = 2.0,
    settle_s: float = 1.0,
    start_timeout_s: float | None = None,
    import_timeout_s: float = 600.0,
    tick_s: float = 0.25,
    inbox: SignalInbox | None = None,
) -> GroupResult:
    """Start the workers, watch them, and return when all have ended and nothing they started is left.

    One worker that fails ends the group: the others get ``settle_s`` to report failures of their own, then SIGTERM,
    then SIGKILL. The first SIGINT, SIGTERM or SIGHUP to this process stops the group: SIGTERM to each worker (to its
    whole process group if it is a program, as a terminal does), SIGKILL after the grace period; a second SIGINT kills
    at once.

    Args:
        fork_server: The fork server; it may still be importing. It serves further groups afterwards.
        specs: The workers.
        on_event: Called as ``on_event(rank, event)`` for what a target sends through its channel.
        on_line: Called as ``on_line(rank, stream, text)`` for each line a worker prints, without its end; ``stream``
            is ``"tfmp"`` for a remark of the launcher's own. While a call waits, so do the workers' outputs.
        on_tick: Called about every ``tick_s`` while workers run.
        grace_period_s: From SIGTERM to SIGKILL when the user stops workers at work.
        failure_grace_s: The same when nothing is to be saved: after a failure, or before every target has sent
            ``{"event": "ready"}``.
        settle_s: From the first failure to SIGTERM for the others.
        start_timeout_s: For every target to send ``{"event": "ready"}``, from the moment the workers are started.
            ``None``: no limit.
        import_timeout_s: For a fork server that is still importing.
        tick_s: See ``on_tick``.
        inbox: Where this process's stop signals arrive, if the caller has taken them over for longer than this group.

    Raises:
        TfmpError: A log file cannot be created; an import failed or took too long; the fork server died before
            any worker was started. What befalls workers is in the result instead.
        ValueError: No workers, or a rank twice.
    """
    ranks = [spec.rank for spec in specs]
    if not ranks or len(set(ranks)) != len(ranks):
        raise ValueError(f"expected one worker or more, each rank once, received ranks {ranks}")
    policy = StopPolicy(grace_period_s, failure_grace_s, settle_s, start_timeout_s)
    with nullcontext(inbox) if inbox is not None else SignalInbox(STOP_SIGNALS) as inbox:
        while fork_server.wait_ready(import_timeout_s, interrupt=inbox) is None:
            for signum in inbox.read():  # nothing, if it was a signal of someone else's
                fork_server.kill()
                return GroupResult(exits=(), stopped_by=signum)
        with _GroupRun(fork_server, specs, policy, inbox, on_event, on_line, on_tick, tick_s) as run:
            return run.run()


class _GroupRun:
    def __init__(
        self,
        fork_server: ForkServer,
        specs: Sequence[WorkerSpec],
        policy: StopPolicy,
        inbox: SignalInbox,
        on_event: OnEvent | None,
        on_line: OnLine | None,
        on_tick: OnTick | None,
        tick_s: float,
    ) -> None:
        self._fork_server = fork_server
        self._specs = specs
        self._inbox = inbox
        self._on_event = on_event
        self._on_line = on_line or (lambda rank, stream, text: None)
        self._on_tick = on_tick
        self._tick_s = tick_s
        self._next_tick_s = time.monotonic()
        self._control = GroupControl(self)
        self._workers: dict[int, WorkerHandle] = {}
        reporting = [spec.rank for spec in specs if spec.target is not None]
        self._lifecycle = Lifecycle(
            [spec.rank for spec in specs], reporting=reporting, policy=policy, now_s=time.monotonic()
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(fork_server, selectors.EVENT_READ, self._hear_fork_server)
        self._selector.register(inbox, selectors.EVENT_READ, self._hear_signals)

    def __enter__(self) -> _GroupRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self._abort()
        finally:
            for worker in self._workers.values():
                worker.end()
            self._selector.close()

    def alive(self) -> list[WorkerHandle]:
        return [worker for worker in self._workers.values() if worker.alive]

    def run(self) -> GroupResult:
        """Start the workers and serve them until the last has ended."""
        # All log files first: what can fail without a process having been started should.
        for spec in self._specs:
            worker = WorkerHandle(
                spec, self._fork_server.next_id(), self._selector, on_line=self._on_line, on_event=self._take_event
            )
            self._workers[worker.id] = worker
        for worker in self._workers.values():
            self._spawn(worker)
        while not self._lifecycle.finished:
            self._turn()
        tails = {worker.spec.rank: worker.log.tail for worker in self._workers.values()}
        return replace(self._lifecycle.result(), tails=tails)

    def handle(self, event: Event) -> None:
        """Tell the state machine and do what it says."""
        self._act(self._lifecycle.handle(event, time.monotonic()))

    def _turn(self) -> None:
        """Wait for something to happen, for the next tick or for a deadline; deal with it."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._fork_server.wants_write else 0)
        key = self._selector.get_map().get(self._fork_server)
        if key is not None and key.events != wanted:
            self._selector.modify(self._fork_server, wanted, self._hear_fork_server)
        until_s = self._next_tick_s
        if self._lifecycle.deadline_s is not None:
            until_s = min(until_s, self._lifecycle.deadline_s)
        for key, _ in self._selector.select(max(0.0, until_s - time.monotonic())):
            key.data()
        now_s = time.monotonic()
        self._act(self._lifecycle.tick(now_s))
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + self._tick_s
            if os.getpid() == _INIT_PID:
                linux.reap_strays(self._fork_server.pid)
            for worker in self.alive():
                worker.log.write_unfinished()
            if self._on_tick is not None:
                self._on_tick(self._control)

    def _spawn(self, worker: WorkerHandle) -> None:
        spec = worker.spec
        order = {
            "op": "spawn",
            "id": worker.id,
            "rank": spec.rank,
            "env": dict(spec.env),
            "unset": list(spec.unset),
            "argv": None if spec.argv is None else list(spec.argv),
            "target": spec.target,
            "payload": dict(spec.payload),
            "cpus": None if spec.cpus is None else sorted(spec.cpus),
            "cwd": None if spec.cwd is None else str(spec.cwd),
        }
        with worker.open_pipes() as write_ends:
            self._fork_server.post(order, write_ends)
        worker.spawned = True

    def _take_event(self, rank: int, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == NOT_STARTED:
            self.handle(Reason(rank, event["reason"]))
            return
        if kind == READY:
            self.handle(Ready(rank))
        elif kind == EXCEPTION:
            self.handle(Failing(rank))
        if self._on_event is not None:
            self._on_event(rank, event)

    def _hear_signals(self) -> None:
        for signum in self._inbox.read():
            self.handle(SignalReceived(signum))

    def _hear_fork_server(self) -> None:
        self._fork_server.flush()
        try:
            received = self._fork_server.receive()
        except ForkServerDied as death:
            self._lose_fork_server(death.what)
            return
        if received is None:
            return
        message, fds = received
        worker = self._workers.get(message["id"])
        if worker is None or worker.ended:  # of a group that was given up
            for fd in fds:
                os.close(fd)
            return
        rank = worker.spec.rank
        if message["op"] == "started":
            worker.pid, worker.pidfd = message["pid"], fds[0]
            self.handle(Started(rank, message["pid"]))
            return
        # All that it said comes before its end: what it reported decides who failed first.
        worker.end()
        if message["op"] == "exited":
            self.handle(Exited(rank, message["code"], message["peak_rss_bytes"]))
        else:
            self.handle(NotForked(rank, message["reason"]))

    def _act(self, actions: Sequence[Action]) -> None:
        if actions:
            self._fork_server.let_go_on()
        for action in actions:
            match action:
                case Terminate(rank):
                    worker = self._of(rank)
                    order = {"op": "signal", "id": worker.id, "signum": int(signal.SIGTERM)}
                    self._fork_server.post({**order, "group": worker.spec.argv is not None})
                case Kill(rank):
                    self._kill(self._of(rank))
                case GiveUp(ranks):
                    names = ", ".join(map(str, ranks))
                    self._lose_fork_server(f"gave up waiting for the end of worker {names} after SIGKILL")

    def _of(self, rank: int) -> WorkerHandle:
        return next(worker for worker in self._workers.values() if worker.spec.rank == rank)

    def _kill(self, worker: WorkerHandle) -> None:
        self._fork_server.post({"op": "kill", "id": worker.id})
        worker.signal(signal.SIGKILL)  # directly too: the fork server may be stopped or stuck

    def _lose_fork_server(self, reason: str) -> None:
        """End the fork server, if it lives, and every worker with it."""
        self._fork_server.kill([worker.pid for worker in self.alive() if worker.pid is not None])
        if self._fork_server in self._selector.get_map():
            self._selector.unregister(self._fork_server)
        for worker in self.alive():
            worker.end()
        self.handle(ForkServerLost(reason))

    def _abort(self) -> None:
        """The caller's code raised, or a worker could not be started: end the group without another word."""
        self._on_event = self._on_tick = None
        for worker in self._workers.values():
            worker.log.mute()
        for worker in self.alive():
            self._kill(worker)
        deadline_s = time.monotonic() + _ABORT_TIMEOUT_S
        while self.alive() and time.monotonic() < deadline_s:
            self._turn()
        if self.alive():
            self._fork_server.kill([worker.pid for worker in self.alive() if worker.pid is not None])
