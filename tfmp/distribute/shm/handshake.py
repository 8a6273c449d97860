"""The messages between two ranks, one datagram each over SOCK_SEQPACKET: join, refuse, arrive at a barrier."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from tfmp import ipc
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
    """What all ranks of a group must agree on: number of ranks, bytes of a slot, kind of barrier."""

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
    """Why a rank gives up, and which ranks are at fault."""

    text: str
    ranks: list[int]


def introduce(sock: socket.socket, kind: Kind, who: Introduction, token: bytes, segment_fd: int | None = None) -> None:
    """Send a hello or a welcome, with the descriptor of the shared memory if given.

    Raises:
        OSError: The peer is gone.
    """
    size, slot_bytes, barrier = who.terms
    fields = _FIELDS.pack(who.rank, who.pid, size, slot_bytes, barrier.encode())
    buffers = [kind.value, ipc.prove(fields, token, _context(kind)), fields]
    ipc.send_fds(sock, buffers, [] if segment_fd is None else [segment_fd])


def read_introduction(kind: Kind, body: bytes, token: bytes) -> Introduction | None:
    """Return what a hello or welcome says, or ``None`` if its sender does not know the token."""
    proof, fields = body[: ipc.PROOF_BYTES], body[ipc.PROOF_BYTES :]
    if len(fields) != _FIELDS.size or not ipc.is_proven((proof, fields), token, _context(kind)):
        return None
    rank, pid, size, slot_bytes, barrier = _FIELDS.unpack(fields)
    return Introduction(rank, pid, Terms(size, slot_bytes, barrier.rstrip(b"\0").decode("ascii", "replace")))


def refuse(sock: socket.socket, text: str, ranks: Iterable[int]) -> None:
    """Tell a peer why the group does not form, if it still listens."""
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
    max_fds = 1 if with_fd else 0
    try:
        data, fds = ipc.recv_fds(sock, _LIMIT_BYTES, max_fds)
    except ConnectionResetError:
        # The kernel says so once, before messages that are still unread: the peer's last words can still be read.
        data, fds = ipc.recv_fds(sock, _LIMIT_BYTES, max_fds)
    known = {kind.value: kind for kind in Kind}
    return known.get(data[:1]), data[1:], fds[0] if fds else None


def _context(kind: Kind) -> bytes:
    return b"tfmp collective 1" + kind.value
