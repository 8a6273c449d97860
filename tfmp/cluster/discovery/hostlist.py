"""Slurm's compressed lists: ``rack[1-2]n[01-04,7],login`` of nodes, ``2(x3),1`` of tasks a node."""

from __future__ import annotations

import itertools
import re

from tfmp.errors import UsageError

_MAX_HOSTS = 65536
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._-]*\Z", re.ASCII)
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?\Z", re.ASCII)


def expand_hostlist(text: str, where: str) -> list[str]:
    """Return the host names of a Slurm node list, in its order.

    Names may have several bracketed parts (the last varies fastest) and text behind them; a range keeps the zeros in
    front of its first number.

    Args:
        text: The list, such as ``n[001-003],login``.
        where: The variable it came from.

    Raises:
        UsageError: The list is malformed, quoting variable and value.
    """
    hosts: list[str] = []
    for item in _split(text, where):
        parts = re.split(r"(\[[^\[\]]*\])", item)
        choices = [_choices(part, text, where) for part in parts if part]
        if not choices:
            raise _malformed(text, where, "an empty name")
        total = 1
        for choice in choices:
            total *= len(choice)
        if len(hosts) + total > _MAX_HOSTS:
            raise _malformed(text, where, f"more than {_MAX_HOSTS:,} hosts")
        hosts += ("".join(combination) for combination in itertools.product(*choices))
    return hosts


def expand_counts(text: str, where: str) -> list[int]:
    """Return the tasks of each node from Slurm's ``2(x3),1``.

    Raises:
        UsageError: The list is malformed, quoting variable and value.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = _COUNT.match(item.strip())
        if match is None or not int(match[1]) or int(match[2] or 1) > _MAX_HOSTS:
            raise UsageError(f"expected numbers of tasks such as 2(x3),1, received {where}={text[:200]}", where=where)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _split(text: str, where: str) -> list[str]:
    """Split at the commas outside of brackets."""
    items, depth = [""], 0
    for character in text.strip():
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise _malformed(text, where, "brackets that do not match")
        if character == "," and not depth:
            items.append("")
        else:
            items[-1] += character
    if depth:
        raise _malformed(text, where, "brackets that do not match")
    return items


def _choices(part: str, text: str, where: str) -> list[str]:
    if not part.startswith("["):
        if not _NAME.match(part):
            raise _malformed(text, where, f"a name {part[:40]!r}")
        return [part]
    found: list[str] = []
    for piece in part[1:-1].split(","):
        match = _RANGE.match(piece.strip())
        if match is None:
            raise _malformed(text, where, f"a range {piece[:40]!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _malformed(text, where, f"a range {piece[:40]!r} that runs backwards")
        if int(last) - int(first) >= _MAX_HOSTS:
            raise _malformed(text, where, f"more than {_MAX_HOSTS:,} hosts")
        found += (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return found


def _malformed(text: str, where: str, what: str) -> UsageError:
    return UsageError(f"expected a Slurm node list, received {where}={text[:200]}: {what}", where=where)
