"""What to say of a run that did not end well: the block for the culprit, the line for victims, ``failure.json``."""

from __future__ import annotations

import platform
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfmp.agent.failures.hints import known_hint
from tfmp.errors import TfmpError
from tfmp.workers.spec import signal_name

if TYPE_CHECKING:
    from tfmp.agent.failures.diagnosis import Evidence, Verdict
    from tfmp.agent.failures.hang import HangReport
    from tfmp.agent.failures.memory import MemoryEvidence
    from tfmp.planning.plan import Plan
    from tfmp.workers.spec import GroupResult

_SIGNAL_HINTS = {
    signal.SIGKILL: "the kernel's out-of-memory killer ends processes like this (look into dmesg, free some memory, or "
    "use fewer workers); or someone ran kill -9",
    signal.SIGSEGV: "a crash in native code; a refused allocation of memory can cause it",
    signal.SIGABRT: "native code gave up; a refused allocation of memory can cause it",
    signal.SIGTERM: "someone asked this process to end (kill, a scheduler, a container engine)",
}
_MEMORY_HINTS = {
    "out of memory": "a smaller --batch-size, a smaller model, fewer workers, or a higher memory limit",
    "killed from outside": "there is no sign of an out-of-memory kill: look for who sent it (kill -9, a scheduler)",
}
#: Ends that leave no word of their own.
_SILENT_SIGNALS = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})


@dataclass(frozen=True)
class Findings:
    """All that is known of a group that failed.

    Attributes:
        result: How it ended.
        verdict: Who is to blame.
        memory_evidence: Of a culprit that ended without a word.
        hang_report: Of a hang.
    """

    result: GroupResult
    verdict: Verdict
    memory_evidence: MemoryEvidence | None = None
    hang_report: HangReport | None = None

    @property
    def details(self) -> list[str]:
        """Lines below the error block."""
        lines = self.memory_evidence.describe() if self.memory_evidence else []
        return lines + (self.hang_report.describe()[1:] if self.hang_report else [])


def ended_silently(evidence: Evidence) -> bool:
    """Whether a worker needs memory evidence. (One that stood still was killed by tfmp.)"""
    return evidence.exit.signal in _SILENT_SIGNALS and not evidence.stands_still


def describe_failure(findings: Findings, plan: Plan) -> TfmpError:
    """The error block for a group that failed."""
    result, verdict = findings.result, findings.verdict
    culprit = verdict.culprit
    if culprit is None:
        missing = ", ".join(f"worker {rank} ({plan.workers[rank].address or 'local'})" for rank in result.not_ready)
        hint = "see the workers' logs; cluster.start_timeout_s sets how long workers may take" if missing else None
        what = result.problem or "the run failed"
        return TfmpError(what, where=missing or None, hint=hint, exit_code=result.exit_code)
    where = _place(culprit, verdict, plan)
    code = result.exit_code if culprit.stands_still else culprit.exit.shell_code
    if culprit.error is not None:
        own = culprit.error
        where = f"{where}, {own['where']}" if own.get("where") else where
        return TfmpError(str(own["what"]), where=where, hint=own.get("hint"), exit_code=code)
    what = f"{short(findings)}{_last_step(culprit, plan)}"
    if verdict.independent:
        others = (verdict.evidence[rank] for rank in verdict.culprits[1:])
        and_too = "; ".join(f"worker {one.rank}: {one.exit.describe()}" for one in others)
        what += f"\n  and independently of it: {and_too}"
    return TfmpError(what, where=where, hint=_hint(findings, culprit), exit_code=code)


def short(findings: Findings) -> str:
    """The verdict in a few words: ``worker 1 failed: signal 9 (SIGKILL)``."""
    verdict, culprit = findings.verdict, findings.verdict.culprit
    if culprit is None:
        return findings.result.problem or "the run failed"
    if culprit.error is not None:
        return f"worker {culprit.rank} failed: {culprit.error['what']}"
    if culprit.stands_still:
        problem = findings.result.problem or "no step has finished"
        names = ", ".join(map(str, verdict.culprits))
        return problem if culprit.stopped else f"{problem}: worker {names} is not where the others are"
    if culprit.asked_to_leave:
        return f"worker {culprit.rank} failed: it was asked to leave by signal 15 (SIGTERM), and left"
    if culprit.exception is not None and culprit.exit.signal is None:
        kind, message = culprit.exception
        first_line = next((line.strip() for line in message.splitlines() if line.strip()), "")
        return f"worker {culprit.rank} failed: {kind}: {first_line[:300]}"
    return f"worker {culprit.rank} failed: {culprit.exit.describe()}"


def signal_hint(signum: int | None) -> str | None:
    """What death by this signal most often means."""
    return next((hint for known, hint in _SIGNAL_HINTS.items() if known == signum), None)


def disagree(digests: Mapping[int, str], workers: int, *, saved: bool) -> TfmpError | None:
    """An error if workers that all ended well do not hold the same weights, or nothing was saved."""
    if len(digests) == workers and len(set(digests.values())) == 1 and saved:
        return None
    held = ", ".join(f"worker {rank}: {digest[:12]}" for rank, digest in sorted(digests.items()))
    where = held or "no worker reported its weights"
    return TfmpError("expected the same trained weights on every worker", where=where)


def other_workers(result: GroupResult, verdict: Verdict) -> str | None:
    """One line for the workers that the failure took along, or ``None``."""
    parts = []
    for one in result.exits:
        if one.rank not in verdict.culprits:
            how = f"{one.describe()}, after it" if one.cause == "failed" else one.cause
            parts.append(f"worker {one.rank} ({how})")
    return f"taken along: {', '.join(parts)}" if parts else None


def failure_record(findings: Findings, error: TfmpError, last_steps: Mapping[int, Any]) -> dict[str, Any]:
    """The content of ``failure.json``."""
    result, verdict = findings.result, findings.verdict
    culprit = verdict.culprit
    signum = culprit.exit.signal if culprit else None
    return {
        "what": error.what,
        "where": error.where,
        "hint": error.hint,
        "exit_code": error.exit_code,
        "cause": verdict.cause,
        "worker": culprit.rank if culprit else None,
        "host": platform.node(),
        "signal": signal_name(signum) if signum is not None else None,
        "culprits": list(verdict.culprits),
        "independent": verdict.independent,
        "victims": list(verdict.victims),
        "step": verdict.step,
        "last_step": dict(last_steps),
        "log_tail": result.tail(culprit.rank) if culprit else [],
        "memory_evidence": findings.memory_evidence.to_json() if findings.memory_evidence else None,
        "hang": findings.hang_report.to_json() if findings.hang_report else None,
        "workers": [
            {
                "rank": one.rank,
                "pid": one.pid,
                "exit_code": one.exit_code,
                "signal": one.signal,
                "cause": one.cause,
                "peak_rss_bytes": one.peak_rss_bytes,
                "seconds": round(one.seconds, 3),
            }
            for one in result.exits
        ],
    }


def _place(culprit: Evidence, verdict: Verdict, plan: Plan) -> str:
    address = plan.workers[culprit.rank].address
    where = f"worker {culprit.rank}" + (f" ({address})" if address else "") + f" on {platform.node()}"
    if len(verdict.culprits) > 1 and not verdict.independent:
        where += f"; workers {', '.join(map(str, sorted(verdict.culprits)))} alike"
    return where


def _last_step(culprit: Evidence, plan: Plan) -> str:
    if culprit.step is None:
        return ", before its first step"
    epoch, step = divmod(culprit.step - 1, plan.batch.steps_per_epoch)
    return f", after step {culprit.step:,} (epoch {epoch + 1}, step {step + 1:,})"


def _hint(findings: Findings, culprit: Evidence) -> str | None:
    if culprit.stands_still:
        if culprit.stopped:
            return None
        if culprit.step is None:
            return (
                "--start-timeout (cluster.start_timeout_s) sets how long the first call into TensorFlow may take; "
                "training.steps_per_execution=1 makes it one step"
            )
        return "run.hang_timeout_s sets how long a step may take"
    memory_evidence = findings.memory_evidence
    if (
        memory_evidence is not None
        and culprit.exit.signal == signal.SIGKILL
        and memory_evidence.conclusion in _MEMORY_HINTS
    ):
        return _MEMORY_HINTS[memory_evidence.conclusion]
    signum = signal.SIGTERM if culprit.asked_to_leave else culprit.exit.signal
    return signal_hint(signum) or known_hint(culprit.tail)
