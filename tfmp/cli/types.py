"""Parameter types of the command line: lists typed as ``1,2,4``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def numbers(most: int | None = None) -> Callable[[str], tuple[int, ...]]:
    """Different whole numbers separated by commas, as a tuple in ascending order.

    Args:
        most: The largest number allowed; ``None`` for no limit.
    """
    expected = "whole numbers of at least 1" if most is None else f"whole numbers from 1 to {most}"

    def number_list(text: str) -> tuple[int, ...]:
        found = []
        for part in _parts(text):
            number = int(part) if part.isascii() and part.isdecimal() else 0
            if number < 1 or (most is not None and number > most):
                raise click.BadParameter(f"expected {expected}, separated by commas; received {part!r} in {text!r}")
            found.append(number)
        _refuse_duplicates(found)
        return tuple(sorted(found))

    return number_list


def words(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """Different words of a fixed choice separated by commas, as a tuple in the order given."""
    expected = f"any of {', '.join(choices)}"

    def word_list(text: str) -> tuple[str, ...]:
        found = _parts(text)
        for word in found:
            if word not in choices:
                raise click.BadParameter(f"expected {expected}, separated by commas; received {word!r} in {text!r}")
        _refuse_duplicates(found)
        return tuple(found)

    return word_list


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _refuse_duplicates(values: list[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise click.BadParameter(f"expected each value once; received {value} twice")
