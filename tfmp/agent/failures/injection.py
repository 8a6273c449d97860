"""``--inject-fault``: faults on purpose, to rehearse what a run does about them.

A fault is ``KIND[:VALUE][@KEY=VALUE,…]``: ``kill:2@step=50``, ``exit:7@rank=0,at=validation``. It strikes once, in the
first attempt of the command.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tfmp.errors import UsageError

Kind = Literal["kill", "stop", "term", "exit", "raise", "slow", "oom", "corrupt-checkpoint", "disk-full"]
Moment = Literal["start", "step", "validation", "saving"]

_SYNTAX = re.compile(r"(?P<kind>[a-z-]+)(?::(?P<value>[\w.]+))?(?:@(?P<where>.+))?")
_EXAMPLES = "kill:2@step=50, stop:1, term:0, exit:7@rank=1, slow:3x, oom, corrupt-checkpoint, disk-full"
_WITH_RANK = ("kill", "stop", "term")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: What happens: ``kill``, ``stop`` and ``term`` send SIGKILL, SIGSTOP and SIGTERM; ``exit`` leaves with a
            code; ``raise`` raises; ``slow`` makes every step take longer; ``oom`` eats memory; ``corrupt-checkpoint``
            damages the newest checkpoint and kills; ``disk-full`` lets the next checkpoint fail.
        rank: The worker it happens to.
        value: Exit code, or factor.
        moment: Before the first step, after a step, in the middle of a validation, or while saving.
        step: Step, counted over the run, from which on it happens.
    """

    kind: Kind
    rank: int
    value: float = 1.0
    moment: Moment = "step"
    step: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return it as a worker's payload."""
        return asdict(self)


def parse_fault(text: str, workers: int) -> Fault:
    """Read one fault.

    Args:
        text: See the module.
        workers: Number of workers: without a rank the last of them is struck.

    Raises:
        UsageError: It is none.
    """
    match = _SYNTAX.fullmatch(text)
    if match is None or match["kind"] not in get_args(Kind):
        raise _refused(text, f"a fault, such as {_EXAMPLES}")
    kind, value = match["kind"], match["value"]
    drill = Fault(kind, workers - 1)  # type: ignore[arg-type]
    if kind in ("corrupt-checkpoint", "disk-full"):
        drill = replace(drill, rank=0, moment="saving" if kind == "disk-full" else "step")  # the chief writes
    if value is not None:
        if kind in _WITH_RANK:
            drill = replace(drill, rank=_whole(text, value))
        elif kind == "slow" and re.fullmatch(r"\d+(\.\d+)?x", value):
            drill = replace(drill, value=float(value[:-1]))
        elif kind == "exit":
            drill = replace(drill, value=_whole(text, value))
        else:
            raise _refused(text, f"no value {value!r} for {kind}")
    for part in (match["where"] or "").split(",") if match["where"] else ():
        key, _, setting = part.partition("=")
        if key == "step":
            drill = replace(drill, step=_whole(text, setting))
        elif key == "rank":
            drill = replace(drill, rank=_whole(text, setting))
        elif key == "at" and setting in get_args(Moment):
            drill = replace(drill, moment=setting)  # type: ignore[arg-type]
        else:
            raise _refused(text, f"step=N, rank=N or at={'|'.join(get_args(Moment))} behind the @")
    if drill.rank >= workers:
        raise _refused(text, f"a rank from 0 to {workers - 1}")
    return drill


def _whole(text: str, value: str) -> int:
    if not value.isdecimal():
        raise _refused(text, f"a whole number in place of {value!r}")
    return int(value)


def _refused(text: str, expected: str) -> UsageError:
    return UsageError(
        f"expected {expected}, received {text!r}", where="--inject-fault", hint=f"for example {_EXAMPLES}"
    )
