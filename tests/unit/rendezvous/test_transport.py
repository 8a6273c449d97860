"""Connecting and listening."""

from __future__ import annotations

import contextlib
import errno
import socket
import time

import pytest

from tfmp.ipc import encode_frame
from tfmp.rendezvous.transport import connect, is_http2_settings, listen, resolve


def test_a_grpc_servers_greeting_is_known() -> None:
    greeting = bytes.fromhex("000018040000000000 0004003fffff00050000ffff 0006".replace(" ", ""))
    assert is_http2_settings(greeting)
    assert not is_http2_settings(greeting[:8])
    assert not is_http2_settings(encode_frame({"type": "beat"}, b"", b""))
    assert not is_http2_settings(b"SSH-2.0-OpenSSH")


def test_every_address_of_a_name_is_tried_and_the_refusal_is_what_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (dead,) = resolve("127.0.0.2", port)
        (good,) = resolve("127.0.0.1", port)
        found = connect([dead, good, good], 1.0)
        assert isinstance(found, tuple)
        sock, peer = found
        sock.close()
        assert peer == "127.0.0.1"
        assert str(connect([dead], 1.0)) == "connection refused"
        assert str(connect([], 1.0)) == "no answer"


def test_an_address_that_does_not_answer_is_given_up_in_time_and_a_refusal_tells_more() -> None:
    with contextlib.ExitStack() as held:
        full = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = full.getsockname()
        for _ in range(4):  # the kernel drops what does not fit the backlog
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        (silent,) = resolve(*address)
        (dead,) = resolve("127.0.0.2", address[1])
        began_s = time.monotonic()
        assert str(connect([silent], 0.1)) == "no answer (timed out)"
        assert str(connect([dead, silent], 0.1)) == "connection refused"
        assert time.monotonic() - began_s < 2


def test_a_taken_port_is_noticed_before_anything_listens() -> None:
    with listen(0, "127.0.0.1") as first, pytest.raises(OSError) as caught:  # noqa: PT011
        listen(first.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE
