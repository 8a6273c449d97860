"""Messages as bytes: nothing a stranger sends is taken for a message, and descriptors do not leak into children."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp import ipc
from tfmp.ipc import MAX_PAYLOAD_BYTES, FrameReader, NotOurs, decode_payload, encode_frame, is_proven

_MESSAGES: list[dict[str, Any]] = [
    {"type": "hello", "text": "é" * 100},
    {"type": "beat"},
    {"type": "roll", "here": list(range(64))},
]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 200), max_size=20))
def test_frames_do_not_depend_on_how_the_bytes_were_cut(cuts: list[int]) -> None:
    data = b"".join(encode_frame(message, b"key", b"context") for message in _MESSAGES)
    reader, frames, place = FrameReader(), [], 0
    for cut in [*cuts, len(data)]:
        frames += reader.feed(data[place : place + cut])
        place += cut
    assert [decode_payload(payload) for _, payload in frames] == _MESSAGES
    assert all(is_proven(frame, b"key", b"context") for frame in frames)
    assert reader.held == b""


@pytest.mark.parametrize(("key", "context"), [(b"", b"context"), (b"other", b"context"), (b"key", b"elsewhere")])
def test_a_frame_proves_nothing_under_another_key_or_on_another_connection(key: bytes, context: bytes) -> None:
    (frame,) = FrameReader().feed(encode_frame({"type": "beat"}, b"key", b"context"))
    assert not is_proven(frame, key, context)


def test_a_changed_payload_is_noticed() -> None:
    data = bytearray(encode_frame({"type": "beat", "stopped": False}, b"key", b""))
    data[-2] ^= 1
    assert not is_proven(FrameReader().feed(bytes(data))[0], b"key", b"")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x00",
        b"tfmq",
        b"tfmp" + struct.pack(">I", MAX_PAYLOAD_BYTES + 1) + b"\x00" * 32,
        b"tfmp\xff\xff\xff\xff" + b"\x00" * 32,
    ],
)
def test_strangers_and_overlong_messages_are_refused_from_the_first_wrong_byte(data: bytes) -> None:
    with pytest.raises(NotOurs):
        FrameReader().feed(data)


def test_a_reader_holds_no_more_than_one_frame() -> None:
    reader = FrameReader()
    reader.feed(b"tfmp" + struct.pack(">I", MAX_PAYLOAD_BYTES) + b"\x00" * 32)
    assert reader.feed(b"x" * (MAX_PAYLOAD_BYTES - 1)) == []
    assert len(reader.held) < MAX_PAYLOAD_BYTES + 64


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"type": 1}', b"\xff", b"[" * 100_000, b'{"type": NaN'])
def test_a_payload_that_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(NotOurs):
        decode_payload(payload)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="65536 bytes"):
        encode_frame({"type": "x", "text": "x" * MAX_PAYLOAD_BYTES}, b"", b"")


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.mark.parametrize("length", [10, ipc.INLINE_LIMIT_BYTES, 1_000_000])
def test_a_message_of_any_size_arrives_with_its_descriptors_closed_on_exec(length: int) -> None:
    ours, theirs = pair()
    read_end, write_end = os.pipe()
    with ours, theirs:
        message = {"op": "spawn", "text": "x" * length, "name": "\udcff"}
        ipc.send(ours, ipc.encode(message, [write_end]))
        os.close(write_end)
        received = ipc.receive(theirs)
        assert received is not None
        assert received[0] == message
        (fd,) = received[1]
        assert not os.get_inheritable(fd)
        os.write(fd, b"through")
        assert os.read(read_end, 10) == b"through"
        os.close(fd)
        os.close(read_end)
        ours.close()
        assert ipc.receive(theirs) is None


def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    ours, theirs = pair()
    with ours, theirs:
        before = sorted(Path("/proc/self/fd").iterdir())
        for max_fds in (0, 1):
            ipc.send_fds(ours, [b"data"], [0, 0, 0])
            data, fds = ipc.recv_fds(theirs, 100, max_fds)
            assert (data, len(fds)) == (b"data", max_fds)
            for fd in fds:
                os.close(fd)
        assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_sending_to_a_peer_that_is_gone_is_an_error() -> None:
    ours, theirs = pair()
    theirs.close()
    with ours, pytest.raises(OSError, match="Broken pipe"):
        ipc.send_fds(ours, [b"data"])
