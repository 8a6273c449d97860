"""One call at a time, and none after a call that failed."""

from __future__ import annotations

import threading

from tfmp.distribute.shm.errors import GroupError


class CallGuard:
    """Keeps calls apart that would mix up the order the ranks agree on.

    Args:
        where: The place to name in errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._reason: str | None = None
        # Held during a call, and for ever once there may be none.
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Begin a call; :meth:`leave` ends one that succeeded.

        Raises:
            GroupError: Another thread is in a call, or no call is allowed any more.
        """
        if not self._lock.acquire(blocking=False):
            raise GroupError(
                self._reason or "two threads call the group of one worker at the same time",
                where=self._where,
                hint="join a new group" if self._reason else "order the calls: all ranks must make them alike",
            )

    def leave(self) -> None:
        """End a call that succeeded. Harmless after :meth:`shut`."""
        if self._reason is None:
            self._lock.release()

    def shut(self, reason: str) -> bool:
        """Allow no further call. The first reason counts.

        Returns:
            Whether calls were allowed until now.
        """
        if self._reason is not None:
            return False
        self._reason = reason
        self._lock.acquire(blocking=False)
        return True
