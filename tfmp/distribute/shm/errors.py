"""Errors of a shared-memory group, each with the ranks at fault."""

from __future__ import annotations

from collections.abc import Iterable

from tfmp.errors import TfmpError


class GroupError(TfmpError):
    """A group cannot be formed or used any more.

    Attributes:
        ranks: The ranks at fault, ascending; empty where none can be named.
    """

    def __init__(
        self, what: str, *, ranks: Iterable[int] = (), where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.ranks = tuple(sorted(ranks))


class JoinFailed(GroupError):
    """The group did not form: ranks are missing, or they disagree about it."""


class PeerLost(GroupError):
    """A rank that others wait for has died or left."""

    @property
    def rank(self) -> int:
        """The first of the lost ranks."""
        return self.ranks[0]


class CallMismatch(GroupError):
    """The ranks called different operations, or with vectors of different length or type."""


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``rank 2`` or ``ranks 1, 2``."""
    numbers = sorted(ranks)
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def to_mask(ranks: Iterable[int]) -> int:
    """Return the ranks as bits of a 64-bit word."""
    mask = 0
    for rank in ranks:
        mask |= 1 << rank
    return mask


def from_mask(mask: int) -> list[int]:
    """Return the ranks whose bits are set, ascending."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
