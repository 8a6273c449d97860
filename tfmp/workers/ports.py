"""Reserves TCP ports until the workers listen on them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from types import TracebackType

from tfmp.cluster.spec import check_port_range
from tfmp.errors import TfmpError, UsageError

_TRIES = 16


class HeldPorts:
    """Ports that no other program can take, but workers of this machine can listen on. A context manager.

    Args:
        ports: Port numbers.
        sockets: What holds them.
    """

    def __init__(self, ports: tuple[int, ...], sockets: list[socket.socket]) -> None:
        self.ports = ports
        self._sockets = sockets

    def release(self) -> None:
        """Release the ports."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def hold_ports(count: int, base_port: int | None = None, host: str = "127.0.0.1") -> HeldPorts:
    """Hold TCP ports until every worker listens on its own.

    A port that is looked up, released and handed to a worker can be stolen in between. Here each port is bound, without
    SO_REUSEADDR, so that one in use is noticed. Then the option is set: TensorFlow's server, which sets it too, can
    bind the port beside this holder, which never listens.

    Args:
        count: Number of ports, 1 or more.
        base_port: The first of ``count`` consecutive ports. ``None``: the system chooses free ports.
        host: Address of this machine to bind.

    Raises:
        UsageError: ``base_port`` is out of range, in use or not permitted, or ``host`` is not this machine's.
        TfmpError: No port is free.
    """
    if count < 1:
        raise UsageError(f"expected at least one port, received {count}")
    if base_port is not None:
        check_port_range(base_port, count, "--base-port")
    held: list[socket.socket] = []
    try:
        for index in range(count):
            held += _hold(0 if base_port is None else base_port + index, host)
    except BaseException:
        for sock in held:
            sock.close()
        raise
    ports = tuple(sock.getsockname()[1] for sock in held if sock.family != socket.AF_UNIX)
    return HeldPorts(ports, held)


def _hold(port: int, host: str) -> list[socket.socket]:
    """Return the sockets that hold one port (0: any): the port's, and the claim that other runs of tfmp respect."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(_TRIES if port == 0 else 1):
        with contextlib.ExitStack() as on_failure:
            sock = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
            try:
                claim = _bind(sock, port, host)
                if claim is None:
                    continue
                on_failure.enter_context(claim)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError as error:
                raise _refused(port, host, error) from error
            on_failure.pop_all()
            return [sock, claim]
    raise _refused(port, host, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))


def _bind(sock: socket.socket, port: int, host: str) -> socket.socket | None:
    """Bind and claim a port; return the claim, ``None`` if another run of tfmp has it."""
    try:
        sock.bind((host, port))
        return _claim(sock.getsockname()[1])
    except OSError as error:
        if error.errno != errno.EADDRINUSE or port == 0:
            raise
    # An earlier run's connection in TIME_WAIT (a minute) blocks this bind, but would not block TensorFlow's. With the
    # option set only a listener does; the claim stands for another run of tfmp.
    claim = _claim(port)
    if claim is not None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
        except OSError:
            claim.close()
            raise
    return claim


def _claim(port: int) -> socket.socket | None:
    """Claim a port among the runs of tfmp; ``None`` if another has it. The claim ends with its socket or process."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # An abstract name: like the port itself it belongs to the network namespace and leaves no file.
        claim.bind(f"\0tfmp-port-{port}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return claim


def _refused(port: int, host: str, error: OSError) -> TfmpError:
    where = f"{host}:{port}" if port else host
    if error.errno == errno.EADDRINUSE:
        if port == 0:
            return TfmpError("no free port is left on this machine", where=where, hint="stop programs that hold ports")
        return UsageError(
            f"port {port} is in use by another program",
            where=where,
            hint=f"find it with `ss -ltnp 'sport = :{port}'`, choose another --base-port, or leave the option out",
        )
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} is not permitted to this user", where=where, hint="--base-port 20000")
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return UsageError(f"{host} is not an address of this machine", where=where, hint="see `ip address`")
    return TfmpError(f"cannot hold port {port}: {error.strerror}", where=where)
