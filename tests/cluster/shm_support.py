"""Ranks of a group as forked processes: what each returned or raised, and when."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tfmp.distribute.shm import SharedMemoryGroup, futex
from tfmp.errors import TfmpError

TOKEN = b"a secret"
needs_futex = pytest.mark.skipif(not futex.available(), reason="the futex barrier is for x86-64")
FUTEX = pytest.param("futex", marks=needs_futex)
KINDS = [FUTEX, "socket"]


def meet(group: SharedMemoryGroup) -> None:
    """Wait for all ranks: the shortest call has one barrier."""
    group.broadcast(np.zeros(1))


def names(folder: Path | str) -> list[str]:
    """Return the names in a folder, sorted."""
    return sorted(path.name for path in Path(folder).iterdir())


class Outcome(NamedTuple):
    """How a rank ended. ``error`` is the class of what it raised, ``at_s`` the time of ``time.monotonic()``."""

    value: Any
    error: str
    what: str
    ranks: tuple[int, ...]
    at_s: float


class Ranks:
    """Forked processes, one a rank, that each join a group and run ``body(group)``.

    Args:
        directory: An empty folder of the test; the group's own is made inside.
        size: Number of ranks.
        body: What a rank does; its result travels back by pickle.
        changes: Per rank, arguments of ``join`` that differ; ``None`` in place of a rank that never starts.
        options: Arguments of ``join`` for all ranks.
    """

    def __init__(
        self,
        directory: Path,
        size: int,
        body: Callable[[SharedMemoryGroup], Any],
        changes: dict[int, dict[str, Any] | None] | None = None,
        **options: Any,
    ) -> None:
        self.folder = directory / "group"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.pids: dict[int, int] = {}
        self._pipes: dict[int, int] = {}
        for rank in range(size):
            change = (changes or {}).get(rank, {})
            if change is not None:
                join = {"directory": self.folder, "rank": rank, "size": size, "token": TOKEN, "timeout_s": 10.0}
                self._start(rank, body, {**join, "spin": False, **options, **change})

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for rank, pid in self.pids.items():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(self._pipes[rank])
        self.pids = {}

    def send(self, rank: int, signum: int) -> float:
        """Signal a rank and return the time."""
        os.kill(self.pids[rank], signum)
        return time.monotonic()

    def outcome(self, rank: int, timeout_s: float = 20.0) -> Outcome:
        """Wait for the end of a rank and return it; a killed one has the error ``died``."""
        data = b""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._pipes[rank]], [], [], left_s)[0]:
                raise AssertionError(f"rank {rank} is stuck")
            chunk = os.read(self._pipes[rank], 1 << 20)
            if not chunk:
                break
            data += chunk
        if not data:
            return Outcome(None, "died", "", (), time.monotonic())
        outcome: Outcome = pickle.loads(data)
        return outcome

    def outcomes(self) -> list[Outcome]:
        return [self.outcome(rank) for rank in sorted(self.pids)]

    def values(self) -> list[Any]:
        """Return what the ranks returned; none may have raised."""
        outcomes = self.outcomes()
        assert [outcome.what for outcome in outcomes] == [""] * len(outcomes)
        return [outcome.value for outcome in outcomes]

    def _start(self, rank: int, body: Callable[[SharedMemoryGroup], Any], join: dict[str, Any]) -> None:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write_end)
            self.pids[rank], self._pipes[rank] = pid, read_end
            return
        outcome = Outcome(None, "died", "", (), 0.0)
        try:
            os.close(read_end)
            try:
                with SharedMemoryGroup.join(**join) as group:
                    value = body(group)
                outcome = Outcome(value, "", "", (), time.monotonic())
            except BaseException as error:
                now_s = time.monotonic()
                what = error.what if isinstance(error, TfmpError) else "".join(traceback.format_exception(error))
                outcome = Outcome(None, type(error).__name__, what, getattr(error, "ranks", ()), now_s)
            data = memoryview(pickle.dumps(outcome))
            while data:
                data = data[os.write(write_end, data) :]
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(0)
