"""Text for people: how quantities are written, and how a line is printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NO_METRIC = frozenset({"event", "epoch", "step", "seconds", "samples_per_second"})
_FIRST = ("loss", "accuracy", "val_loss", "val_accuracy")


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def eprint(text: str) -> None:
    """Print a line to standard error at once."""
    print(text, file=sys.stderr, flush=True)


def noop(*_: object) -> None:
    """Do nothing, in place of a callback."""


def count(number: int, noun: str) -> str:
    """``1 worker``, ``4 workers``, ``60,000 samples``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def seconds(value: float) -> str:
    """``0.8 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rate(value: float | None) -> str:
    """``41,842 samples/s``; empty if unknown."""
    return "" if value is None else f"{value:,.0f} samples/s"


def without_colours(text: str) -> str:
    """Return a line without the escape sequences that colour it on a terminal."""
    return _ESCAPE.sub("", text)


def metrics_text(values: Mapping[str, Any]) -> str:
    """``loss 0.2393  accuracy 0.9275``, well-known metrics first."""
    names = [name for name in _FIRST if name in values]
    names += [name for name in values if name not in _NO_METRIC and name not in _FIRST]
    return "  ".join(f"{name} {_metric(values[name])}" for name in names)


def _metric(value: Any) -> str:
    if value is None:
        return "nan"
    return f"{value:.4f}" if isinstance(value, (int, float)) else str(value)
