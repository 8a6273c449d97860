"""``--inject-fault``: faults that a user injects to see what a run does about them.

A fault is ``KIND[:VALUE][@KEY=VALUE,…]``: ``kill:2@step=50``, ``exit:7@rank=0,at=validation``. It happens once, in
the first attempt of the command.
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
    """A fault to inject.

    Attributes:
        kind: What happens: ``kill``, ``stop`` and ``term`` send SIGKILL, SIGSTOP and SIGTERM; ``exit`` leaves with a
            code; ``raise`` raises; ``slow`` makes every step take longer; ``oom`` eats memory; ``corrupt-checkpoint``
            damages the newest checkpoint and kills; ``disk-full`` lets the next checkpoint fail.
        rank: The worker that it hits.
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
    """Parse a fault.

    Args:
        text: See the module.
        workers: Number of workers. Without a rank, the fault hits the last one.

    Raises:
        UsageError: The text is not a fault, or names a worker that does not exist.
    """
    match = _SYNTAX.fullmatch(text)
    if match is None or match["kind"] not in get_args(Kind):
        raise _refused(text, f"a fault, such as {_EXAMPLES}")
    kind: Kind = match["kind"]  # type: ignore[assignment]
    fault = Fault(kind, workers - 1)
    if kind in ("corrupt-checkpoint", "disk-full"):  # the chief writes
        fault = replace(fault, rank=0, moment="saving" if kind == "disk-full" else "step")
    if match["value"] is not None:
        fault = _with_value(fault, text, match["value"])
    if match["where"] is not None:
        for setting in match["where"].split(","):
            fault = _with_setting(fault, text, *setting.partition("=")[::2])
    if fault.rank >= workers:
        raise _refused(text, f"a rank from 0 to {workers - 1}")
    return fault


def _with_value(fault: Fault, text: str, value: str) -> Fault:
    if fault.kind in _WITH_RANK:
        return replace(fault, rank=_whole(text, value))
    if fault.kind == "exit":
        return replace(fault, value=_whole(text, value))
    if fault.kind == "slow" and re.fullmatch(r"\d+(\.\d+)?x", value):
        return replace(fault, value=float(value[:-1]))
    raise _refused(text, f"no value {value!r} for {fault.kind}")


def _with_setting(fault: Fault, text: str, key: str, value: str) -> Fault:
    if key == "step":
        return replace(fault, step=_whole(text, value))
    if key == "rank":
        return replace(fault, rank=_whole(text, value))
    if key == "at" and value in get_args(Moment):
        return replace(fault, moment=value)  # type: ignore[arg-type]
    raise _refused(text, f"step=N, rank=N or at={'|'.join(get_args(Moment))} behind the @")


def _whole(text: str, value: str) -> int:
    if not value.isdecimal():
        raise _refused(text, f"a whole number in place of {value!r}")
    return int(value)


def _refused(text: str, expected: str) -> UsageError:
    return UsageError(
        f"expected {expected}, received {text!r}", where="--inject-fault", hint=f"for example {_EXAMPLES}"
    )
