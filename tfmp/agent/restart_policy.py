"""Whether to start a failed group again, by its cause: a state machine without processes or clocks.

What would fail again is not tried again: an error of the user's, a failure before the first step, the same traceback at
the same step. Crashes and deaths from outside (signals, preemption) have a budget each, and an hour of health fills
both up.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfmp.agent.failures.diagnosis import Diagnosis

_OUTSIDE = frozenset({"signal", "preempted", "fork-server"})
_PORT_RETRIES = 3


@dataclass(frozen=True)
class Restart:
    """Start the group again.

    Args:
        delay_s: Seconds to wait first.
        number: Number of this restart among those of its kind, from 1.
        allowed: Restarts of its kind that there may be.
    """

    delay_s: float
    number: int
    allowed: int


@dataclass(frozen=True)
class Stop:
    """Do not start it again; ``why`` is a sentence, or ``None`` where nobody expects a restart."""

    why: str | None


@dataclass(frozen=True)
class RestartPolicy:
    """How often, and how fast.

    Args:
        max_restarts: Restarts after crashes and hangs; as many again after deaths from outside. 0: never.
        first_delay_s: Before the first restart; doubled for each further one.
        longest_delay_s: Bound of that.
        refill_after_s: An attempt that ran so long fills both budgets up.
        ports_are_free: Whether another attempt can use other ports.
    """

    max_restarts: int = 3
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    refill_after_s: float = 3600.0
    ports_are_free: bool = True


class Restarts:
    """What has been spent in one run.

    Args:
        policy: The limits.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._used: dict[str, int] = {}
        self._last: Diagnosis | None = None

    def after(self, failure: Diagnosis) -> Restart | Stop:
        """Decide what follows a failed attempt."""
        policy, last = self._policy, self._last
        self._last = failure
        if policy.max_restarts == 0:
            return Stop(None)
        if failure.ran_s >= policy.refill_after_s:
            self._used.clear()
        if failure.cause == "error":
            return Stop("it would fail again: not restarted")
        if failure.cause == "ports":
            return self._other_ports()
        if failure.step is None and failure.cause not in _OUTSIDE:
            return Stop("it failed before the first step, and would again: not restarted")
        if failure.cause == "crash" and last is not None and failure.signature and _same(failure, last):
            after = f" after step {failure.step}" if failure.step else ""
            return Stop(f"the same error twice{after}: not restarted")
        kind = "outside" if failure.cause in _OUTSIDE else "crash"
        if self._used.get(kind, 0) >= policy.max_restarts:
            all_of_them = f"all {policy.max_restarts} restarts are" if policy.max_restarts > 1 else "the restart is"
            return Stop(f"{all_of_them} used up")
        number = self._used[kind] = self._used.get(kind, 0) + 1
        delay_s = min(policy.first_delay_s * 2 ** (number - 1), policy.longest_delay_s)
        return Restart(0.0 if failure.cause == "preempted" else delay_s, number, policy.max_restarts)

    def _other_ports(self) -> Restart | Stop:
        if not self._policy.ports_are_free:
            return Stop("the ports were chosen by you: not restarted")
        number = self._used["ports"] = self._used.get("ports", 0) + 1
        if number > _PORT_RETRIES:
            return Stop(f"{_PORT_RETRIES} other sets of ports were taken as well")
        return Restart(0.0, number, _PORT_RETRIES)


def _same(failure: Diagnosis, last: Diagnosis) -> bool:
    return (failure.cause, failure.signature, failure.step) == (last.cause, last.signature, last.step)
