"""The private folder where the ranks' sockets lie while the group forms."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from tfmp.errors import UsageError

_PATH_LIMIT_BYTES = 107  # sun_path of unix(7), without its closing zero


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
            os.unlink(_file_name(rank), dir_fd=self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _address(self, rank: int) -> str:
        path = str(self.path / _file_name(rank))
        if len(os.fsencode(path)) <= _PATH_LIMIT_BYTES:
            return path
        # Any depth of folder has this short name too, and the process need not change its working directory.
        return f"/proc/self/fd/{self._fd}/{_file_name(rank)}"

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


def _file_name(rank: int) -> str:
    return f"rank-{rank}"
