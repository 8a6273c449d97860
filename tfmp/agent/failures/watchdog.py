"""Whether a group still gets on: a state machine fed with signs of progress, process states and the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

STOPPED = "T"
"""State in /proc/PID/stat of a process that SIGSTOP has stopped. (A debugger's is ``t``.)"""

_LEAST_S = 60.0
_FACTOR = 10.0
_RECENT = 50
# Long enough for someone who stops and continues a process on purpose in one go.
_STOPPED_PATIENCE_S = 2.0
# Between two looks. If it was longer, this process itself stood still (Ctrl-Z, a stopped container).
_OWN_PAUSE_S = 5.0


@dataclass(frozen=True)
class Hang:
    """A group that does not get on.

    Args:
        waited_s: Seconds since the last sign of progress, or since a worker was seen stopped.
        stopped: Ranks that SIGSTOP has stopped.
    """

    waited_s: float
    stopped: tuple[int, ...] = ()

    def describe(self) -> str:
        """Say it in one sentence."""
        if self.stopped:
            names = ", ".join(map(str, self.stopped))
            noun, verb = ("worker", "is") if len(self.stopped) == 1 else ("workers", "are")
            return f"{noun} {names} {verb} stopped (SIGSTOP), and the others wait"
        return f"no step has finished for {self.waited_s:.0f} s"


class Watchdog:
    """Notices that a group hangs.

    Args:
        timeout_s: Without progress; ``None``: ten times the slowest recent interval, at least a minute.
        first_timeout_s: From :meth:`arm` to the first step: TensorFlow traces and compiles.
        now_s: The time.
    """

    def __init__(self, timeout_s: float | None, first_timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._first_timeout_s = first_timeout_s
        self._intervals: deque[float] = deque(maxlen=_RECENT)
        self._progress_s = self._look_s = now_s
        self._armed = self._stepped = False
        self._stopped_since: dict[int, float] = {}

    @property
    def timeout_s(self) -> float:
        """The longest wait for the next sign of progress."""
        if not self._stepped:
            return max(self._first_timeout_s, self._timeout_s or 0.0)
        if self._timeout_s is not None:
            return self._timeout_s
        return max(_LEAST_S, _FACTOR * max(self._intervals, default=0.0))

    def arm(self, now_s: float) -> None:
        """All workers are ready: from now on steps are expected. Before, only stopped processes are noticed."""
        self._armed = True
        self._progress_s = now_s

    def progress(self, now_s: float, *, step: bool) -> None:
        """Take note that something has happened: a step, or else evaluation or saving."""
        if step:
            if self._stepped:
                self._intervals.append(now_s - self._progress_s)
            self._stepped = True
        self._progress_s = now_s

    def look(self, now_s: float, states: Mapping[int, str]) -> Hang | None:
        """Return a hang, if there is one.

        Args:
            now_s: The time.
            states: State letter of each living worker's process, by rank.
        """
        pause_s, self._look_s = now_s - self._look_s, now_s
        if pause_s > _OWN_PAUSE_S:
            self._progress_s += pause_s
            self._stopped_since.clear()
        stopped = [rank for rank, state in states.items() if state == STOPPED]
        self._stopped_since = {rank: self._stopped_since.get(rank, now_s) for rank in stopped}
        if stopped:
            waited_s = now_s - min(self._stopped_since.values())
            if waited_s >= _STOPPED_PATIENCE_S:
                return Hang(waited_s, tuple(sorted(stopped)))
        waited_s = now_s - self._progress_s
        return Hang(waited_s) if self._armed and waited_s >= self.timeout_s else None
