"""Messages between launcher and fork server: JSON over a SOCK_SEQPACKET pair, with descriptors.

A datagram of such a socket is bounded by its send buffer (about 200 KB). A larger message, one with a big environment
or payload, travels as an anonymous memory file whose descriptor goes in the datagram.
"""

from __future__ import annotations

import array
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

INLINE_LIMIT_BYTES = 32 * 1024
_MAX_FDS = 8
_INLINE, _IN_FILE = b"J", b"F"


class Datagram(NamedTuple):
    """An encoded message. ``owned_fd`` belongs to it: the sender closes it once it is sent."""

    data: bytes
    fds: tuple[int, ...]
    owned_fd: int | None


def anonymous_file() -> int:
    """Return a read-write descriptor of a file without a name, in memory where the C library offers that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tfmp", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def encode(message: dict[str, Any], fds: Sequence[int] = ()) -> Datagram:
    """Encode a message of JSON values. Strings may hold undecodable bytes as ``os.environ`` does (surrogates)."""
    body = json.dumps(message).encode()
    if len(body) <= INLINE_LIMIT_BYTES:
        return Datagram(_INLINE + body, tuple(fds), None)
    file = anonymous_file()
    view = memoryview(body)
    while view:
        view = view[os.write(file, view) :]
    return Datagram(_IN_FILE, (file, *fds), file)


def send(sock: socket.socket, datagram: Datagram) -> None:
    """Send one encoded message whole and close what it owns.

    Raises:
        BlockingIOError: A non-blocking socket is full; the datagram stays valid.
        OSError: The peer is gone.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", datagram.fds))] if datagram.fds else []
    sock.sendmsg([datagram.data], rights, socket.MSG_NOSIGNAL)
    discard(datagram)


def discard(datagram: Datagram) -> None:
    """Close what an encoded message owns."""
    if datagram.owned_fd is not None:
        os.close(datagram.owned_fd)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one message and its descriptors (close-on-exec, the caller's to close).

    Returns:
        The message, or ``None`` when the peer is gone.

    Raises:
        BlockingIOError: Nothing has come yet on a non-blocking socket.
    """
    try:
        data, ancillary, _, _ = sock.recvmsg(
            INLINE_LIMIT_BYTES + 1, socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None
    if not data:
        return None
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    received = list(fds)
    if data[:1] == _IN_FILE:
        file = received.pop(0)
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb") as content_file:
            body = content_file.read()
    else:
        body = data[1:]
    message: dict[str, Any] = json.loads(body)
    return message, received
