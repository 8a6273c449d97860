"""Who is to blame: histories of failed groups."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tfmp.agent.failures.diagnosis import Evidence, Verdict, judge
from tfmp.agent.restart_policy import Cause
from tfmp.workers.spec import GroupResult, WorkerExit

PEER_GONE = ("UnavailableError", "Collective ops is aborted by: Connection reset by peer")
KEY_ERROR = ("Traceback (most recent call last):", '  File "my/data.py", line 7, in load', "KeyError: 'label'")


def one(rank: int, end: int = 1, *, killed_by_tfmp: bool = False, **known: Any) -> Evidence:
    """A worker's end: ``end`` as ``waitpid`` gives it."""
    cause = "stopped by tfmp" if killed_by_tfmp else "done" if end == 0 else "failed"
    known.setdefault("step", 10)
    exit = WorkerExit(rank, 100 + rank, None if end < 0 else end, -end if end < 0 else None, cause)  # type: ignore[arg-type]
    return Evidence(exit, **known)


def verdict(*evidence: Evidence, order: tuple[int, ...] | None = None, **result: Any) -> Verdict:
    failed = tuple(e.rank for e in evidence if e.exit.cause == "failed")
    return judge(evidence, GroupResult(tuple(e.exit for e in evidence), order=order or failed, **result))


def test_a_kill_beats_the_victims_that_spoke_first() -> None:
    found = verdict(
        one(0, exception=PEER_GONE),
        one(1, -9),
        one(2, 1, exception=("InternalError", "tasks are unhealthy (stopped sending heartbeats)")),
        order=(2, 0, 1),
    )
    assert (found.culprits, found.victims, found.cause, found.independent) == ((1,), (2, 0), "signal", False)


def test_a_victim_that_raises_in_shared_memory_is_one() -> None:
    graph = "Graph execution error:\n\nDetected at node while/PyFunc defined at (most recent call last):\n"
    lost = "PeerLost: error: rank 1 (process 250) is gone: its process has ended\n  where: rank 0 of 2, barrier 11"
    again = "GroupError: a call of this group has failed: rank 1 (process 250) is gone: its process has ended"
    found = verdict(
        one(0, exception=("UnknownError", graph + lost)),
        one(1, -9),
        one(2, exception=("UnknownError", graph + again)),
        order=(0, 2, 1),
    )
    assert (found.culprits, found.victims, found.cause, found.independent) == ((1,), (0, 2), "signal", False)


def test_an_own_traceback_beats_peer_gone_whatever_the_order() -> None:
    found = verdict(one(0, exception=PEER_GONE), one(1, exception=("ValueError", "bad label 11")), order=(0, 1))
    assert (found.culprits, found.cause) == ((1,), "crash")


def test_native_code_that_gives_up_because_of_a_peer_is_a_victim() -> None:
    aborted = ("F0000 coordination service: tasks are unhealthy", "Fatal Python error: Aborted")
    found = verdict(one(0, -6, tail=aborted), one(1, 7), order=(0, 1))
    assert (found.culprits, found.victims) == ((1,), (0,))
    assert verdict(one(0, -6, tail=("Fatal Python error: Aborted",)), one(1, 7)).culprits == (0,)


def test_the_last_words_of_a_killed_worker_are_not_held_against_it() -> None:
    said = ("Socket closed",)
    assert verdict(one(0, exception=PEER_GONE), one(1, -9, tail=said)).culprits == (1,)


def test_exit_codes_without_a_word_go_by_the_first_sign() -> None:
    found = verdict(one(0, 1), one(1, 1), one(2, -15, killed_by_tfmp=True), one(3, 5), order=(3, 0, 1))
    assert (found.culprits, found.victims, found.cause, found.independent) == ((3,), (0, 1), "crash", False)


def test_a_traceback_in_the_log_is_one_of_its_own() -> None:
    found = verdict(one(0, 1), one(1, 1, tail=KEY_ERROR), order=(0, 1))
    assert (found.culprits, found.victims) == ((1,), (0,))
    handled = (*KEY_ERROR, "never mind", "Killed")
    assert verdict(one(0, 3), one(1, 1, tail=handled), order=(0, 1)).culprits == (1,)


def test_two_failures_of_different_kinds_are_independent() -> None:
    found = verdict(one(0, exception=("ValueError", "x")), one(1, -9), one(2, exception=PEER_GONE), order=(1, 2, 0))
    assert (found.culprits, found.independent, found.victims) == ((1, 0), True, (2,))


def test_the_same_error_on_all_workers_is_one() -> None:
    error = {"what": "the loss became nan at step 7", "where": None, "hint": None}
    found = verdict(one(0, error=error), one(1, error=error))
    assert (found.culprits, found.independent, found.cause) == ((0, 1), False, "error")
    shape = ("ValueError", "expected 784 features at 0x7f01, found 783")
    assert not verdict(one(0, exception=shape), one(1, exception=shape)).independent


def test_who_was_asked_to_leave_took_the_others_along() -> None:
    found = verdict(one(0, 143), one(1, 143, asked_to_leave=True), order=(0, 1))
    assert (found.culprits, found.victims, found.cause) == ((1,), (0,), "preempted")


def test_who_stands_still_is_to_blame_although_tfmp_killed_it() -> None:
    stopped = [one(rank, -9, killed_by_tfmp=True, stands_still=rank == 2, stopped=rank == 2) for rank in range(3)]
    assert (verdict(*stopped, problem="…").culprits, verdict(*stopped).cause) == ((2,), "signal")
    hung = [one(rank, -9, killed_by_tfmp=True, stands_still=rank == 0) for rank in range(2)]
    assert (verdict(*hung).culprits, verdict(*hung).cause) == ((0,), "hang")


@pytest.mark.parametrize(
    ("result", "cause"),
    [({"fork_server_lost": True}, "helper"), ({"not_ready": (1,)}, "start"), ({"problem": "no step"}, "hang")],
)
def test_no_worker_may_be_to_blame(result: dict[str, Any], cause: Cause) -> None:
    found = verdict(one(0, -9, killed_by_tfmp=True), one(1, -9, killed_by_tfmp=True), **result)
    assert (found.culprits, found.culprit, found.cause) == ((), None, cause)


def test_a_taken_port_is_port_trouble_before_the_first_step_only() -> None:
    said = ("UNKNOWN: Could not start gRPC server",)
    assert verdict(one(0, 1, tail=said, step=None), one(1, -9, killed_by_tfmp=True, step=None)).cause == "ports"
    assert verdict(one(0, 1, tail=said), one(1, -9, killed_by_tfmp=True)).cause == "crash"


def test_the_same_traceback_has_the_same_signature_another_has_not() -> None:
    def signature(line: str, message: str) -> str:
        tail = (KEY_ERROR[0], f'  File "my/data.py", line 7, in {line}', f"ValueError: {message}")
        return verdict(one(0, tail=tail)).signature

    assert signature("load", "row 7 at 0x7fff") == signature("load", "row 9 at 0x1234") != ""
    assert signature("load", "row 7") != signature("save", "row 7")
    assert verdict(one(0, 7)).signature == "", "an exit code alone says nothing"


def test_the_step_is_the_furthest_that_anyone_has_told_of() -> None:
    assert verdict(one(0, 7, step=None), one(1, 1, step=31), one(2, 1, step=30)).step == 31
    assert verdict(one(0, 7, step=None)).step is None


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_crash_in_native_code_is_the_programs_own(signum: int) -> None:
    assert verdict(one(0, -signum)).cause == "crash"
