"""Checks whether a worker process of this user is stopped. Workers are found by their process names."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfmp.commands.doctor.line import Line

_NAME = re.compile(r"tfmp-worker-(\d+)")
_PROC = Path("/proc")
_STOPPED = ("T", "t")


@dataclass(frozen=True)
class WorkerProcess:
    """A worker process.

    Attributes:
        pid: Its process id.
        rank: Its rank.
        state: Its state letter (proc(5)).
    """

    pid: int
    rank: int
    state: str


def find_workers(proc: Path = _PROC, user: int | None = None) -> list[WorkerProcess]:
    """Return the worker processes of a user, by rank.

    Args:
        proc: Where ``/proc`` is.
        user: The user's id; ``None``: this one's.
    """
    user = os.getuid() if user is None else user
    found = []
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, IndexError):
            name, _, rest = (folder / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
            match = _NAME.fullmatch(name)
            if match and folder.stat().st_uid == user:
                found.append(WorkerProcess(int(folder.name), int(match[1]), rest.split()[0]))
    return sorted(found, key=lambda worker: (worker.rank, worker.pid))


def workers_line(workers: list[WorkerProcess]) -> Line:
    """Return the line for them."""
    if stopped := [worker for worker in workers if worker.state in _STOPPED]:
        pids = " ".join(str(worker.pid) for worker in stopped)
        names = ", ".join(f"worker {worker.rank} (pid {worker.pid})" for worker in stopped)
        return Line("fail", "workers", f"stopped: {names}", f"kill -CONT {pids}")
    alive = ", ".join(f"worker {worker.rank} (pid {worker.pid})" for worker in workers)
    return Line("ok", "workers", f"running: {alive}" if alive else "none running")
