"""Connecting to a worker without ever waiting: names resolved aside, each address in its turn."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfmp.cluster.spec import Address
from tfmp.rendezvous.links import peer_of
from tfmp.rendezvous.peer_status import Finding, Kind

_CONNECT_TIMEOUT_S = 3.0
#: A name server that is away keeps the resolver for ten seconds and more: that is worth telling before.
_RESOLVE_TIMEOUT_S = 3.0

SocketAddress = tuple[int, tuple[Any, ...]]
"""Address family and address, as :mod:`socket` takes them."""
Resolve = Callable[[str, int], list[SocketAddress]]
"""Host and port to their addresses. Raises ``OSError``; may take seconds."""


def resolve(host: str, port: int) -> list[SocketAddress]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(int(family), tuple(address)) for family, _, _, _, address in found]


class Resolver:
    """Resolves names in threads of their own: the system's resolver waits for seconds where a name server is away.

    One thread a name: who asks for a name that is asked for already gets the same answer.

    Args:
        resolve: What is called in the thread.
    """

    def __init__(self, resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._answers: queue.SimpleQueue[tuple[tuple[str, int], list[SocketAddress] | OSError]] = queue.SimpleQueue()
        self._asking: dict[tuple[str, int], list[int]] = {}
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return a descriptor that is readable when an answer has come."""
        return self._read_end

    def ask(self, ticket: int, host: str, port: int) -> None:
        """Start to resolve; the answer carries ``ticket``."""
        if (waiting := self._asking.get((host, port))) is not None:
            waiting.append(ticket)
            return
        self._asking[host, port] = [ticket]
        threading.Thread(target=self._work, args=(host, port), daemon=True).start()

    def answers(self) -> list[tuple[int, list[SocketAddress] | OSError]]:
        """Return the answers that have come."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, 4096)
        found = []
        while not self._answers.empty():
            name, answer = self._answers.get()
            found += [(ticket, answer) for ticket in self._asking.pop(name)]
        return found

    def close(self) -> None:
        """Close; threads that still wait end unheard."""
        with self._lock:
            os.close(self._read_end)
            os.close(self._write_end)
            self._write_end = -1

    def _work(self, host: str, port: int) -> None:
        answer: list[SocketAddress] | OSError
        try:
            answer = self._resolve(host, port)
        except UnicodeError as error:  # a label that is too long
            answer = socket.gaierror(str(error))
        except OSError as error:
            answer = error
        self._answers.put(((host, port), answer))
        with self._lock:
            if self._write_end >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._write_end, b".")


class Attempt:
    """Connecting to one worker: its addresses one after the other, each for ``timeout_s`` at most.

    Args:
        rank: The worker.
        timeout_s: For each address.
        deadline_s: For the name to resolve.
    """

    def __init__(self, rank: int, timeout_s: float, deadline_s: float = 0.0) -> None:
        self.rank = rank
        self.sock: socket.socket | None = None
        self.deadline_s = deadline_s
        self._timeout_s = timeout_s
        self._left: list[SocketAddress] = []
        self._peer = ""
        self._worst = Finding(Kind.NO_ANSWER)

    @property
    def peer(self) -> str:
        """The IP address that is being tried."""
        return self._peer

    def begin(self, addresses: Sequence[SocketAddress], now_s: float) -> Finding | None:
        """Start with the first address; return a finding if none can even be tried."""
        self._left = list(dict.fromkeys(addresses))
        return self._next(now_s)

    def writable(self, now_s: float) -> Finding | None:
        """The socket has decided: ``None`` with :attr:`sock` set is a connection, or the next address being tried."""
        assert self.sock is not None
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number == 0:
            self._left.clear()
            self.deadline_s = float("inf")
            return None
        return self._failed(number, now_s)

    @property
    def connected(self) -> bool:
        """Whether :meth:`writable` found a connection."""
        return self.deadline_s == float("inf")

    def expired(self, now_s: float) -> Finding | None:
        """The deadline has passed."""
        return self._failed(errno.ETIMEDOUT, now_s)

    def close(self) -> None:
        """Give up."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def _failed(self, number: int, now_s: float) -> Finding | None:
        self.close()
        if number == errno.ECONNREFUSED:
            self._worst = Finding(Kind.REFUSED)
        elif self._worst.kind is not Kind.REFUSED:
            detail = "timed out" if number == errno.ETIMEDOUT else os.strerror(number).lower()
            self._worst = Finding(Kind.NO_ANSWER, detail)
        return self._next(now_s)

    def _next(self, now_s: float) -> Finding | None:
        while self._left:
            family, address = self._left.pop(0)
            self._peer = peer_of(address)
            try:
                self.sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
                number = self.sock.connect_ex(address)
            except OSError as error:
                number = error.errno or errno.EIO
            if number in (0, errno.EINPROGRESS):
                self.deadline_s = now_s + self._timeout_s
                return None
            self.close()
            if number == errno.ECONNREFUSED:
                self._worst = Finding(Kind.REFUSED)
            elif self._worst.kind is not Kind.REFUSED:
                self._worst = Finding(Kind.NO_ANSWER, os.strerror(number).lower())
        return self._worst


class Dialer:
    """Connects to workers, several at a time.

    Args:
        selector: Gets what is waited for; each key's ``data`` is the function to call with the events.
        connected: Called as ``connected(rank, sock, peer)`` with a connection and the IP address it leads to.
        found: Called as ``found(rank, finding)`` where there is none to be had.
        resolver: Resolves names.
        now_s: The time, on any clock that is always the same.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        connected: Callable[[int, socket.socket, str], None],
        found: Callable[[int, Finding], None],
        resolver: Resolver,
        now_s: float,
    ) -> None:
        self._selector = selector
        self._connected = connected
        self._found = found
        self._resolver = resolver
        self._attempts: dict[int, Attempt] = {}
        self._last_ticket = 0
        self._now_s = now_s
        selector.register(resolver, selectors.EVENT_READ, self._resolved)

    def dial(self, rank: int, address: Address) -> None:
        """Start to connect."""
        self._last_ticket += 1
        self._attempts[self._last_ticket] = Attempt(rank, _CONNECT_TIMEOUT_S, self._now_s + _RESOLVE_TIMEOUT_S)
        self._resolver.ask(self._last_ticket, address.host, address.port)

    def tick(self, now_s: float) -> None:
        """Give up attempts that have taken too long."""
        self._now_s = now_s
        for ticket, attempt in list(self._attempts.items()):
            if now_s < attempt.deadline_s:
                continue
            if attempt.sock is None:
                self._go_on(ticket, attempt, Finding(Kind.UNRESOLVED, "the name service does not answer"))
            else:
                self._selector.unregister(attempt.sock)
                self._go_on(ticket, attempt, attempt.expired(now_s))

    def close(self) -> None:
        """Give everything up."""
        for attempt in self._attempts.values():
            attempt.close()
        self._resolver.close()

    def _resolved(self, _: int) -> None:
        for ticket, answer in self._resolver.answers():
            attempt = self._attempts.get(ticket)
            if attempt is None:  # given up; one of the next waits for this answer too
                continue
            if isinstance(answer, OSError):
                self._go_on(ticket, attempt, _unresolved(answer))
            else:
                self._go_on(ticket, attempt, attempt.begin(answer, self._now_s))

    def _go_on(self, ticket: int, attempt: Attempt, finding: Finding | None) -> None:
        if finding is not None:
            attempt.close()
            del self._attempts[ticket]
            self._found(attempt.rank, finding)
        elif attempt.sock is not None:
            self._selector.register(attempt.sock, selectors.EVENT_WRITE, lambda _: self._decided(ticket, attempt))

    def _decided(self, ticket: int, attempt: Attempt) -> None:
        if attempt.sock is None:  # given up by what came just before
            return
        self._selector.unregister(attempt.sock)
        finding = attempt.writable(self._now_s)
        if finding is not None or not attempt.connected:
            self._go_on(ticket, attempt, finding)
            return
        del self._attempts[ticket]
        if _is_self(attempt.sock):
            attempt.close()
            self._found(attempt.rank, Finding(Kind.REFUSED))
        else:
            self._connected(attempt.rank, attempt.sock, attempt.peer)


def _unresolved(error: OSError) -> Finding:
    text = (error.strerror or str(error)).lower()
    return Finding(Kind.UNRESOLVED, text if len(text) < 60 else "")


def _is_self(sock: socket.socket) -> bool:
    """Whether a connection leads to its own end: dialling a free port of this machine may meet itself."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False
