"""How the ranks of one host join a group: a folder, a path socket for each rank, and a connection between every two.

Each rank listens at ``rank-R`` in the folder and connects to all lower ranks, so every pair connects once. The side
that connects says hello and the other says welcome. Both prove that they know the token, and both name the terms of
the group, which must be equal. Rank 0's welcome carries the descriptor of the shared memory. A rank that is connected
to all others tells them that it is ready; the group stands when all are ready. A rank that fails tells all it is
connected to why, so that none waits in vain.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tfmp.distribute.shm.errors import GroupError, JoinFailed, ranks_text
from tfmp.distribute.shm.handshake import (
    Introduction,
    Kind,
    Terms,
    introduce,
    read_introduction,
    read_refusal,
    receive,
    refuse,
)
from tfmp.errors import UsageError

_RETRY_S = 0.01
_LOOK_S = 0.2
_PATH_LIMIT_BYTES = 107  # sun_path of unix(7), without its closing zero


class Mesh(NamedTuple):
    """A connected socket to each other rank, their process ids, and the descriptor of the shared memory."""

    sockets: dict[int, socket.socket]
    pids: dict[int, int]
    segment_fd: int


def connect_ranks(
    directory: Path, rank: int, terms: Terms, *, token: bytes, timeout_s: float, segment_fd: int | None = None
) -> Mesh:
    """Connect to the other ranks. All ranks call it, in any order.

    Args:
        directory: A folder of this group alone that only its owner can enter, on a file system of this host.
        rank: This process's rank.
        terms: What must be equal on all ranks.
        token: A secret that all ranks know.
        timeout_s: How long to wait for late ranks.
        segment_fd: On rank 0 the descriptor of the shared memory; the caller's to close if this raises.

    Raises:
        JoinFailed: Ranks are missing, left, do not know the token or have other terms.
        UsageError: The folder is not usable.
    """
    join = _Join(directory, rank, terms, token, segment_fd)
    try:
        return join.run(timeout_s)
    except BaseException as error:
        join.give_up(error if isinstance(error, GroupError) else None)
        raise
    finally:
        join.tidy_up()


class _Join:
    """One rank's part, as one loop over everything that may happen next."""

    def __init__(self, directory: Path, rank: int, terms: Terms, token: bytes, segment_fd: int | None) -> None:
        self._self = Introduction(rank, os.getpid(), terms)
        self._token = token
        self._segment_fd = segment_fd
        self._others = set(range(terms.size)) - {rank}
        self._listener: socket.socket | None = None
        self._sockets: dict[int, socket.socket] = {}  # connected, to lower ranks perhaps not yet welcomed
        self._pids: dict[int, int] = {}  # of the ranks that have introduced themselves
        self._ready: set[int] = set()
        self._strangers: set[socket.socket] = set()  # connected, without a hello yet
        self._turned_away = 0
        self._folder = SocketFolder(directory)
        self._selector = selectors.DefaultSelector()

    def run(self, timeout_s: float) -> Mesh:
        deadline_s = time.monotonic() + timeout_s
        said_ready = False
        if self._self.rank < self._self.terms.size - 1:
            self._listen()  # nobody connects to the last rank
        while not (said_ready and self._ready == self._others):
            self._connect_downwards()
            if not said_ready and self._pids.keys() == self._others:
                self._stop_listening()
                self._say_ready()
                said_ready = True
                continue
            left_s = deadline_s - time.monotonic()
            events = self._selector.select(max(0.0, min(left_s, self._pause_s())))
            # Only with nothing more to read: this process may have been held up itself.
            if left_s <= 0 and not events:
                raise self._missing(timeout_s)
            for key, _ in events:
                self._handle(key)
        if self._segment_fd is None:
            raise JoinFailed("rank 0 has sent no shared memory", ranks=[0])
        return Mesh(dict(sorted(self._sockets.items())), self._pids, self._segment_fd)

    def give_up(self, reason: GroupError | None) -> None:
        """Say why to every rank that is connected, and close the connections."""
        if self._listener is not None:
            with suppress(OSError):
                # From here on nobody can connect and then find no reason; who has connected is told.
                self._listener.shutdown(socket.SHUT_RD)
                while True:
                    self._strangers.add(self._listener.accept()[0])
        for peer in (*self._sockets.values(), *self._strangers):
            if reason is not None:
                refuse(peer, reason.what, reason.ranks)
            peer.close()
        if self._self.rank != 0 and self._segment_fd is not None:
            os.close(self._segment_fd)

    def tidy_up(self) -> None:
        """Leave no socket file, listener or half-open connection."""
        self._stop_listening()
        for stranger in self._strangers:
            stranger.close()
        self._selector.close()
        self._folder.close()

    def _listen(self) -> None:
        self._listener = self._folder.listen(self._self.rank, backlog=self._self.terms.size)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._folder.remove(self._self.rank)
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _connect_downwards(self) -> None:
        for rank in range(self._self.rank):
            if rank in self._sockets:
                continue
            try:
                peer = self._folder.connect(rank)
            except OSError as error:
                raise JoinFailed(
                    f"cannot connect to rank {rank}: {error.strerror}", ranks=[rank], where=str(self._folder.path)
                ) from error
            if peer is None:
                continue  # not there yet, or busy: again soon
            self._sockets[rank] = peer
            self._selector.register(peer, selectors.EVENT_READ, rank)
            with suppress(OSError):  # it has left: reading says so, and why
                introduce(peer, Kind.HELLO, self._self, self._token)

    def _pause_s(self) -> float:
        """Connecting has to be tried again; everything else wakes the selector."""
        return _LOOK_S if all(rank in self._sockets for rank in range(self._self.rank)) else _RETRY_S

    def _handle(self, key: selectors.SelectorKey) -> None:
        sock = key.fileobj
        assert isinstance(sock, socket.socket)
        if sock is self._listener:
            with suppress(BlockingIOError):
                stranger = sock.accept()[0]
                stranger.setblocking(False)
                self._strangers.add(stranger)
                self._selector.register(stranger, selectors.EVENT_READ)
        elif sock in self._strangers:
            self._admit(sock)
        else:
            self._listen_to(key.data, sock)

    def _admit(self, sock: socket.socket) -> None:
        """Read a stranger's hello and welcome it, or refuse it and go on waiting."""
        kind, body, _ = receive(sock)
        who = read_introduction(Kind.HELLO, body, self._token) if kind is Kind.HELLO else None
        self._selector.unregister(sock)
        if who is not None and who.terms != self._self.terms:
            raise self._disagreement(who)  # the stranger is told as well
        self._strangers.discard(sock)
        if who is None or who.rank in self._pids or not self._self.rank < who.rank < self._self.terms.size:
            if kind is not Kind.END:
                self._turned_away += 1
                refuse(sock, f"rank {self._self.rank} does not accept the token, or that rank is here already", ())
            sock.close()
            return
        self._sockets[who.rank] = sock
        self._selector.register(sock, selectors.EVENT_READ, who.rank)
        self._pids[who.rank] = who.pid
        segment_fd = self._segment_fd if self._self.rank == 0 else None
        with suppress(OSError):  # as in connecting: it has left
            introduce(sock, Kind.WELCOME, self._self, self._token, segment_fd)

    def _listen_to(self, rank: int, sock: socket.socket) -> None:
        """Read the next message of a rank that is connected."""
        kind, body, fd = receive(sock, with_fd=rank == 0)
        if fd is not None:
            self._segment_fd = fd
        if kind is Kind.WELCOME:
            who = read_introduction(Kind.WELCOME, body, self._token)
            if who is None or who.rank != rank:
                raise JoinFailed(f"who answers as rank {rank} does not know the token", ranks=[rank])
            self._pids[rank] = who.pid  # it has compared the terms
        elif kind is Kind.READY:
            self._ready.add(rank)
            self._selector.unregister(sock)  # what follows is for the barrier
        elif kind is Kind.REFUSAL:
            text, ranks = read_refusal(body)
            raise JoinFailed(text, ranks=ranks or [rank], where=f"told by rank {rank}")
        else:
            raise JoinFailed(
                f"rank {rank} has ended while the group formed", ranks=[rank], hint="read its log for the cause"
            )

    def _say_ready(self) -> None:
        for peer in self._sockets.values():
            with suppress(OSError):  # as in connecting: it has left
                peer.send(Kind.READY.value, socket.MSG_NOSIGNAL)

    def _disagreement(self, who: Introduction) -> JoinFailed:
        rank, terms = self._self.rank, self._self.terms
        return JoinFailed(
            f"the ranks disagree about the group: rank {rank} has {terms}; rank {who.rank} has {who.terms}",
            ranks=[rank, who.rank],
            hint="start all workers with the same number of workers and the same settings",
        )

    def _missing(self, timeout_s: float) -> JoinFailed:
        # All are connected but some are not ready: those wait for each other.
        missing = self._others - self._pids.keys() or self._others - self._ready
        turned_away = f"; {self._turned_away} turned away, wrong token or rank" if self._turned_away else ""
        return JoinFailed(
            f"expected {self._self.terms.size} ranks, but {ranks_text(missing)} did not join within "
            f"{timeout_s:g} s{turned_away}",
            ranks=missing,
            where=str(self._folder.path),
            hint="read the logs of the missing workers, or allow more time with --start-timeout",
        )


class SocketFolder:
    """An open folder of this group alone.

    Args:
        path: A folder that only its owner can enter, so that nobody else can put a socket there.

    Raises:
        UsageError: No such folder, or others may enter it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"cannot open the group's folder: {error.strerror}", where=str(path)) from error
        mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
        if mode & 0o077:
            os.close(self._fd)
            raise UsageError(
                f"expected a folder that only its owner can enter, received mode {mode:04o}",
                where=str(path),
                hint="chmod 700 it, or make it with tempfile.mkdtemp",
            )

    def listen(self, rank: int, backlog: int) -> socket.socket:
        """Return a listening, non-blocking socket of a rank.

        Raises:
            UsageError: Another process listens for that rank, or the folder cannot hold sockets.
        """
        listener, address = new_socket(), self._address(rank)
        try:
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                self._remove_leftover(rank)
                listener.bind(address)
            listener.listen(backlog)
        except OSError as error:
            listener.close()
            raise UsageError(
                f"cannot make a socket for rank {rank}: {error.strerror}",
                where=str(self.path),
                hint="use a folder of this group alone, writable, on a file system of this host; start each rank once",
            ) from error
        return listener

    def connect(self, rank: int) -> socket.socket | None:
        """Return a non-blocking socket connected to a rank, or ``None`` if it does not listen yet.

        Raises:
            OSError: It can never work.
        """
        peer = new_socket()
        try:
            peer.connect(self._address(rank))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            peer.close()
            return None
        except OSError:
            peer.close()
            raise
        return peer

    def remove(self, rank: int) -> None:
        """Remove a rank's socket file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(f"rank-{rank}", dir_fd=self._fd)

    def close(self) -> None:
        """Close the folder."""
        os.close(self._fd)

    def _address(self, rank: int) -> str:
        name = f"rank-{rank}"
        path = str(self.path / name)
        if len(os.fsencode(path)) <= _PATH_LIMIT_BYTES:
            return path
        # Any depth of folder has this short name too, and the process need not change its working directory.
        return f"/proc/self/fd/{self._fd}/{name}"

    def _remove_leftover(self, rank: int) -> None:
        """Remove the socket file of a process that has died: it does not go with its process."""
        with new_socket() as probe:
            try:
                probe.connect(self._address(rank))
            except ConnectionRefusedError:
                self.remove(rank)


def new_socket() -> socket.socket:
    """Return a non-blocking unix socket whose messages keep their bounds."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock
