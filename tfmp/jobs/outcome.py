"""What to say of a run that did not end well: the error block, ``failure.json``, and the status."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfmp.errors import TfmpError
from tfmp.jobs.hints import known_hint
from tfmp.launch.spec import signal_name

if TYPE_CHECKING:
    from tfmp.cluster.plan import Plan
    from tfmp.launch.spec import GroupResult

_SIGNAL_HINTS = {
    signal.SIGKILL: "the kernel's out-of-memory killer ends processes like this (look into dmesg, free some memory, or "
    "use fewer workers); or someone ran kill -9",
    signal.SIGSEGV: "a crash in native code; a refused allocation of memory can cause it",
    signal.SIGABRT: "native code gave up; a refused allocation of memory can cause it",
    signal.SIGTERM: "someone asked this process to end (kill, a scheduler, a container engine)",
}


def describe_failure(result: GroupResult, errors: Mapping[int, Mapping[str, Any]], plan: Plan) -> TfmpError:
    """The error block for a group that failed.

    Args:
        result: How the group ended.
        errors: By rank, the errors that workers reported themselves.
        plan: The run.
    """
    first = result.first_failure
    if first is None:
        missing = ", ".join(f"worker {rank} ({plan.workers[rank].address or 'local'})" for rank in result.not_ready)
        return TfmpError(
            result.problem or "the run failed",
            where=missing or None,
            hint="see the workers' logs; cluster.start_timeout_s sets how long workers may take" if missing else None,
            exit_code=result.exit_code,
        )
    address = plan.workers[first.rank].address
    where = f"worker {first.rank}" + (f" ({address})" if address else "")
    if own := errors.get(first.rank):
        place = f"{where}, {own['where']}" if own.get("where") else where
        return TfmpError(str(own["what"]), where=place, hint=own.get("hint"), exit_code=result.exit_code)
    hint = signal_hint(first.signal) or known_hint(result.tail(first.rank))
    return TfmpError(
        f"worker {first.rank} failed: {first.describe()}", where=where, hint=hint, exit_code=result.exit_code
    )


def signal_hint(signum: int | None) -> str | None:
    """What death by this signal most often means."""
    return next((hint for known, hint in _SIGNAL_HINTS.items() if known == signum), None)


def other_workers(result: GroupResult) -> list[str]:
    """One line for each worker that the failure took along."""
    first = result.first_failure
    return [
        f"worker {one.rank}: {one.describe() if one.cause == 'failed' else one.cause}"
        + (" (after the first failure)" if one.cause == "failed" else "")
        for one in result.exits
        if one is not first
    ]


def failure_record(result: GroupResult, error: TfmpError, last_steps: Mapping[int, Any]) -> dict[str, Any]:
    """The content of ``failure.json``."""
    first = result.first_failure
    return {
        "what": error.what,
        "where": error.where,
        "hint": error.hint,
        "exit_code": result.exit_code,
        "worker": first.rank if first else None,
        "signal": signal_name(first.signal) if first and first.signal is not None else None,
        "last_step": dict(last_steps),
        "log_tail": result.tail(first.rank) if first else [],
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
