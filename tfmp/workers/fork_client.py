"""The launcher's side of the fork server: start it, talk to it, end it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

import tfmp
from tfmp import ipc, procfs
from tfmp.errors import TfmpError
from tfmp.workers import linux
from tfmp.workers.fork_errors import ForkServerDied, cannot_serve, fork_server_died, still_importing

PrivateNetwork = Literal["auto", "on", "off"]

LAUNCH_ID = "TFMP_LAUNCH_ID"
"""Variable, one value a fork server, by which its descendants are recognised when it has died."""

_LEAVE_TIMEOUT_S = 4.0
_KILL_TIMEOUT_S = 1.0
_OUTPUT_TAIL_BYTES = 16 * 1024
_OUTPUT_TAIL_LINES = 12


class HasFileno(Protocol):
    """Anything a selector can wait for."""

    def fileno(self) -> int:
        """Return a descriptor."""


@dataclass(frozen=True)
class ForkServerReady:
    """What the fork server reports once it can fork workers.

    Args:
        pid: Its process id.
        import_s: Seconds the imports took.
        threads: Its threads. More than one makes forking unsafe.
        private_network: Whether its workers share a network namespace of their own, with ``lo`` only.
        network_note: Why the network is not private; ``None`` if it is.
    """

    pid: int
    import_s: float
    threads: int
    private_network: bool
    network_note: str | None


class ForkServer:
    """A fork server that imports modules once and forks workers. Start one with :meth:`start`.

    A context manager: leaving it ends the fork server and everything that it or a worker has started.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        *,
        output_fd: int,
        launch_id: str,
        preload: tuple[str, ...],
    ) -> None:
        self._process = process
        self._preload = preload
        self._sock = sock
        self._output_fd = output_fd
        self._launch_id = launch_id
        self._outbox: deque[ipc.Datagram] = deque()
        self._ready: ForkServerReady | None = None
        self._last_id = 0
        self._closed = False

    @classmethod
    def start(
        cls,
        preload: Sequence[str] = (),
        *,
        private_network: PrivateNetwork = "auto",
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> ForkServer:
        """Start a fork server and return at once, while it imports.

        Makes this process a subreaper, for good: orphans of its descendants become its children.

        Args:
            preload: Modules to import before the first worker is forked. None for workers that are programs.
            private_network: Put the workers into a network namespace of their own: if possible, or fail, or not.
            env: The fork server's and so the workers' environment. ``None``: this process's.
            python: The interpreter.

        Raises:
            UsageError: Not Linux, or a Linux without what this needs.
            RuntimeError: Not called from the main thread: the kernel would end the fork server with the calling thread.
            TfmpError: The process cannot be started.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("expected ForkServer.start to be called from the main thread")
        linux.require_linux()
        linux.become_subreaper()
        environ = dict(os.environ if env is None else env)
        restore: dict[str, str | None] = {}
        if preload:
            # numpy's OpenBLAS starts a thread a core at import, and a fork of a process with threads may hang.
            restore["OPENBLAS_NUM_THREADS"] = environ.get("OPENBLAS_NUM_THREADS")
            environ["OPENBLAS_NUM_THREADS"] = "1"
        launch_id = uuid.uuid4().hex
        environ[LAUNCH_ID] = launch_id
        output_fd = ipc.anonymous_file()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = subprocess.Popen(
                [python, "-c", _bootstrap(), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                env=environ,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            os.close(output_fd)
            raise TfmpError(f"cannot start the fork server: {error.strerror}", where=python) from error
        finally:
            theirs.close()
        ours.setblocking(False)
        fork_server = cls(process, ours, output_fd=output_fd, launch_id=launch_id, preload=tuple(preload))
        config = {"launcher_pid": os.getpid(), "preload": list(preload), "private_network": private_network}
        fork_server.post({"op": "start", **config, "restore_env": restore})
        return fork_server

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The fork server's process id."""
        return self._process.pid

    @property
    def ready(self) -> ForkServerReady | None:
        """What it reported when it became ready; ``None`` before."""
        return self._ready

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector: readable when :meth:`receive` has something to say."""
        return self._sock.fileno()

    def next_id(self) -> int:
        """Return a number for a worker, never given before: groups follow each other on one fork server."""
        self._last_id += 1
        return self._last_id

    def wait_ready(self, timeout_s: float = 600.0, *, interrupt: HasFileno | None = None) -> ForkServerReady | None:
        """Wait until the imports are done.

        Args:
            timeout_s: The longest wait. Past it the fork server is killed.
            interrupt: Something that ends the wait by becoming readable.

        Returns:
            What it reported; ``None`` if ``interrupt`` came first.

        Raises:
            TfmpError: An import failed (with the end of its traceback), the network was refused, the fork server died,
                or time ran out.
        """
        deadline_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            if interrupt is not None:
                selector.register(interrupt, selectors.EVENT_READ)
            while self._ready is None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    stopped = procfs.is_stopped(self.pid)
                    self.kill()
                    raise still_importing(self.pid, timeout_s, stopped=stopped)
                for key, _ in selector.select(left_s):
                    if key.fileobj is interrupt:
                        return None
                    self.receive()
        return self._ready

    def post(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, or keep it for :meth:`flush` while the socket is full. Never waits.

        Args:
            message: See :mod:`tfmp.workers.fork_server`.
            fds: Descriptors to pass. Duplicated: the caller may close its own.
        """
        datagram = ipc.encode(message, [os.dup(fd) for fd in fds])
        self._outbox.append(datagram)
        self.flush()

    @property
    def wants_write(self) -> bool:
        """Whether messages wait for room in the socket."""
        return bool(self._outbox)

    def flush(self) -> None:
        """Send what fits. A dead fork server is left for :meth:`receive` to report."""
        while self._outbox:
            try:
                ipc.send(self._sock, self._outbox[0])
            except BlockingIOError:
                return
            except OSError:
                ipc.discard(self._outbox[0])
            _close_passed(self._outbox.popleft())

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message and its descriptors (the caller's to close), ``None`` if none has come.

        ``ready`` is noted in :attr:`ready` and returned too.

        Raises:
            ForkServerDied: The fork server is gone.
            TfmpError: It reported that it cannot serve.
        """
        try:
            received = ipc.receive(self._sock)
        except BlockingIOError:
            return None
        if received is None:
            raise self._obituary()
        message = received[0]
        if message["op"] == "failed":
            raise cannot_serve(message["stage"], message["detail"])
        if message["op"] == "ready":
            fields = ("pid", "import_s", "threads", "private_network", "network_note")
            self._ready = ForkServerReady(**{name: message[name] for name in fields})
        return received

    def output_tail(self) -> str:
        """Return the last lines that the fork server itself printed, imports included."""
        size = os.fstat(self._output_fd).st_size
        text = os.pread(self._output_fd, _OUTPUT_TAIL_BYTES, max(0, size - _OUTPUT_TAIL_BYTES))
        return "\n".join(text.decode(errors="replace").splitlines()[-_OUTPUT_TAIL_LINES:])

    def close(self) -> None:
        """Let the fork server end everything and leave; kill it if it does not. At most a few seconds."""
        if self._closed:
            return
        # End-of-file is its signal to sweep and go. While it imports nobody reads the socket: no use in waiting.
        self._sock.close()
        if self._ready is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_TIMEOUT_S)
        self.kill()
        while self._outbox:
            datagram = self._outbox.popleft()
            ipc.discard(datagram)
            _close_passed(datagram)
        os.close(self._output_fd)
        self._closed = True

    def let_go_on(self) -> None:
        """Undo a SIGSTOP of someone's: the fork server has signals to pass on, and ends to report."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self, worker_pids: Collection[int] = ()) -> None:
        """Kill the fork server and all that came from it; for when it no longer answers, or has died.

        Its workers die with it (parent-death signal); what they had started becomes this process's, as the subreaper.

        Args:
            worker_pids: Workers not known to have ended.
        """
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_TIMEOUT_S)
        pids, entry = frozenset(worker_pids), f"{LAUNCH_ID}={self._launch_id}"
        linux.sweep_children(
            lambda pid: pid != self._process.pid and (pid in pids or procfs.environ_has(pid, entry)), _KILL_TIMEOUT_S
        )

    def _obituary(self) -> ForkServerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_TIMEOUT_S)
        code, importing = self._process.returncode, self._ready is None
        return fork_server_died(self.pid, code, self._preload, importing=importing, tail=self.output_tail())


def _bootstrap() -> str:
    """The program of the fork server: find the same modules as this process, whatever lies in the working folder."""
    # `-m` would put the working folder first: a user's random.py or queue.py there would break every import.
    root = str(Path(tfmp.__file__).resolve().parent.parent)
    path = [entry or str(Path.cwd()) for entry in sys.path]
    if root not in path:
        path.append(root)
    return f"import sys; sys.path[:] = {path!r}; from tfmp.workers.fork_server import main; main()"


def _close_passed(datagram: ipc.Datagram) -> None:
    for fd in datagram.fds:
        if fd != datagram.owned_fd:
            os.close(fd)
