"""Ports are held against everyone but the workers, and a refusal says which and why."""

from __future__ import annotations

import socket

import pytest

from tfmp.errors import UsageError
from tfmp.workers.ports import hold_ports


def free_run(count: int) -> int:
    """Return the first of ``count`` consecutive ports that were free a moment ago."""
    for base in range(21000, 60000, 97):
        try:
            hold_ports(count, base).release()
        except UsageError:
            continue
        return base
    raise AssertionError("no free ports")


def bind(port: int, *, reuse: bool) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


def test_a_held_port_is_refused_to_others_and_open_to_a_server_beside_it() -> None:
    with hold_ports(3) as held:
        assert len(set(held.ports)) == 3
        for port in held.ports:
            with pytest.raises(OSError, match="in use"):
                bind(port, reuse=False)
            with bind(port, reuse=True) as server, socket.socket() as client:
                server.listen()
                client.connect(("127.0.0.1", port))
    with bind(held.ports[2], reuse=True):
        pass


def test_consecutive_ports_from_a_base() -> None:
    base = free_run(3)
    with hold_ports(3, base) as held:
        assert held.ports == (base, base + 1, base + 2)


def test_a_taken_port_is_named_and_the_others_are_let_go() -> None:
    base = free_run(3)
    with bind(base + 1, reuse=True) as other:
        other.listen()
        with pytest.raises(UsageError) as caught:
            hold_ports(3, base)
    assert caught.value.what == f"port {base + 1} is in use by another program"
    assert caught.value.where == f"127.0.0.1:{base + 1}"
    assert caught.value.exit_code == 2
    hold_ports(1, base).release()


def test_a_port_that_another_run_holds_is_taken() -> None:
    base = free_run(2)
    with hold_ports(2, base), pytest.raises(UsageError, match=f"port {base + 1} is in use"):
        hold_ports(1, base + 1)
    hold_ports(1, base + 1).release()


def test_old_connections_of_an_earlier_run_do_not_block_its_ports() -> None:
    base = free_run(1)
    with bind(base, reuse=True) as server:
        server.listen()
        client = socket.create_connection(("127.0.0.1", base))
        accepted, _ = server.accept()
        accepted.close()  # closes first: TIME_WAIT stays on this side, for a minute
        client.recv(1)
        client.close()
    with pytest.raises(OSError, match="in use"):
        bind(base, reuse=False)
    with hold_ports(1, base) as held:
        assert held.ports == (base,)


@pytest.mark.parametrize(("count", "base"), [(2, 65535), (1, 0), (1, -1), (4, 70000)])
def test_ports_out_of_range(count: int, base: int) -> None:
    with pytest.raises(UsageError, match="between 1 and 65535"):
        hold_ports(count, base)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 is not an address of this machine"):
        hold_ports(1, host="192.0.2.1")
    with pytest.raises(UsageError, match="at least one port"):
        hold_ports(0)
