"""Which of the lines that workers print are shown while they run; the log files have all."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tfmp.events import EpochEnd, Progress, WeightsDigest, WorkerEvent
from tfmp.noise import complains_of_a_peer, is_noise

_TRACEBACK = "Traceback (most recent call last)"
#: Events of a worker that is well: what looked like its last words was not.
_SIGNS_OF_LIFE = (Progress, EpochEnd, WeightsDigest)
_MOST_HELD = 1000


class Console:
    """Shows a worker's own words, and hides what is harmless, a victim's complaint, or shown again at the end.

    Args:
        show: Shows a line: rank, stream, text.
        leaving: Ranks that are done (may change later).
        everything: Show every line (``-v``).
        tee: Show every line as it stands, of all streams.
        ranks: Show these workers only; ``None``: all.
    """

    def __init__(
        self,
        show: Callable[[int, str, str], None],
        leaving: Collection[int],
        *,
        everything: bool,
        tee: bool,
        ranks: Collection[int] | None,
    ) -> None:
        self.hidden = 0
        self._show = show
        self._leaving = leaving
        self._everything = everything or tee
        self._ranks = ranks
        self._victims: set[int] = set()
        self._held: dict[int, list[str]] = {}

    def on_line(self, rank: int, stream: str, text: str) -> None:
        """Take a line that worker ``rank`` printed."""
        if self._ranks is not None and rank not in self._ranks:
            return
        if self._everything:
            self._show(rank, stream, text)
            return
        if complains_of_a_peer(text):
            self._victims.add(rank)
        # A worker that is done, or has lost a peer, has nothing of the user's to say any more. (Should it be to blame
        # after all, its last lines are shown.)
        if is_noise(text) or rank in self._leaving or (rank in self._victims and stream == "stderr"):
            self.hidden += 1
        elif stream == "stderr" and (rank in self._held or text.startswith(_TRACEBACK)):
            # Its last words, most often: they come once, under the error. Back they come if it lives on.
            held = self._held.setdefault(rank, [])
            held.append(text)
            del held[:-_MOST_HELD]
        else:
            self._show(rank, stream, text)

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """Take an event of worker ``rank``."""
        if isinstance(event, _SIGNS_OF_LIFE):
            for text in self._held.pop(rank, ()):
                self._show(rank, "stderr", text)
