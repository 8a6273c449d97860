"""The messages between two ranks, over SOCK_SEQPACKET (one message, one datagram): meeting, refusing, arriving."""

from __future__ import annotations

import array
import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from tfmp.distribute.shm.errors import from_mask, to_mask

_LIMIT_BYTES = 4096
_TEXT_LIMIT_BYTES = 2048
_FIELDS = struct.Struct("<IIIQ8s")  # rank, process id, size, slot_bytes, kind
_MASK = struct.Struct("<Q")


class Kind(Enum):
    """The first byte of a message."""

    HELLO = b"H"
    WELCOME = b"W"
    READY = b"!"
    REFUSAL = b"R"
    ARRIVED = b"."  # at a barrier
    END = b""


class Terms(NamedTuple):
    """What every rank of a group must agree on: ranks, bytes of a slot, the barrier's kind."""

    size: int
    slot_bytes: int
    kind: str

    def __str__(self) -> str:
        return f"{self.size} ranks, {self.slot_bytes} bytes a slot, {self.kind} barrier"


class Introduction(NamedTuple):
    """Who a rank is and what group it is in. In a hello and in a welcome."""

    rank: int
    pid: int
    terms: Terms


class Refusal(NamedTuple):
    """Why a rank gives up, and the ranks at fault."""

    text: str
    ranks: list[int]


def introduce(sock: socket.socket, kind: Kind, who: Introduction, token: bytes, segment_fd: int | None = None) -> None:
    """Send a hello or a welcome, with the descriptor of the shared memory if given.

    Raises:
        OSError: The peer is gone.
    """
    size, slot_bytes, barrier = who.terms
    fields = _FIELDS.pack(who.rank, who.pid, size, slot_bytes, barrier.encode())
    rights = [] if segment_fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [segment_fd]))]
    sock.sendmsg([kind.value, _proof(kind, fields, token), fields], rights, socket.MSG_NOSIGNAL)


def read_introduction(kind: Kind, body: bytes, token: bytes) -> Introduction | None:
    """Return what a hello or welcome says, or ``None`` if its sender does not know the token."""
    digest_bytes = hashlib.sha256().digest_size
    proof, fields = body[:digest_bytes], body[digest_bytes:]
    if len(fields) != _FIELDS.size or not hmac.compare_digest(proof, _proof(kind, fields, token)):
        return None
    rank, pid, size, slot_bytes, barrier = _FIELDS.unpack(fields)
    return Introduction(rank, pid, Terms(size, slot_bytes, barrier.rstrip(b"\0").decode("ascii", "replace")))


def refuse(sock: socket.socket, text: str, ranks: Iterable[int]) -> None:
    """Tell a peer why nothing comes of it, if it still listens."""
    with suppress(OSError):
        body = Kind.REFUSAL.value + _MASK.pack(to_mask(ranks)) + text.encode()[:_TEXT_LIMIT_BYTES]
        sock.send(body, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def read_refusal(body: bytes) -> Refusal:
    """Return what a refusal says, from its body of at least 8 bytes."""
    return Refusal(body[_MASK.size :].decode(errors="replace"), from_mask(_MASK.unpack_from(body)[0]))


def receive(sock: socket.socket, *, with_fd: bool = False) -> tuple[Kind | None, bytes, int | None]:
    """Receive one message.

    Args:
        sock: A non-blocking socket with something to read.
        with_fd: Whether a descriptor may come with it; otherwise the kernel drops descriptors.

    Returns:
        Its kind (``END`` where the peer is gone, ``None`` where unknown), its body, and a descriptor or ``None``.
    """
    fds = array.array("i")
    space = socket.CMSG_SPACE(fds.itemsize) if with_fd else 0
    try:
        data, ancillary, _, _ = sock.recvmsg(_LIMIT_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # Said once, before what the peer wrote until it closed: its last words can still be read.
        data, ancillary, _, _ = sock.recvmsg(_LIMIT_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for extra in fds[1:]:
        os.close(extra)
    known = {one.value: one for one in Kind}
    return known.get(data[:1]), data[1:], fds[0] if fds else None


def _proof(kind: Kind, fields: bytes, token: bytes) -> bytes:
    return hmac.new(token, b"tfmp collective 1" + kind.value + fields, hashlib.sha256).digest()
