"""Who is to blame: histories of failed groups."""

from __future__ import annotations

import platform
import signal
from typing import Any

import pytest

from tfmp.agent.failures.diagnosis import Cause, Diagnosis, Setting, diagnose
from tfmp.agent.failures.evidence import Evidence
from tfmp.agent.failures.hang import Frame, Hang, HangReport
from tfmp.agent.failures.memory import MemoryEvidence
from tfmp.events import UncaughtException, UserError
from tfmp.procfs import GroupMemory
from tfmp.workers.spec import GroupResult, WorkerExit

PEER_GONE = UncaughtException("UnavailableError", "Collective ops is aborted by: Connection reset by peer")
KEY_ERROR = ("Traceback (most recent call last):", '  File "my/data.py", line 7, in load', "KeyError: 'label'")


def worker(rank: int, end: int = 1, *, killed_by_tfmp: bool = False, **known: Any) -> Evidence:
    """A worker's end: ``end`` as ``waitpid`` gives it."""
    cause = "stopped by tfmp" if killed_by_tfmp else "done" if end == 0 else "failed"
    known.setdefault("step", 10)
    exit = WorkerExit(rank, 100 + rank, None if end < 0 else end, -end if end < 0 else None, cause)  # type: ignore[arg-type]
    return Evidence(exit, **known)


def diagnosis(*evidence: Evidence, order: tuple[int, ...] | None = None, **result: Any) -> Diagnosis:
    failed = tuple(e.rank for e in evidence if e.exit.cause == "failed")
    return diagnose(evidence, GroupResult(tuple(e.exit for e in evidence), order=order or failed, **result))


def test_a_kill_beats_the_victims_that_spoke_first() -> None:
    found = diagnosis(
        worker(0, exception=PEER_GONE),
        worker(1, -9),
        worker(2, 1, exception=UncaughtException("InternalError", "tasks are unhealthy (stopped sending heartbeats)")),
        order=(2, 0, 1),
    )
    assert (found.culprits, found.victims, found.cause, found.independent) == ((1,), (2, 0), "signal", False)


def test_a_victim_that_raises_in_shared_memory_is_one() -> None:
    graph = "Graph execution error:\n\nDetected at node while/PyFunc defined at (most recent call last):\n"
    lost = "PeerLost: error: rank 1 (process 250) is gone: its process has ended\n  where: rank 0 of 2, barrier 11"
    again = "GroupError: a call of this group has failed: rank 1 (process 250) is gone: its process has ended"
    found = diagnosis(
        worker(0, exception=UncaughtException("UnknownError", graph + lost)),
        worker(1, -9),
        worker(2, exception=UncaughtException("UnknownError", graph + again)),
        order=(0, 2, 1),
    )
    assert (found.culprits, found.victims, found.cause, found.independent) == ((1,), (0, 2), "signal", False)


def test_an_own_traceback_beats_peer_gone_whatever_the_order() -> None:
    found = diagnosis(
        worker(0, exception=PEER_GONE),
        worker(1, exception=UncaughtException("ValueError", "bad label 11")),
        order=(0, 1),
    )
    assert (found.culprits, found.cause) == ((1,), "crash")


def test_native_code_that_gives_up_because_of_a_peer_is_a_victim() -> None:
    aborted = ("F0000 coordination service: tasks are unhealthy", "Fatal Python error: Aborted")
    found = diagnosis(worker(0, -6, tail=aborted), worker(1, 7), order=(0, 1))
    assert (found.culprits, found.victims) == ((1,), (0,))
    assert diagnosis(worker(0, -6, tail=("Fatal Python error: Aborted",)), worker(1, 7)).culprits == (0,)


def test_the_last_words_of_a_killed_worker_are_not_held_against_it() -> None:
    said = ("Socket closed",)
    assert diagnosis(worker(0, exception=PEER_GONE), worker(1, -9, tail=said)).culprits == (1,)


def test_exit_codes_without_a_word_go_by_the_first_sign() -> None:
    found = diagnosis(worker(0, 1), worker(1, 1), worker(2, -15, killed_by_tfmp=True), worker(3, 5), order=(3, 0, 1))
    assert (found.culprits, found.victims, found.cause, found.independent) == ((3,), (0, 1), "crash", False)


def test_a_traceback_in_the_log_is_one_of_its_own() -> None:
    found = diagnosis(worker(0, 1), worker(1, 1, tail=KEY_ERROR), order=(0, 1))
    assert (found.culprits, found.victims) == ((1,), (0,))
    handled = (*KEY_ERROR, "never mind", "Killed")
    assert diagnosis(worker(0, 3), worker(1, 1, tail=handled), order=(0, 1)).culprits == (1,)


def test_two_failures_of_different_kinds_are_independent() -> None:
    found = diagnosis(
        worker(0, exception=UncaughtException("ValueError", "x")),
        worker(1, -9),
        worker(2, exception=PEER_GONE),
        order=(1, 2, 0),
    )
    assert (found.culprits, found.independent, found.victims) == ((1, 0), True, (2,))


def test_the_same_error_on_all_workers_is_one() -> None:
    error = UserError("the loss became nan at step 7")
    found = diagnosis(worker(0, error=error), worker(1, error=error))
    assert (found.culprits, found.independent, found.cause) == ((0, 1), False, "error")
    shape = UncaughtException("ValueError", "expected 784 features at 0x7f01, found 783")
    assert not diagnosis(worker(0, exception=shape), worker(1, exception=shape)).independent


def test_who_was_asked_to_leave_took_the_others_along() -> None:
    found = diagnosis(worker(0, 143), worker(1, 143, asked_to_leave=True), order=(0, 1))
    assert (found.culprits, found.victims, found.cause) == ((1,), (0,), "preempted")


def test_who_stands_still_is_to_blame_although_tfmp_killed_it() -> None:
    stopped = [worker(rank, -9, killed_by_tfmp=True, stands_still=rank == 2, stopped=rank == 2) for rank in range(3)]
    assert (diagnosis(*stopped, problem="…").culprits, diagnosis(*stopped).cause) == ((2,), "signal")
    hung = [worker(rank, -9, killed_by_tfmp=True, stands_still=rank == 0) for rank in range(2)]
    assert (diagnosis(*hung).culprits, diagnosis(*hung).cause) == ((0,), "hang")


@pytest.mark.parametrize(
    ("result", "cause"),
    [({"fork_server_lost": True}, "fork-server"), ({"not_ready": (1,)}, "start"), ({"problem": "no step"}, "hang")],
)
def test_no_worker_may_be_to_blame(result: dict[str, Any], cause: Cause) -> None:
    found = diagnosis(worker(0, -9, killed_by_tfmp=True), worker(1, -9, killed_by_tfmp=True), **result)
    assert (found.culprits, found.culprit, found.cause) == ((), None, cause)


def test_a_taken_port_is_port_trouble_before_the_first_step_only() -> None:
    said = ("UNKNOWN: Could not start gRPC server",)
    assert diagnosis(worker(0, 1, tail=said, step=None), worker(1, -9, killed_by_tfmp=True, step=None)).cause == "ports"
    assert diagnosis(worker(0, 1, tail=said), worker(1, -9, killed_by_tfmp=True)).cause == "crash"


def test_the_same_traceback_has_the_same_signature_another_has_not() -> None:
    def signature(line: str, message: str) -> str:
        tail = (KEY_ERROR[0], f'  File "my/data.py", line 7, in {line}', f"ValueError: {message}")
        return diagnosis(worker(0, tail=tail)).signature

    assert signature("load", "row 7 at 0x7fff") == signature("load", "row 9 at 0x1234") != ""
    assert signature("load", "row 7") != signature("save", "row 7")
    assert diagnosis(worker(0, 7)).signature == "", "an exit code alone says nothing"


def test_the_step_is_the_furthest_that_anyone_has_told_of() -> None:
    assert diagnosis(worker(0, 7, step=None), worker(1, 1, step=31), worker(2, 1, step=30)).step == 31
    assert diagnosis(worker(0, 7, step=None)).step is None


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_crash_in_native_code_is_the_programs_own(signum: int) -> None:
    assert diagnosis(worker(0, -signum)).cause == "crash"


HOST = platform.node()
SETTING = Setting({0: "127.0.0.1:1", 1: None}, 100)


def told(
    *exits: WorkerExit, setting: Setting = SETTING, known: dict[int, dict[str, Any]] | None = None, **more: Any
) -> Diagnosis:
    """What is said of a group that ended like this; ``known``: more evidence by rank."""
    first = next((exit for exit in exits if exit.cause == "failed"), None)
    named = {name: more.pop(name) for name in ("memory_of", "hang", "ran_s") if name in more}
    result = GroupResult(exits=exits, first_failure=first, **more)
    evidence = [Evidence(exit, tail=result.tail(exit.rank), **(known or {}).get(exit.rank, {})) for exit in exits]
    return diagnose(evidence, result, setting=setting, **named)


KILLED = WorkerExit(0, 11, None, 9, "failed", peak_rss_bytes=4096, seconds=1.23456)
TAKEN_ALONG = WorkerExit(1, 12, None, 15, "stopped by tfmp")


def test_death_by_a_signal_is_named_with_what_it_often_means() -> None:
    found = told(KILLED, TAKEN_ALONG)
    error = found.to_error()
    assert error.what == "worker 0 failed: signal 9 (SIGKILL), before its first step"
    assert error.where == f"worker 0 (127.0.0.1:1) on {HOST}"
    assert "out-of-memory killer" in (error.hint or "")
    assert error.exit_code == 137
    assert found.taken_along == "taken along: worker 1 (stopped by tfmp)"


def test_what_is_recorded_of_a_failure() -> None:
    evidence = MemoryEvidence(((1.0, 50), (0.0, 100)), GroupMemory(None, 0), GroupMemory(None, 1), 0, 7, 9)
    found = told(KILLED, TAKEN_ALONG, known={0: {"step": 105}}, tails={0: ("a", "b")}, memory_of=lambda rank: evidence)
    assert found.to_json() == {
        "cause": "signal",
        "worker": 0,
        "host": HOST,
        "signal": "SIGKILL",
        "culprits": [0],
        "independent": False,
        "victims": [],
        "step": 105,
        "log_tail": ["a", "b"],
        "memory_evidence": evidence.to_json(),
        "hang": None,
        "workers": [
            {"rank": 0, "pid": 11, "exit_code": None, "signal": 9, "cause": "failed", "peak_rss_bytes": 4096,
             "seconds": 1.235},
            {"rank": 1, "pid": 12, "exit_code": None, "signal": 15, "cause": "stopped by tfmp", "peak_rss_bytes": None,
             "seconds": 0.0},
        ],
    }  # fmt: skip
    assert found.details == evidence.describe()


def test_nobody_to_blame_is_recorded_too() -> None:
    record = told(TAKEN_ALONG, problem="no step", fork_server_lost=True).to_json()
    assert (record["cause"], record["worker"], record["signal"], record["log_tail"]) == ("fork-server", None, None, [])


def test_the_step_of_a_failure_is_told_within_its_epoch() -> None:
    assert told(KILLED, known={0: {"step": 1205}}).to_error().what == (
        "worker 0 failed: signal 9 (SIGKILL), after step 1,205 (epoch 13, step 5)"
    )
    assert told(KILLED, setting=Setting()).to_error().what == "worker 0 failed: signal 9 (SIGKILL)", "a program"


def test_a_workers_own_error_is_what_is_shown() -> None:
    own = UserError("the loss became nan", "model", "lower it")
    found = told(WorkerExit(1, 12, 1, None, "failed"), known={1: {"error": own}})
    error = found.to_error()
    assert (error.what, error.where, error.hint) == ("the loss became nan", f"worker 1 on {HOST}, model", "lower it")
    assert found.short() == "worker 1 failed: the loss became nan"


def test_known_messages_in_the_last_lines_give_the_hint() -> None:
    error = told(WorkerExit(0, 1, 1, None, "failed"), tails={0: ("x", "OSError: No space left on device")}).to_error()
    assert error.hint == "the disk is full: free some space, or use another --run-dir"


def test_workers_that_never_were_ready_are_named() -> None:
    error = told(problem="not ready within 5 s", not_ready=(0, 1)).to_error()
    assert (error.what, error.where) == ("not ready within 5 s", "worker 0 (127.0.0.1:1), worker 1 (local)")
    assert error.hint == "see the workers' logs; cluster.start_timeout_s sets how long workers may take"
    assert (error.exit_code, told().short()) == (1, "the run failed")


def test_an_exception_is_told_by_its_innermost_reason_and_the_users_line() -> None:
    raised = UncaughtException(
        "ValueError", "in user code:\n\n  File …", "KeyError: no label 11.\nmore", "model.py:7 in call"
    )
    error = told(WorkerExit(0, 11, 1, None, "failed"), known={0: {"exception": raised}}).to_error()
    assert error.what == "worker 0 failed: KeyError: no label 11, before its first step"
    assert error.where is not None
    assert error.where.startswith("model.py:7 in call, worker 0")


def test_an_exception_is_told_by_its_first_line() -> None:
    raised = UncaughtException("ValueError", "\n  bad label 11\nof row 7")
    found = told(WorkerExit(0, 11, 1, None, "failed"), known={0: {"exception": raised}})
    assert found.short() == "worker 0 failed: ValueError: bad label 11"
    killed = told(KILLED, known={0: {"exception": raised}})
    assert killed.short() == "worker 0 failed: signal 9 (SIGKILL)", "how it ended counts for more"
    long = UncaughtException("ValueError", "x" * 1000)
    assert told(WorkerExit(0, 11, 1, None, "failed"), known={0: {"exception": long}}).short() == (
        f"worker 0 failed: {('ValueError: ' + 'x' * 300)[:300]}"
    )


def test_workers_that_fail_alike_are_one_failure_of_all() -> None:
    raised = UncaughtException("ValueError", "bad shape")
    failed = [WorkerExit(rank, 10 + rank, 1, None, "failed") for rank in range(2)]
    found = told(*failed, known={rank: {"exception": raised, "step": 3} for rank in range(2)}, order=(1, 0))
    error = found.to_error()
    assert error.what == "worker 1 failed: ValueError: bad shape, after step 3 (epoch 1, step 3)"
    assert error.where == f"worker 1 on {HOST}; workers 0, 1 alike"
    assert found.taken_along is None


def test_independent_failures_are_all_told() -> None:
    raised = {1: {"exception": UncaughtException("ValueError", "x")}}
    found = told(KILLED, WorkerExit(1, 12, 1, None, "failed"), known=raised, order=(0, 1))
    error = found.to_error()
    assert error.what.splitlines() == [
        "worker 0 failed: signal 9 (SIGKILL), before its first step",
        "  and independently of it: worker 1: exit code 1",
    ]
    assert error.where == f"worker 0 (127.0.0.1:1) on {HOST}"


def test_victims_are_taken_along() -> None:
    found = told(KILLED, WorkerExit(1, 12, 1, None, "failed"), known={1: {"exception": PEER_GONE}})
    assert found.taken_along == "taken along: worker 1 (exit code 1, after it)"


def test_who_was_asked_to_leave_is_told_so() -> None:
    found = told(WorkerExit(0, 11, 143, None, "failed"), known={0: {"asked_to_leave": True, "step": 10}})
    error = found.to_error()
    assert found.short() == "worker 0 failed: it was asked to leave by signal 15 (SIGTERM), and left"
    assert error.hint == "someone asked this process to end (kill, a scheduler, a container engine)"
    assert error.exit_code == 143


@pytest.mark.parametrize(
    ("kills", "hint"),
    [
        ((0, 1), "a smaller --batch-size, a smaller model, fewer workers, or a higher memory limit"),
        ((0, 0), "there is no sign of an out-of-memory kill: look for who sent it (kill -9, a scheduler)"),
        ((None, None), "the kernel's out-of-memory killer ends processes like this (look into dmesg, free some memory, "
         "or use fewer workers); or someone ran kill -9"),
    ],
)  # fmt: skip
def test_the_hint_about_a_kill_goes_by_the_memory(kills: tuple[int | None, int | None], hint: str) -> None:
    before, after = (GroupMemory(None, count) for count in kills)
    machine = None if kills == (None, None) else 0
    evidence = MemoryEvidence(((0.0, 100),), before, after, machine, 8000, 16000)
    assert told(KILLED, memory_of=lambda rank: evidence).hint == hint


def test_memory_is_looked_at_for_silent_ends_only() -> None:
    asked: list[int] = []

    def memory_of(rank: int) -> MemoryEvidence:
        asked.append(rank)
        return MemoryEvidence((), GroupMemory(), GroupMemory(), None, None, None)

    assert told(WorkerExit(0, 11, 7, None, "failed"), memory_of=memory_of).memory is None
    assert told(WorkerExit(0, 11, None, 15, "failed"), memory_of=memory_of).memory is None
    still = WorkerExit(0, 11, None, 9, "stopped by tfmp")
    assert told(still, known={0: {"stands_still": True}}, memory_of=memory_of).memory is None, "tfmp killed it"
    assert asked == []
    for signum in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        assert told(WorkerExit(0, 11, None, signum, "failed"), memory_of=memory_of).memory is not None
    assert asked == [0] * 4


def test_a_hang_is_explained_with_stacks() -> None:
    exits = [WorkerExit(rank, 10 + rank, None, 9, "stopped by tfmp") for rank in range(2)]
    hang = Hang(60.0)
    report = HangReport(
        hang, {0: (Frame("/x/execute.py", 5, "quick_execute"),), 1: (Frame("/x/a.py", 7, "act"),)}, (1,)
    )
    found = told(*exits, known={1: {"stands_still": True, "step": 40}}, problem=hang.describe(), hang=report)
    error = found.to_error()
    assert found.short() == "no step has finished for 60 s: worker 1 is not where the others are"
    assert error.what == f"{found.short()}, after step 40 (epoch 1, step 40)"
    assert (error.hint, error.exit_code) == ("run.hang_timeout_s sets how long a step may take", 1)
    assert found.details == ["worker 0: quick_execute (execute.py:5)", "worker 1: act (a.py:7)"]
    assert found.to_json()["hang"] == report.to_json()
    before = told(*exits, known={1: {"stands_still": True}}, problem=hang.describe(), hang=report)
    assert before.hint == (
        "--start-timeout (cluster.start_timeout_s) sets how long the first call into TensorFlow may take; "
        "training.steps_per_execution=1 makes it one step"
    )


def test_a_stopped_process_is_told_without_advice() -> None:
    hang = Hang(2.0, (1,))
    exits = [WorkerExit(rank, 10 + rank, None, 9, "stopped by tfmp") for rank in range(2)]
    known = {1: {"stands_still": True, "stopped": True, "step": 4}}
    found = told(*exits, known=known, problem=hang.describe(), hang=HangReport(hang, {}, (1,)))
    assert found.short() == "worker 1 is stopped (SIGSTOP), and the others wait"
    assert (found.hint, found.cause, found.culprits) == (None, "signal", (1,))


def test_how_long_the_attempt_ran_is_kept_for_the_restart_policy() -> None:
    assert told(KILLED, ran_s=12.5).ran_s == 12.5
