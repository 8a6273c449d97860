"""A line of the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Line:
    """The result of a check.

    Attributes:
        status: Whether it prevents training (``fail``), may do so (``warn``), or neither (``ok``).
        name: What was checked.
        what: What was found.
        fix: How to fix it; ``None`` if there is nothing to fix.
    """

    status: Status
    name: str
    what: str
    fix: str | None = None


def render(lines: Iterable[Line]) -> str:
    """Return the lines as text, with each fix below its line."""
    lines = list(lines)
    width = max(len(line.name) for line in lines)
    text = []
    for line in lines:
        text.append(f"{line.status:<4}  {line.name:<{width}}  {line.what}")
        if line.fix:
            text.append(f"{'':<4}  {'':<{width}}  try: {line.fix}")
    return "\n".join(text)
