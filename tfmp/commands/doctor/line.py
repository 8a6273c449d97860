"""One line of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Line:
    """What one check found.

    Attributes:
        status: Whether it stands in the way (``fail``), may do so (``warn``), or not.
        name: What was looked at.
        what: What was found.
        fix: What to do; ``None`` where nothing is to be done.
    """

    status: Status
    name: str
    what: str
    fix: str | None = None


def render(lines: Iterable[Line]) -> str:
    """Return the lines as text, the fixes below theirs."""
    lines = list(lines)
    width = max(len(line.name) for line in lines)
    text = []
    for line in lines:
        text.append(f"{line.status:<4}  {line.name:<{width}}  {line.what}")
        if line.fix:
            text.append(f"{'':<4}  {'':<{width}}  try: {line.fix}")
    return "\n".join(text)
