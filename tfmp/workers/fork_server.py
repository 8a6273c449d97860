"""The fork server: imports heavy modules once, then forks workers on request and reports how they end.

It is the parent of all workers. It outlives none of them and never its launcher: end-of-file on the socket, or the
launcher's death, ends every worker and everything a worker has started. Messages (see :mod:`tfmp.ipc`):

====================  ==============================================================================================
launcher → fork server
``start``             first: modules to import, private network or not, the launcher's pid
``spawn``             a worker's order, with the write ends of its output, error and event pipes, a file for stacks
``signal``            a signal for a worker or its process group
``kill``              SIGKILL for a worker's process group
fork server → launcher
``ready``/``failed``  import finished, or why not
``started``           a worker's pid, with a pidfd
``unstarted``         a worker could not be forked
``exited``            a worker's wait status and peak memory; its process group is dead by then
====================  ==============================================================================================
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tfmp import ipc, procfs
from tfmp.workers import child, linux, private_net

# A killed process is gone within milliseconds unless it hangs in the kernel; nobody waits longer for one that does.
_SWEEP_TIMEOUT_S = 1.0
_GROUP_POLL_S = 0.05
_TRACEBACK_LINES = 12


class _LauncherGone(Exception):
    """Nobody is left to talk to."""


@dataclass
class _Worker:
    id: int
    pid: int
    pidfd: int
    group_told: bool = False
    """Its whole process group was asked to end: what a wrapper script leaves behind may still be saving."""


NOT_ASKED = "not asked for"
"""Why the network is not private where nobody wanted it to be."""


def main() -> None:
    """Run the fork server on the socket whose descriptor is the first argument."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    # Stop signals are the launcher's business: schedulers and init systems send them to every process of a job.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    start = ipc.receive(sock)
    if start is None:
        return
    config = start[0]
    try:
        launcher_pidfd = linux.pidfd_open(config["launcher_pid"])
    except ProcessLookupError:
        return
    if os.getppid() != config["launcher_pid"]:
        return
    linux.become_subreaper()
    with suppress(_LauncherGone):
        if _prepare(sock, config):
            _ForkServer(sock, launcher_pidfd, config["restore_env"]).serve()


def _prepare(sock: socket.socket, config: Mapping[str, Any]) -> bool:
    """Enter the network, import the modules, report; return whether workers can be forked."""
    private, note = _enter_network(config["private_network"])
    if config["private_network"] == "on" and not private:
        _tell(sock, {"op": "failed", "stage": "network", "detail": note})
        return False
    # Only while importing, when end-of-file on the socket goes unnoticed and there is nothing to sweep yet. After the
    # namespace: a change of credentials clears the request.
    linux.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != config["launcher_pid"]:
        return False
    began_s = time.monotonic()
    gc.disable()  # importing TensorFlow makes a million objects that stay: looking through them takes 0.4 s of 1.8
    try:
        _import_all(config["preload"])
    except BaseException:
        text = traceback.format_exc()
        sys.stderr.write(text)
        sys.stderr.flush()
        _tell(sock, {"op": "failed", "stage": "import", "detail": "\n".join(text.splitlines()[-_TRACEBACK_LINES:])})
        return False
    import_s = time.monotonic() - began_s
    linux.set_parent_death_signal(0)
    gc.freeze()  # else the first collection in a worker would write to, and so copy, every page of every object
    gc.enable()
    ready = {"op": "ready", "pid": os.getpid(), "import_s": import_s, "threads": procfs.thread_count()}
    _tell(sock, {**ready, "private_network": private, "network_note": note})
    return True


def _enter_network(mode: str) -> tuple[bool, str | None]:
    """Return whether the network is private now, and if not, why not."""
    if mode == "off":
        return False, NOT_ASKED
    note = private_net.refusal()
    if note is None:
        private_net.enter()
    return note is None, note


def _import_all(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)


def _tell(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    try:
        ipc.send(sock, ipc.encode(message, fds))
    except OSError as error:
        raise _LauncherGone from error


class _ForkServer:
    """The loop that forks, signals and reaps.

    Args:
        sock: To the launcher.
        launcher_pidfd: A second way to see the launcher die: another process may have inherited its socket.
        restore_env: See :func:`tfmp.workers.child.live`.
    """

    def __init__(self, sock: socket.socket, launcher_pidfd: int, restore_env: Mapping[str, str | None]) -> None:
        self._sock = sock
        self._launcher_pidfd = launcher_pidfd
        self._restore_env = restore_env
        self._workers: dict[int, _Worker] = {}
        self._lingering: list[_Worker] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # epoll hands descriptors out in the order in which they became ready: the order of deaths, which the order of
        # pids or of polling would lose.
        self._selector = selectors.EpollSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(launcher_pidfd, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the launcher is gone, then end all that is left."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            while True:
                for key, _ in self._selector.select(_GROUP_POLL_S if self._lingering else None):
                    self._dispatch(key.fileobj, key.data)
                for worker in [w for w in self._lingering if not procfs.group_alive(w.pid)]:
                    self._reap(worker)
        finally:
            for worker in self._workers.values():
                linux.signal_worker(worker.pid, signal.SIGKILL, group=True)
            linux.sweep_children(lambda _: True, 2 * _SWEEP_TIMEOUT_S)

    def _dispatch(self, source: object, worker: _Worker | None) -> None:
        if worker is not None:
            self._selector.unregister(worker.pidfd)
            if worker.group_told and procfs.group_alive(worker.pid):
                self._lingering.append(worker)  # until its group has ended or is killed
            else:
                self._reap(worker)
        elif source is self._sock:
            received = ipc.receive(self._sock)
            if received is None:
                raise _LauncherGone
            self._obey(*received)
        elif source == self._launcher_pidfd:
            raise _LauncherGone
        else:
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._reap_strays()

    def _obey(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == "spawn":
            try:
                self._spawn(message, (fds[0], fds[1], fds[2], fds[3]))
            finally:
                for fd in fds:
                    os.close(fd)
            return
        worker = self._workers.get(message["id"])
        if worker is not None:
            if message["op"] == "signal":
                linux.signal_worker(worker.pid, message["signum"], group=message["group"])
                worker.group_told = worker.group_told or message["group"]
                if message["signum"] == signal.SIGTERM:  # a stopped process takes it in only once it goes on
                    linux.signal_worker(worker.pid, signal.SIGCONT, group=message["group"])
            else:
                linux.signal_worker(worker.pid, signal.SIGKILL, group=True)
                if worker in self._lingering:
                    self._reap(worker)

    def _spawn(self, order: dict[str, Any], fds: tuple[int, int, int, int]) -> None:
        fork_server_pid = os.getpid()
        pid = -1
        try:
            # Blocked, a signal sent to the child before it has its own handlers stays pending; ignored, as here, it
            # would be lost.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                sys.stdout.flush()
                sys.stderr.flush()
                pid = os.fork()
                if pid == 0:
                    try:
                        self._close_in_child()
                        child.live(order, fds, fork_server_pid, self._restore_env)
                    finally:
                        os._exit(1)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            worker = _Worker(order["id"], pid, linux.pidfd_open(pid))
        except OSError as error:
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            _tell(self._sock, {"op": "unstarted", "id": order["id"], "reason": f"fork failed: {error.strerror}"})
            return
        self._workers[worker.id] = worker
        self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
        _tell(self._sock, {"op": "started", "id": worker.id, "pid": pid}, [worker.pidfd])

    def _close_in_child(self) -> None:
        # The socket above all: a copy in a worker would hide the end of the fork server from the launcher.
        self._selector.close()
        self._sock.close()
        for fd in (self._launcher_pidfd, self._wake_read, self._wake_write, *(w.pidfd for w in self._workers.values())):
            os.close(fd)

    def _reap(self, worker: _Worker) -> None:
        """A worker is a zombie: end what it left, then reap it and report."""
        # Before reaping: until then its pid, and so its process group's id, cannot belong to anyone else.
        linux.signal_worker(worker.pid, signal.SIGKILL, group=True)
        if worker in self._lingering:
            self._lingering.remove(worker)
        os.close(worker.pidfd)
        del self._workers[worker.id]
        _, status, usage = os.wait4(worker.pid, 0)
        self._sweep_strays_of(worker)
        exited = {"op": "exited", "id": worker.id, "pid": worker.pid, "code": os.waitstatus_to_exitcode(status)}
        _tell(self._sock, {**exited, "peak_rss_bytes": usage.ru_maxrss * 1024})  # Linux counts in KiB

    def _sweep_strays_of(self, worker: _Worker) -> None:
        """End the orphans of a dead worker: all of them with the last worker, else those in its session.

        An orphan in a session of its own does not tell whose it was; it may serve a worker that lives.
        """
        alive = {w.pid for w in self._workers.values()}
        if alive:
            linux.sweep_children(lambda pid: pid not in alive and linux.session_of(pid) == worker.pid, _SWEEP_TIMEOUT_S)
        else:
            linux.sweep_children(lambda _: True, _SWEEP_TIMEOUT_S)

    def _reap_strays(self) -> None:
        alive = {w.pid for w in self._workers.values()}
        for pid in procfs.children():
            if pid not in alive:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
