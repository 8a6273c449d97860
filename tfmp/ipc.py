"""Messages between the processes of a run: JSON over SOCK_SEQPACKET with descriptors, and JSON frames over TCP.

**Datagrams** go between launcher and fork server. A datagram is bounded by the socket's send buffer (about 200 KB). A
larger message, such as one with a big environment or payload, travels as an anonymous memory file whose descriptor
goes in the datagram.

**Frames** go between the launchers of several hosts. A frame is the mark ``tfmp``, the payload's length (4 bytes, big
endian), 32 bytes of HMAC-SHA256 and the payload. The secret (``cluster.token``) itself never travels. The proof covers
the dialling side's nonce and the direction, so a frame of one connection is worth nothing on another. Nothing is
encrypted.

:func:`send_fds`, :func:`recv_fds` and :func:`prove` also serve the workers of one host when they join a group.
"""

from __future__ import annotations

import array
import hashlib
import hmac
import json
import os
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

INLINE_LIMIT_BYTES = 32 * 1024
_MAX_FDS = 8
_INLINE, _IN_FILE = b"J", b"F"

MARK = b"tfmp"
MAX_PAYLOAD_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
PROOF_BYTES = 32
_HEADER_BYTES = len(MARK) + _LENGTH.size + PROOF_BYTES

Frame = tuple[bytes, bytes]
"""Proof and payload, unchecked."""


# Descriptors ---------------------------------------------------------------------------------------------------------


def send_fds(sock: socket.socket, buffers: Sequence[bytes], fds: Sequence[int] = ()) -> None:
    """Send one message whole, with descriptors. Never raises SIGPIPE.

    Unlike :func:`socket.send_fds`, whose ``flags`` Python 3.11 ignores.

    Raises:
        BlockingIOError: A non-blocking socket is full.
        OSError: The peer is gone.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg(buffers, rights, socket.MSG_NOSIGNAL)


def recv_fds(sock: socket.socket, limit_bytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, which are close-on-exec from the start and the caller's to close.

    Unlike :func:`socket.recv_fds`, whose ``flags`` Python 3.11 ignores.

    Args:
        sock: The socket.
        limit_bytes: Longest message; the rest of a longer one is lost.
        max_fds: Most descriptors; the kernel drops all of them if this is 0.

    Raises:
        BlockingIOError: Nothing has arrived yet on a non-blocking socket.
        ConnectionResetError: The peer is gone. The kernel says so once, before messages that are still unread.
    """
    fds = array.array("i")
    space_bytes = socket.CMSG_SPACE(max_fds * fds.itemsize) if max_fds else 0
    data, ancillary, _, _ = sock.recvmsg(limit_bytes, space_bytes, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    # The kernel rounds the space up, so one descriptor more than asked for may fit.
    for extra in fds[max_fds:]:
        os.close(extra)
    return data, list(fds[:max_fds])


# Datagrams -----------------------------------------------------------------------------------------------------------


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
    send_fds(sock, [datagram.data], datagram.fds)
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
        data, received = recv_fds(sock, INLINE_LIMIT_BYTES + 1, _MAX_FDS)
    except ConnectionResetError:
        return None
    if not data:
        return None
    if data[:1] == _IN_FILE:
        file = received.pop(0)
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb") as content_file:
            body = content_file.read()
    else:
        body = data[1:]
    message: dict[str, Any] = json.loads(body)
    return message, received


# Frames --------------------------------------------------------------------------------------------------------------


class NotOurs(Exception):
    """The other end does not speak this protocol, or breaks it."""


class FrameReader:
    """Puts received chunks together to frames. Holds at most one frame's bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def held(self) -> bytes:
        """Bytes of a frame that is not complete."""
        return bytes(self._held)

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes; return the frames they complete.

        Raises:
            NotOurs: The bytes are no frame, or one longer than allowed.
        """
        self._held += data
        frames: list[Frame] = []
        while self._held:
            if not self._held.startswith(MARK[: len(self._held)]):
                raise NotOurs("bytes that are no message of tfmp")
            if len(self._held) < _HEADER_BYTES:
                break
            (length,) = _LENGTH.unpack_from(self._held, len(MARK))
            if length > MAX_PAYLOAD_BYTES:
                raise NotOurs(f"a message of {length:,} bytes, more than the {MAX_PAYLOAD_BYTES:,} allowed")
            end = _HEADER_BYTES + length
            if len(self._held) < end:
                break
            proof = bytes(self._held[_HEADER_BYTES - PROOF_BYTES : _HEADER_BYTES])
            frames.append((proof, bytes(self._held[_HEADER_BYTES:end])))
            del self._held[:end]
        return frames


def encode_frame(message: Mapping[str, Any], key: bytes, context: bytes) -> bytes:
    """Return a message as a frame.

    Args:
        message: JSON values; at most 64 KiB when encoded.
        key: The shared secret; empty for none.
        context: What the proof covers beside the payload.

    Raises:
        ValueError: Too long.
    """
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"expected a message of at most {MAX_PAYLOAD_BYTES} bytes, received {len(payload)}")
    return MARK + _LENGTH.pack(len(payload)) + prove(payload, key, context) + payload


def prove(payload: bytes, key: bytes, context: bytes) -> bytes:
    """Return the proof that the sender of ``payload`` has the shared secret: 32 bytes."""
    return hmac.new(key, len(context).to_bytes(2, "big") + context + payload, hashlib.sha256).digest()


def is_proven(frame: Frame, key: bytes, context: bytes) -> bool:
    """Whether the sender of a frame has the shared secret; takes the same time for every wrong proof."""
    return hmac.compare_digest(frame[0], prove(frame[1], key, context))


def decode_payload(payload: bytes) -> dict[str, Any]:
    """Return a frame's message.

    Raises:
        NotOurs: It is no JSON object with a ``type``.
    """
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise NotOurs("a message that is no JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise NotOurs("a message without a type")
    return message
