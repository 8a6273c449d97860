"""Checks whether a worker process of this user is stopped. Workers are found by their process names."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tfmp import procfs
from tfmp.commands.doctor.line import Line

_NAME = re.compile(r"tfmp-worker-(\d+)")


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


def find_workers(root: Path = procfs.ROOT, user: int | None = None) -> list[WorkerProcess]:
    """Return the worker processes of a user, by rank.

    Args:
        root: Where ``proc`` lies.
        user: The user's id; ``None``: this one's.
    """
    user = os.getuid() if user is None else user
    found = []
    for pid in procfs.pids(root):
        stat = procfs.process_stat(pid, root)
        match = _NAME.fullmatch(stat.name) if stat else None
        if stat and match and procfs.owner(pid, root) == user:
            found.append(WorkerProcess(pid, int(match[1]), stat.state))
    return sorted(found, key=lambda worker: (worker.rank, worker.pid))


def workers_line(workers: list[WorkerProcess]) -> Line:
    """Return the line for them."""
    if stopped := [worker for worker in workers if worker.state in (procfs.STOPPED, procfs.TRACED)]:
        pids = " ".join(str(worker.pid) for worker in stopped)
        names = ", ".join(f"worker {worker.rank} (pid {worker.pid})" for worker in stopped)
        return Line("fail", "workers", f"stopped: {names}", f"kill -CONT {pids}")
    alive = ", ".join(f"worker {worker.rank} (pid {worker.pid})" for worker in workers)
    return Line("ok", "workers", f"running: {alive}" if alive else "none running")
