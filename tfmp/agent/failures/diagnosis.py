"""Who broke, and who only noticed: judged once a failure, by what each worker left behind, not by who ended first.

When one worker dies, its peers fail too, sometimes earlier: a collective is cut, the coordination service gives up. So
a traceback of its own, an error it named, a signal from outside count for more than "peer gone"; the order of the
first signs decides only between equals.
"""

from __future__ import annotations

import platform
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tfmp.agent.failures.evidence import CRASHES, Evidence, Weight
from tfmp.agent.failures.hang import HangReport
from tfmp.agent.failures.hints import memory_hint, message_hint, signal_hint
from tfmp.agent.failures.memory import MemoryEvidence
from tfmp.errors import TfmpError
from tfmp.workers.spec import GroupResult, signal_name

Cause = Literal["error", "crash", "hang", "signal", "preempted", "fork-server", "ports", "start"]
"""Why a group failed.

``error``: a worker reported one that a user can act on (a loss that is no number, a wrong file). ``crash``: it raised,
exited, or crashed in native code. ``hang``: no step was finished for too long. ``signal``: it was killed or stopped
from outside. ``preempted``: it was asked to leave, and left. ``fork-server``: the fork server died. ``ports``: a port
was taken. ``start``: not all workers were ready in time.
"""

_PORT_TAKEN = re.compile(r"Could not start gRPC server|[Aa]ddress already in use|EADDRINUSE")
#: Ends that leave no word of their own: whether memory was the cause is worth knowing.
_SILENT_SIGNALS = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})
_MESSAGE_CHARS = 300


@dataclass(frozen=True)
class Setting:
    """What a diagnosis knows of the run, to say where a failure is.

    Attributes:
        addresses: ``host:port`` by rank; ``None`` where a worker has none.
        steps_per_epoch: Steps of an epoch; ``None`` for programs, of whose steps nothing is known.
    """

    addresses: Mapping[int, str | None] = field(default_factory=dict)
    steps_per_epoch: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Why a group failed.

    Attributes:
        cause: The kind of failure, for the restart policy.
        culprits: Ranks, the one to name first; empty if no worker is to blame.
        victims: Ranks that failed because another did.
        independent: Whether more than one failed by itself, each differently.
        step: The group's last step, counted over the run; ``None``: before this attempt's first.
        signature: See :class:`Evidence`.
        evidence: By rank.
        result: How the group ended.
        memory: Of a culprit that ended without a word.
        hang: Where each worker was, of a group that hung.
        setting: What is known of the run.
        ran_s: Seconds since the attempt's workers were started.
    """

    cause: Cause
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    independent: bool
    step: int | None
    signature: str
    evidence: Mapping[int, Evidence]
    result: GroupResult
    memory: MemoryEvidence | None = None
    hang: HangReport | None = None
    setting: Setting = field(default_factory=Setting)
    ran_s: float = 0.0

    @property
    def culprit(self) -> Evidence | None:
        """The worker to name."""
        return self.evidence[self.culprits[0]] if self.culprits else None

    @property
    def details(self) -> list[str]:
        """Lines below the error."""
        lines = self.memory.describe() if self.memory else []
        return lines + (self.hang.describe()[1:] if self.hang else [])

    def short(self) -> str:
        """Say it in a few words: ``worker 1 failed: signal 9 (SIGKILL)``."""
        culprit = self.culprit
        if culprit is None:
            return self.result.problem or "the run failed"
        failed = f"worker {culprit.rank} failed"
        if culprit.error is not None:
            return f"{failed}: {culprit.error.what}"
        if culprit.stands_still:
            problem = self.result.problem or "no step has finished"
            names = ", ".join(map(str, self.culprits))
            return problem if culprit.stopped else f"{problem}: worker {names} is not where the others are"
        if culprit.asked_to_leave:
            return f"{failed}: it was asked to leave by signal 15 (SIGTERM), and left"
        if culprit.exception is not None and culprit.exit.signal is None:
            reason = culprit.exception.reason or f"{culprit.exception.type}: {culprit.exception.message.strip()}"
            lines = (line.strip() for line in reason.splitlines())
            return f"{failed}: {next(filter(None, lines), '')[:_MESSAGE_CHARS].removesuffix('.')}"
        return f"{failed}: {culprit.exit.describe()}"

    def to_error(self) -> TfmpError:
        """The error for the user."""
        result, culprit = self.result, self.culprit
        if culprit is None:
            addresses = self.setting.addresses
            missing = ", ".join(f"worker {rank} ({addresses.get(rank) or 'local'})" for rank in result.not_ready)
            hint = "see the workers' logs; cluster.start_timeout_s sets how long workers may take" if missing else None
            return TfmpError(self.short(), where=missing or None, hint=hint, exit_code=result.exit_code)
        where = self._where(culprit)
        code = result.exit_code if culprit.stands_still else culprit.exit.shell_code
        if culprit.error is not None:
            own = culprit.error
            where = f"{where}, {own.where}" if own.where else where
            return TfmpError(own.what, where=where, hint=own.hint, exit_code=code)
        what = f"{self.short()}{self._after_step(culprit)}"
        if self.independent:
            others = (self.evidence[rank] for rank in self.culprits[1:])
            and_too = "; ".join(f"worker {other.rank}: {other.exit.describe()}" for other in others)
            what += f"\n  and independently of it: {and_too}"
        return TfmpError(what, where=where, hint=self.hint, exit_code=code)

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        culprit = self.culprit
        if culprit is None:
            return None
        if culprit.stands_still:
            if culprit.stopped:
                return None
            if culprit.step is None:
                return (
                    "--start-timeout (cluster.start_timeout_s) sets how long the first call into TensorFlow may take; "
                    "training.steps_per_execution=1 makes it one step"
                )
            return "run.hang_timeout_s sets how long a step may take"
        if self.memory is not None and culprit.exit.signal == signal.SIGKILL:
            hint = memory_hint(self.memory.conclusion)
            if hint is not None:
                return hint
        signum = signal.SIGTERM if culprit.asked_to_leave else culprit.exit.signal
        return signal_hint(signum) or message_hint(culprit.tail)

    @property
    def taken_along(self) -> str | None:
        """One line for the workers that the failure took along, or ``None``."""
        parts = []
        for exit in self.result.exits:
            if exit.rank not in self.culprits:
                how = f"{exit.describe()}, after it" if exit.cause == "failed" else exit.cause
                parts.append(f"worker {exit.rank} ({how})")
        return f"taken along: {', '.join(parts)}" if parts else None

    def to_json(self) -> dict[str, Any]:
        """What ``failure.json`` and the events of a restart hold of it."""
        culprit = self.culprit
        signum = culprit.exit.signal if culprit else None
        return {
            "cause": self.cause,
            "worker": culprit.rank if culprit else None,
            "host": platform.node(),
            "signal": signal_name(signum) if signum is not None else None,
            "culprits": list(self.culprits),
            "independent": self.independent,
            "victims": list(self.victims),
            "step": self.step,
            "log_tail": self.result.tail(culprit.rank) if culprit else [],
            "memory_evidence": self.memory.to_json() if self.memory else None,
            "hang": self.hang.to_json() if self.hang else None,
            "workers": [
                {
                    "rank": exit.rank,
                    "pid": exit.pid,
                    "exit_code": exit.exit_code,
                    "signal": exit.signal,
                    "cause": exit.cause,
                    "peak_rss_bytes": exit.peak_rss_bytes,
                    "seconds": round(exit.seconds, 3),
                }
                for exit in self.result.exits
            ],
        }

    def _where(self, culprit: Evidence) -> str:
        address = self.setting.addresses.get(culprit.rank)
        where = f"worker {culprit.rank}" + (f" ({address})" if address else "") + f" on {platform.node()}"
        if len(self.culprits) > 1 and not self.independent:
            where += f"; workers {', '.join(map(str, sorted(self.culprits)))} alike"
        if culprit.exception is not None and culprit.exception.place is not None and culprit.error is None:
            where = f"{culprit.exception.place}, {where}"
        return where

    def _after_step(self, culprit: Evidence) -> str:
        if self.setting.steps_per_epoch is None:
            return ""
        if culprit.step is None:
            return ", before its first step"
        epoch, step = divmod(culprit.step - 1, self.setting.steps_per_epoch)
        return f", after step {culprit.step:,} (epoch {epoch + 1}, step {step + 1:,})"


def diagnose(
    evidence: Sequence[Evidence],
    result: GroupResult,
    *,
    memory_of: Callable[[int], MemoryEvidence] | None = None,
    hang: HangReport | None = None,
    setting: Setting | None = None,
    ran_s: float = 0.0,
) -> Diagnosis:
    """Find the culprit.

    Args:
        evidence: Of each worker.
        result: How the group ended.
        memory_of: Tells what is known of the memory of a dead worker.
        hang: Where the workers were, if the group hung.
        setting: What is known of the run.
        ran_s: Seconds since the attempt's workers were started.
    """
    position = {rank: i for i, rank in enumerate(result.order)}
    failed = [worker for worker in evidence if worker.weight > Weight.FINE]
    failed.sort(key=lambda worker: (-worker.weight, position.get(worker.rank, len(position)), worker.rank))
    heaviest = failed[0].weight if failed else Weight.FINE
    suspects = [worker for worker in failed if worker.weight == heaviest]
    # Exit codes without a word, and those who only complain about others, do not speak of two causes.
    if heaviest in (Weight.SILENT, Weight.VICTIM):
        suspects = suspects[:1]
    culprit = suspects[0] if suspects else None
    culprits = tuple(worker.rank for worker in suspects)
    silent = culprit is not None and culprit.exit.signal in _SILENT_SIGNALS and not culprit.stands_still
    steps = [worker.step for worker in evidence if worker.step is not None]
    return Diagnosis(
        cause=_cause(culprit, evidence, result),
        culprits=culprits,
        victims=tuple(worker.rank for worker in failed if worker.rank not in culprits),
        independent=heaviest is Weight.OWN and len({worker.signature for worker in suspects}) > 1,
        step=max(steps, default=None),
        signature=culprit.signature if culprit else "",
        evidence={worker.rank: worker for worker in evidence},
        result=result,
        # One that stood still was killed by tfmp.
        memory=memory_of(culprit.rank) if memory_of is not None and culprit is not None and silent else None,
        hang=hang,
        setting=setting or Setting(),
        ran_s=ran_s,
    )


def _cause(culprit: Evidence | None, evidence: Sequence[Evidence], result: GroupResult) -> Cause:
    before_first_step = all(worker.step is None for worker in evidence)
    if before_first_step and any(_PORT_TAKEN.search(line) for worker in evidence for line in worker.tail):
        return "ports"
    if culprit is None:
        if result.fork_server_lost:
            return "fork-server"
        return "start" if result.not_ready else "hang"
    if culprit.error is not None:
        return "error"
    if culprit.stands_still:
        return "signal" if culprit.stopped else "hang"
    if culprit.asked_to_leave:
        return "preempted"
    if culprit.exit.signal is not None and culprit.exit.signal not in CRASHES:
        return "signal"
    return "crash"
