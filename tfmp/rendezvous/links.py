"""Sockets: a framed connection, and the listener on a worker's port."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from tfmp.rendezvous.wire import (
    FrameReader,
    NotOurs,
    decode_payload,
    encode_frame,
    is_http2_settings,
    is_proven,
)

_READ_BYTES = 64 * 1024
#: A peer that reads nothing is given up before its messages fill this process's memory.
MAX_OUTGOING_BYTES = 1024 * 1024
_GREETING = b"hello"
_BACKLOG = 128


class WrongToken(NotOurs):
    """A well-formed message whose proof is not made with our token."""


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
    def greeted(self) -> bool:
        """Whether the greeting has gone over it, in whichever direction."""
        return self._greeted

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for room in the socket."""
        return bool(self._outgoing)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message and send what fits. Never waits, never raises: a dead peer shows in :meth:`receive`."""
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
        """Return the messages that have come, ``None`` if the connection has ended.

        Raises:
            NotOurs: What came is no message (:class:`WrongToken`: of someone with another token;
                :class:`TrainingThere`: a gRPC server's).
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

    def _open(self, frame: tuple[bytes, bytes]) -> dict[str, Any]:
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


def listen(port: int, host: str | None = None) -> socket.socket:
    """Listen where TensorFlow's server will.

    SO_REUSEADDR, which TensorFlow's server sets too, is what lets it bind the port while connections accepted here
    live on.

    Args:
        port: TCP port.
        host: A loopback address, for a cluster of one machine; ``None`` for every interface.

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
    return _bound(socket.AF_INET, "0.0.0.0", port)  # IPv6 is switched off, or the kernel is without it


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
    """Return the IP address of a socket address, an IPv4 one also where it comes through an IPv6 socket."""
    return str(address[0]).removeprefix("::ffff:")
