"""A group of workers that a fork server starts: the processes, pipes, signals and timers around the state machine.

One thread, one selector. No wait is unbounded, and no output is read faster than it is taken, so that a worker that
prints without end waits in its own pipe instead of filling the launcher's memory.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace

from tfmp import procfs
from tfmp.events import NotStarted, Ready, UncaughtException, WorkerEvent
from tfmp.workers import linux
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_errors import ForkServerDied
from tfmp.workers.group import FromWorker, GroupEvent, Line, ServerReady, Tick
from tfmp.workers.handle import WorkerHandle
from tfmp.workers.lifecycle import Lifecycle, StopPolicy
from tfmp.workers.lifecycle_events import (
    Action,
    Event,
    Exited,
    Failing,
    ForkServerLost,
    GiveUp,
    Kill,
    NotForked,
    Reason,
    SignalReceived,
    Started,
    StopRequested,
    Terminate,
    WorkerReady,
)
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, Stream, WorkerSpec

_TICK_S = 0.25
_ABORT_TIMEOUT_S = 3.0
# As the first process of a container tfmp gets every orphan there is, such as those of `docker exec`.
_INIT_PID = 1


class ForkServerGroup:
    """Workers that a fork server starts. A context manager: leaving it ends the fork server.

    The first SIGINT, SIGTERM or SIGHUP to this process stops the group: SIGTERM to each worker (to its whole process
    group if it is a program, as a terminal does), SIGKILL after the grace period; a second SIGINT kills at once.

    Args:
        start_fork_server: Starts a fork server; called at once, and again for an attempt after one that lost it.
        inbox: Where this process's stop signals arrive.
        policy: How long to wait for what.
        import_timeout_s: For a fork server that is still importing.
        tick_s: Seconds between two ticks.

    Raises:
        TfmpError: No fork server can be started.
    """

    def __init__(
        self,
        start_fork_server: Callable[[], ForkServer],
        inbox: SignalInbox,
        policy: StopPolicy | None = None,
        *,
        import_timeout_s: float = 600.0,
        tick_s: float = _TICK_S,
    ) -> None:
        self._start_fork_server = start_fork_server
        self._inbox = inbox
        self._policy = policy or StopPolicy()
        self._import_timeout_s = import_timeout_s
        self._tick_s = tick_s
        self._told_of_server = False
        self._run: _GroupRun | None = None
        self._result = GroupResult(exits=())
        self.fork_server = start_fork_server()

    def __enter__(self) -> ForkServerGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.fork_server.close()

    def run(self, specs: Sequence[WorkerSpec]) -> Generator[GroupEvent, None, None]:
        """See :class:`WorkerGroup`.

        Raises:
            TfmpError: A log file cannot be created; an import failed or took too long; the fork server died before
                any worker was started. What befalls workers is in the result instead.
            ValueError: No workers, or a rank twice.
        """
        ranks = [spec.rank for spec in specs]
        if not ranks or len(set(ranks)) != len(ranks):
            raise ValueError(f"expected one worker or more, each rank once, received ranks {ranks}")
        if self._result.fork_server_lost:
            self.fork_server.close()
            self.fork_server, self._told_of_server = self._start_fork_server(), False
        while (ready := self.fork_server.wait_ready(self._import_timeout_s, interrupt=self._inbox)) is None:
            for signum in self._inbox.read():  # nothing, if it was a signal of someone else's
                self.fork_server.kill()
                self._result = GroupResult(exits=(), stopped_by=signum)
                return
        if not self._told_of_server:
            self._told_of_server = True
            yield ServerReady(ready)
        run = self._run = _GroupRun(self.fork_server, specs, self._policy, self._inbox, self._tick_s)
        try:
            yield from run.events()
            self._result = run.result()
        finally:
            self._run = None
            run.close()

    def result(self) -> GroupResult:
        """See :class:`WorkerGroup`."""
        return self._result

    @property
    def pids(self) -> Mapping[int, int]:
        """See :class:`WorkerGroup`."""
        return {worker.spec.rank: worker.pid for worker in self._alive() if worker.pid is not None}

    def states(self) -> Mapping[int, str]:
        """See :class:`WorkerGroup`."""
        return {rank: procfs.state_of(pid) for rank, pid in self.pids.items()}

    def request_stacks(self) -> None:
        """See :class:`WorkerGroup`."""
        for worker in self._alive():
            worker.signal(signal.SIGUSR1)

    def stacks(self) -> Mapping[int, str]:
        """See :class:`WorkerGroup`."""
        return {worker.spec.rank: worker.stacks() for worker in self._alive()}

    def stop(self, reason: str) -> None:
        """See :class:`WorkerGroup`."""
        if self._run is not None:
            self._run.handle(StopRequested(reason))

    def wait(self, delay_s: float) -> int | None:
        """See :class:`WorkerGroup`."""
        return self._inbox.wait(delay_s)

    def _alive(self) -> list[WorkerHandle]:
        return self._run.alive() if self._run is not None else []


class _GroupRun:
    """One attempt."""

    def __init__(
        self,
        fork_server: ForkServer,
        specs: Sequence[WorkerSpec],
        policy: StopPolicy,
        inbox: SignalInbox,
        tick_s: float,
    ) -> None:
        self._fork_server = fork_server
        self._specs = specs
        self._inbox = inbox
        self._tick_s = tick_s
        self._next_tick_s = time.monotonic()
        self._happened: deque[GroupEvent] = deque()
        self._workers: dict[int, WorkerHandle] = {}
        reporting = [spec.rank for spec in specs if spec.target is not None]
        self._lifecycle = Lifecycle(
            [spec.rank for spec in specs], reporting=reporting, policy=policy, now_s=time.monotonic()
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(fork_server, selectors.EVENT_READ, self._hear_fork_server)
        self._selector.register(inbox, selectors.EVENT_READ, self._hear_signals)

    def close(self) -> None:
        """Kill what is left, where the caller gave up, and close all descriptors."""
        try:
            if not self._lifecycle.finished:
                self._abort()
        finally:
            for worker in self._workers.values():
                worker.end()
            self._selector.close()

    def alive(self) -> list[WorkerHandle]:
        return [worker for worker in self._workers.values() if worker.alive]

    def events(self) -> Iterator[GroupEvent]:
        """Start the workers and serve them until the last has ended."""
        # All log files first: what can fail without a process having been started should.
        for spec in self._specs:
            worker = WorkerHandle(
                spec, self._fork_server.next_id(), self._selector, on_line=self._take_line, on_event=self._take_event
            )
            self._workers[worker.id] = worker
        for worker in self._workers.values():
            self._spawn(worker)
        while not self._lifecycle.finished:
            ticked = self._turn()
            while self._happened:
                yield self._happened.popleft()
            if ticked:
                yield Tick()
        yield from self._happened

    def result(self) -> GroupResult:
        tails = {worker.spec.rank: worker.log.tail for worker in self._workers.values()}
        return replace(self._lifecycle.result(), tails=tails)

    def handle(self, event: Event) -> None:
        """Tell the state machine and do what it says."""
        self._act(self._lifecycle.handle(event, time.monotonic()))

    def _turn(self) -> bool:
        """Wait for something to happen, for the next tick or for a deadline; deal with it. Return whether to tick."""
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
        if now_s < self._next_tick_s:
            return False
        self._next_tick_s = now_s + self._tick_s
        if os.getpid() == _INIT_PID:
            linux.reap_strays(self._fork_server.pid)
        for worker in self.alive():
            worker.log.write_unfinished()
        return True

    def _spawn(self, worker: WorkerHandle) -> None:
        with worker.open_pipes() as write_ends:
            self._fork_server.post({"op": "spawn", "id": worker.id, **worker.spec.to_json()}, write_ends)
        worker.spawned = True

    def _take_line(self, rank: int, stream: Stream, text: str) -> None:
        self._happened.append(Line(rank, stream, text))

    def _take_event(self, rank: int, event: WorkerEvent) -> None:
        match event:
            case NotStarted(reason):
                self.handle(Reason(rank, reason))
                return
            case Ready():
                self.handle(WorkerReady(rank))
            case UncaughtException():
                self.handle(Failing(rank))
        self._happened.append(FromWorker(rank, event))

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
        """The caller failed: kill the workers."""
        for worker in self.alive():
            self._kill(worker)
        deadline_s = time.monotonic() + _ABORT_TIMEOUT_S
        while self.alive() and time.monotonic() < deadline_s:
            self._turn()
        if self.alive():
            self._fork_server.kill([worker.pid for worker in self.alive() if worker.pid is not None])
