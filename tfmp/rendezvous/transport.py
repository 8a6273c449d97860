"""The sockets of the rendezvous: framed connections, the listener on a worker's port, and a thread for each connect."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfmp.cluster.spec import Address
from tfmp.ipc import Frame, FrameReader, NotOurs, decode_payload, encode_frame, is_proven
from tfmp.rendezvous.peer_status import Kind, PeerStatus

_READ_BYTES = 64 * 1024
#: A peer that does not read is dropped before its messages fill this process's memory.
MAX_OUTGOING_BYTES = 1024 * 1024
_GREETING = b"hello"
_BACKLOG = 128
_HTTP2_FRAME_HEADER_BYTES = 9
_SETTINGS_ON_STREAM_0 = bytes([4, 0, 0, 0, 0, 0])
_CONNECT_TIMEOUT_S = 3.0
#: Without a name server the resolver blocks for ten seconds or more; the user is told earlier.
_RESOLVE_TIMEOUT_S = 3.0

SocketAddress = tuple[int, tuple[Any, ...]]
"""Address family and address, as :mod:`socket` takes them."""
Resolve = Callable[[str, int], list[SocketAddress]]
"""Host and port to their addresses. Raises ``OSError``; may take seconds."""


class WrongToken(NotOurs):
    """A well-formed message whose proof was made with another token."""


class TrainingThere(NotOurs):
    """A gRPC server's greeting."""


class Link:
    """One connection that carries messages.

    Args:
        sock: Connected; the link owns it and makes it non-blocking.
        key: The shared secret; empty for none.
        dialed: Whether this side opened it.
        peer: The other side's IP address.
    """

    def __init__(self, sock: socket.socket, key: bytes, *, dialed: bool, peer: str) -> None:
        self.peer = peer
        self.dialed = dialed
        self.closing = False
        self._sock = sock
        self._key = key
        self._reader = FrameReader()
        self._nonce = secrets.token_hex(16) if dialed else ""
        self._greeted = False
        self._outgoing = bytearray()
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for room in the socket."""
        return bool(self._outgoing)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message and send what fits. Never blocks or raises: :meth:`receive` reports a dead peer."""
        context = self._context(outgoing=True)
        if self.dialed and not self._greeted:
            self._greeted = True
            message = {**message, "nonce": self._nonce}
        self._outgoing += encode_frame(message, self._key, context)
        self.flush()

    def flush(self) -> None:
        """Send what fits."""
        with contextlib.suppress(OSError):
            while self._outgoing:
                sent = self._sock.send(self._outgoing)
                del self._outgoing[:sent]

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have arrived, or ``None`` if the connection has ended.

        Raises:
            NotOurs: The bytes are not a message (:class:`WrongToken`: the sender has another token;
                :class:`TrainingThere`: they are a gRPC server's greeting).
        """
        if len(self._outgoing) > MAX_OUTGOING_BYTES:
            return None
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        if self.dialed and is_http2_settings(self._reader.held + data):
            raise TrainingThere("a gRPC server")
        return [self._open(frame) for frame in self._reader.feed(data)]

    def close(self) -> None:
        """Close it at once."""
        self._sock.close()

    def _open(self, frame: Frame) -> dict[str, Any]:
        if not is_proven(frame, self._key, self._context(outgoing=False)):
            raise WrongToken("a message with another cluster.token")
        message = decode_payload(frame[1])
        if not self.dialed and not self._greeted:
            nonce = message.get("nonce")
            if not isinstance(nonce, str) or len(nonce) > 64:
                raise NotOurs("a greeting without a nonce")
            self._nonce, self._greeted = nonce, True
        return message

    def _context(self, *, outgoing: bool) -> bytes:
        if not self._greeted and outgoing == self.dialed:
            return _GREETING
        return (b">" if outgoing == self.dialed else b"<") + self._nonce.encode("utf-8", "surrogatepass")


def is_http2_settings(data: bytes) -> bool:
    """Whether bytes begin with the SETTINGS frame on stream 0 that a gRPC server, such as TensorFlow's, sends first.

    The frame header (RFC 9113, section 4.1) is 3 bytes of length, 1 of type, 1 of flags and 4 of stream number.
    """
    header = data[:_HTTP2_FRAME_HEADER_BYTES]
    return len(header) == _HTTP2_FRAME_HEADER_BYTES and header[0] == 0 and header[3:] == _SETTINGS_ON_STREAM_0


# Listening -----------------------------------------------------------------------------------------------------------


def listen(port: int, host: str | None = None) -> socket.socket:
    """Listen where TensorFlow's server will.

    TensorFlow's server sets SO_REUSEADDR too. With it, the server can bind the port while connections accepted here
    stay open.

    Args:
        port: TCP port.
        host: A loopback address, for a cluster on one machine; ``None`` for every interface.

    Raises:
        OSError: The port is taken (EADDRINUSE) or not permitted.
    """
    if host is not None:
        return _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL):
            raise
    return _bound(socket.AF_INET, "0.0.0.0", port)  # IPv6 is disabled, or the kernel lacks it


def _bound(family: int, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def peer_of(address: tuple[Any, ...]) -> str:
    """Return the IP address of a socket address; an IPv4 address also if it comes through an IPv6 socket."""
    return str(address[0]).removeprefix("::ffff:")


# Connecting ----------------------------------------------------------------------------------------------------------


def resolve(host: str, port: int) -> list[SocketAddress]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(int(family), tuple(address)) for family, _, _, _, address in found]


def connect(addresses: Sequence[SocketAddress], timeout_s: float) -> tuple[socket.socket, str] | PeerStatus:
    """Try the addresses in turn. Blocks.

    Args:
        addresses: Addresses of one worker.
        timeout_s: Time limit for each.

    Returns:
        A connection and the IP address that it leads to, or why there is none: a refusal tells more than silence.
    """
    worst = PeerStatus(Kind.NO_ANSWER)
    for family, address in dict.fromkeys(addresses):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            status = _no_answer(error)
        else:
            try:
                sock.settimeout(timeout_s)
                sock.connect(address)
                # A connect to a free port of this machine may meet itself.
                if sock.getsockname() != sock.getpeername():
                    return sock, peer_of(address)
                status = PeerStatus(Kind.REFUSED)
            except ConnectionRefusedError:
                status = PeerStatus(Kind.REFUSED)
            except OSError as error:
                status = _no_answer(error)
            sock.close()
        if worst.kind is not Kind.REFUSED:
            worst = status
    return worst


def _no_answer(error: OSError) -> PeerStatus:
    timed_out = error.errno is None or error.errno == errno.ETIMEDOUT
    return PeerStatus(Kind.NO_ANSWER, "timed out" if timed_out else os.strerror(error.errno or 0).lower())


class _Attempt:
    """What one thread is doing.

    Attributes:
        deadline_s: When a name that is not resolved yet is reported.
        awaited: Whether the caller has not been told anything since it asked last.
        resolved: Whether the name is resolved; set by the thread.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.awaited = True
        self.resolved = False


class Dialer:
    """Connects to workers in daemon threads, at most one for each worker: resolving and connecting may block.

    Args:
        connected: Called as ``connected(rank, sock, peer)`` with a connection and the IP address it leads to.
        found: Called as ``found(rank, status)`` if there is none.
        resolve: Resolves names, in the threads.
        now_s: The time, on the clock of all later calls.
    """

    def __init__(
        self,
        connected: Callable[[int, socket.socket, str], None],
        found: Callable[[int, PeerStatus], None],
        resolve: Resolve,
        now_s: float,
    ) -> None:
        self._connected = connected
        self._found = found
        self._resolve = resolve
        self._now_s = now_s
        self._attempts: dict[int, _Attempt] = {}
        self._results: queue.SimpleQueue[tuple[int, tuple[socket.socket, str] | PeerStatus]] = queue.SimpleQueue()
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`collect` has something to report."""
        return self._read_end

    def dial(self, rank: int, address: Address) -> None:
        """Start to connect, or wait for the attempt that is still running."""
        deadline_s = self._now_s + _RESOLVE_TIMEOUT_S
        if (attempt := self._attempts.get(rank)) is not None:
            attempt.awaited, attempt.deadline_s = True, deadline_s
            return
        attempt = self._attempts[rank] = _Attempt(deadline_s)
        threading.Thread(target=self._work, args=(rank, address, attempt), daemon=True).start()

    def tick(self, now_s: float) -> None:
        """Report names that take too long to resolve. Their threads go on; :meth:`dial` then waits for them."""
        self._now_s = now_s
        for rank, attempt in list(self._attempts.items()):
            if attempt.awaited and not attempt.resolved and now_s >= attempt.deadline_s:
                attempt.awaited = False
                self._found(rank, PeerStatus(Kind.UNRESOLVED, "the name service does not answer"))

    def collect(self) -> None:
        """Report what the threads have found."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, 4096)
        while not self._results.empty():
            rank, result = self._results.get()
            awaited = self._attempts.pop(rank).awaited
            if isinstance(result, PeerStatus):
                if awaited:
                    self._found(rank, result)
            elif awaited:
                self._connected(rank, *result)
            else:
                result[0].close()

    def close(self) -> None:
        """Close. A thread that is still waiting closes its own socket when it is done."""
        with self._lock:
            self._closed = True
            os.close(self._read_end)
            os.close(self._write_end)
        while not self._results.empty():
            result = self._results.get()[1]
            if not isinstance(result, PeerStatus):
                result[0].close()

    def _work(self, rank: int, address: Address, attempt: _Attempt) -> None:
        result: tuple[socket.socket, str] | PeerStatus
        try:
            addresses = self._resolve(address.host, address.port)
        except UnicodeError as error:  # a label that is too long
            result = _unresolved(str(error))
        except OSError as error:
            result = _unresolved(error.strerror or str(error))
        else:
            attempt.resolved = True
            result = connect(addresses, _CONNECT_TIMEOUT_S)
        with self._lock:
            if not self._closed:
                self._results.put((rank, result))
                with contextlib.suppress(BlockingIOError):  # full: it is readable already
                    os.write(self._write_end, b".")
            elif not isinstance(result, PeerStatus):
                result[0].close()


def _unresolved(text: str) -> PeerStatus:
    return PeerStatus(Kind.UNRESOLVED, text.lower() if len(text) < 60 else "")
