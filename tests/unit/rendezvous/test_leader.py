"""The leader: who is missing, who disagrees, who is to blame, when all may leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.rendezvous.machines import ROSTER, VICTIM, WAITS, hello, identity, leader, live, member, said, sent
from tfmp.ipc import NotOurs
from tfmp.rendezvous.leader import Leader
from tfmp.rendezvous.peer_status import Kind, PeerStatus, Roster
from tfmp.rendezvous.protocol import Close, Dial, Report, Send

# The leader before the start -----------------------------------------------------------------------------------------


def test_all_start_together_once_the_last_is_here_and_ready() -> None:
    machine = leader([1], compose=lambda peers: {"workers": [peers[rank][1] for rank in sorted(peers)]})
    machine.ready(1.0)
    machine.received(11, {"type": "ready"}, "", 1.0)
    assert not machine.started
    machine.received(12, hello(2), "10.0.0.2", 2.0)
    assert not machine.started
    assert sent(machine.received(12, {"type": "ready"}, "", 3.0)) == [(11, "start"), (12, "start")]
    assert machine.started
    assert machine.start_message["workers"] == ["10.0.0.1", "10.0.0.2"]


def test_each_missing_worker_is_dialled_again_a_second_after_each_attempt() -> None:
    machine = leader([1])
    assert Dial(2) in machine.tick(0.0)
    assert Dial(2) not in machine.tick(5.0), "the attempt is under way"
    machine.found(2, PeerStatus(Kind.REFUSED), 5.0)
    assert Dial(2) not in machine.tick(5.9)
    assert Dial(2) in machine.tick(6.0)


def test_the_roll_is_called_every_ten_seconds_and_told_to_the_others() -> None:
    machine = leader([1])
    machine.tick(0.0)
    machine.found(2, PeerStatus(Kind.UNRESOLVED), 0.1)
    calls = {}
    for tenth in range(1, 250):
        actions = machine.tick(tenth / 10)
        if said(actions):
            calls[tenth / 10] = (said(actions)[0], [one for one in sent(actions) if one[1] == "roll"])
    line = "waiting for 1 of 3 workers: worker 2 (h2:1): its name does not resolve. Here: this one, worker 1"
    assert calls == {2.0: (line, [(11, "roll")]), 12.0: (line, [(11, "roll")]), 22.0: (line, [(11, "roll")])}


def test_the_first_roll_call_waits_for_the_first_answers_but_not_for_ever() -> None:
    machine = leader([1])
    machine.tick(0.0)
    assert said(machine.tick(3.9)) == []
    assert said(machine.tick(4.0)) == [
        "waiting for 1 of 3 workers: worker 2 (h2:1): not heard from yet. Here: this one, worker 1"
    ]


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (Kind.REFUSED, "start worker 2 there"),
        (Kind.UNRESOLVED, "check the spelling of h2"),
        (Kind.NO_ANSWER, "TCP port 1"),
        (Kind.FOREIGN, "another program uses h2:1"),
        (Kind.ALREADY_TRAINING, "the whole group must be restarted"),
        (Kind.UP, "worker 2 cannot reach worker 0 (h0:1)"),
    ],
)
def test_the_missing_are_named_when_the_time_is_over(kind: Kind, way_out: str) -> None:
    machine = leader([1])
    for now_s in range(60):
        machine.received(11, {"type": "beat", "stopped": False}, "", now_s)
        machine.found(2, PeerStatus(kind), now_s)
        machine.tick(now_s)
    assert machine.end_reason is None
    assert sent(machine.tick(60.0)) == [(11, "stop")]
    assert machine.end_reason is not None
    assert machine.end_reason.what == f"1 of 3 workers did not join within 60 s: worker 2 (h2:1): {kind.value}"
    assert (machine.end_reason.where, machine.end_reason.culprit, machine.end_reason.exit_code) == (
        "worker 2 (h2:1)",
        2,
        1,
    )
    assert way_out in (machine.end_reason.hint or "")


def test_one_that_is_here_but_still_imports_is_named_so() -> None:
    machine = leader([1, 2])
    machine.ready(1.0)
    machine.received(12, {"type": "ready"}, "", 1.0)
    assert said(machine.tick(2.0)) == ["all workers are here; still importing TensorFlow: worker 1 (h1:1)"]
    for now_s in range(3, 60):
        machine.received(11, {"type": "beat", "stopped": False}, "", now_s)
        machine.received(12, {"type": "beat", "stopped": False}, "", now_s)
        machine.tick(now_s)
    machine.tick(60.0)
    assert machine.end_reason is not None
    assert machine.end_reason.what == "TensorFlow was not imported on every host within 60 s"
    assert machine.end_reason.where == "worker 1 (h1:1)"


def test_a_disagreement_ends_all_with_both_values() -> None:
    machine = leader([1])
    actions = machine.received(12, hello(2, agreed={"training.epochs": 6}), "10.0.0.2", 1.0)
    assert sent(actions) == [(12, "stop"), (11, "stop")]
    assert Close(12) in actions
    assert machine.end_reason is not None
    assert machine.end_reason.what == ("the workers do not agree about training.epochs: worker 0 has 5, worker 2 has 6")
    assert machine.end_reason.exit_code == 2


def test_a_rank_twice_is_turned_down_and_the_first_stays() -> None:
    machine = leader([1])
    second, third = hello(1, pid=7), hello(0, pid=8)
    for link, greeting in ((21, second), (22, third)):
        actions = machine.received(link, greeting, "10.0.0.9", 1.0)
        (refused,) = [action.message for action in actions if isinstance(action, Send)]
        assert (refused["type"], refused["kind"]) == ("refused", "TAKEN")
    assert machine.end_reason is None
    assert sent(machine.tick(1.0)) == [(11, "beat")]


def test_another_run_of_a_scheduler_is_turned_down_not_compared() -> None:
    machine = Leader(identity(0, run="Slurm step 1.0"), ROSTER, WAITS, 0.0)
    other = hello(1, run="Slurm step 2.0", agreed={"training.epochs": 9})
    (refused, close) = machine.received(5, other, "", 0.0)
    assert isinstance(refused, Send)
    assert refused.message["kind"] == "OTHER_RUN"
    assert close == Close(5)
    assert machine.end_reason is None


def test_one_that_leaves_before_the_start_may_come_back() -> None:
    machine = leader([1, 2])
    machine.lost(11, 1.0)
    assert machine.end_reason is None
    assert sent(machine.received(31, hello(1), "10.0.0.1", 2.0)) == [(31, "welcome")]


def test_one_that_falls_silent_before_the_start_is_missing_again() -> None:
    machine = leader([1])
    machine.found(2, PeerStatus(Kind.REFUSED), 1.0)
    (line,) = said(machine.tick(30.5))
    assert "worker 1 (h1:1): no answer (it was here, silent for 30 s)" in line


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (
            {"type": "present", "rank": 2, "host": "h2", "text": "it says of worker 0 (h0:1): no answer"},
            "is up but did",
        ),
        (
            {"type": "present", "rank": 1, "host": "x", "text": ""},
            "its address leads to another worker (worker 1 on x)",
        ),
        (
            {"type": "refused", "kind": "OTHER_RUN", "text": "job 7"},
            "answers but did not join: it belongs to another run",
        ),
    ],
)
def test_a_launcher_found_at_a_missing_workers_address_tells_why(answer: dict[str, Any], status: str) -> None:
    machine = leader([1])
    machine.tick(0.0)
    assert sent(machine.dialed(40, 2, 0.1)) == [(40, "hello")]
    assert machine.received(40, answer, "", 0.2) == [Close(40)]
    assert status in said(machine.tick(2.0))[0]


@pytest.mark.parametrize(
    ("holder", "status"),
    [
        ("by process 100 on h0", "its address leads to another worker (this one)"),
        ("by process 7 on h1", "its address leads to another worker (a second worker 0, by process 7 on h1)"),
    ],
)
def test_the_same_index_on_two_hosts_is_seen_by_the_leader(holder: str, status: str) -> None:
    machine = leader([1])
    machine.tick(0.0)
    machine.dialed(40, 2, 0.1)
    machine.received(40, {"type": "refused", "kind": "TAKEN", "text": holder}, "", 0.2)
    assert f"worker 2 (h2:1): {status}. Here" in said(machine.tick(2.0))[0]


def test_a_leaders_address_that_leads_back_is_told() -> None:
    machine = member(joined=False)
    machine.dialed(7, 0, 0.1)
    machine.received(7, {"type": "present", "rank": 1, "host": "h1", "text": ""}, "", 0.2)
    assert "worker 0 (h0:1): its address leads to another worker (this one). Here" in said(machine.tick(2.0))[0]


def test_a_silent_connection_is_kept_and_dropped_when_its_worker_joins() -> None:
    machine = leader([1])
    machine.tick(0.0)
    machine.dialed(40, 2, 0.1)
    assert Dial(2) not in machine.tick(20.0)
    assert machine.received(12, hello(2), "", 20.0)[0] == Close(40)


@pytest.mark.parametrize("message", [{"type": "ready"}, {"type": "nonsense"}, {"type": "hello"}])
def test_a_stranger_is_no_worker(message: dict[str, Any]) -> None:
    with pytest.raises(NotOurs):
        leader([1]).received(99, message, "", 1.0)


@pytest.mark.parametrize(
    "message", [{"type": "beat"}, {"type": "beat", "stopped": 1}, {"type": "failed", "what": "x"}, {"type": "start"}]
)
def test_a_malformed_message_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(NotOurs):
        leader([1]).received(11, message, "", 1.0)


# The leader during the training --------------------------------------------------------------------------------------


def test_a_closed_connection_ends_the_group_by_name() -> None:
    machine = leader([1, 2], start=True)
    assert sent(machine.lost(11, 1.0)) == [(11, "stop"), (12, "stop")]
    assert machine.end_reason is not None
    assert machine.end_reason.what.startswith("worker 1 is gone: its launcher ended without a word")
    assert (machine.end_reason.where, machine.end_reason.exit_code) == ("worker 1 (h1:1)", 138)


def test_silence_is_borne_as_long_as_the_timeout_and_no_longer() -> None:
    machine = leader([1, 2], start=True)
    live(machine, range(1, 31), [12])
    assert machine.end_reason is None
    live(machine, range(31, 32), [12])
    assert machine.end_reason is not None
    assert machine.end_reason.what.startswith("worker 1 is lost: nothing heard from it for 31 s")


def test_a_failure_of_its_own_is_told_to_all_at_once() -> None:
    machine = leader([1, 2], start=True)
    report = Report("the loss became nan at step 3", "training.learning_rate", "lower it", 1)
    assert sent(machine.received(12, report.to_message(), "", 2.0)) == [(11, "stop"), (12, "stop")]
    assert machine.end_reason is not None
    assert machine.end_reason.what == "worker 2 failed: the loss became nan at step 3"
    assert machine.end_reason.where == "worker 2 (h2:1), training.learning_rate"
    assert (machine.end_reason.culprit, machine.end_reason.hint) == (2, "lower it")


@pytest.mark.parametrize("code", [0, 256, -9])
def test_what_another_host_says_of_a_failure_is_no_success_and_moves_no_cursor(code: int) -> None:
    machine = leader([1, 2], start=True)
    machine.received(11, {**Report("one\x1b[2J\ntwo").to_message(), "exit_code": code}, "", 1.0)
    assert machine.end_reason is not None
    assert (machine.end_reason.what, machine.end_reason.exit_code) == ("worker 1 failed: one?[2J\ntwo", 1)


def test_a_victims_failure_is_blamed_on_the_peer_that_fell_silent() -> None:
    machine = leader([1, 2], start=True)
    live(machine, range(1, 11), [12])
    machine.failed(VICTIM, 10.5)
    assert machine.end_reason is not None
    assert machine.end_reason.culprit == 1
    assert machine.end_reason.what.startswith("worker 1 is lost: nothing heard from it for 10 s")


def test_a_victims_failure_waits_for_the_cause_to_show() -> None:
    machine = leader([1, 2], start=True)
    live(machine, range(1, 3), [11, 12])
    assert machine.received(12, VICTIM.to_message(), "", 2.1) == []
    machine.received(11, Report("signal 9 (SIGKILL)", exit_code=137).to_message(), "", 2.5)
    assert machine.end_reason is not None
    assert (machine.end_reason.culprit, machine.end_reason.exit_code) == (1, 137)


def test_a_victims_failure_without_any_other_cause_is_its_own() -> None:
    machine = leader([1, 2], start=True)
    live(machine, range(1, 3), [11, 12])
    machine.received(12, VICTIM.to_message(), "", 2.0)
    live(machine, range(3, 6), [11, 12])
    assert machine.end_reason is None
    live(machine, range(6, 7), [11, 12])
    assert machine.end_reason is not None
    assert machine.end_reason.what == "worker 2 failed: UnavailableError: connection reset by peer"


def test_of_a_hang_all_are_told_and_who_holds_the_others_up_is_named() -> None:
    machine = leader([1, 2], start=True)
    waits = Report("worker 2 waits for the others", victim=True, hang_s=61.5)
    actions = machine.received(12, waits.to_message(), "", 2.0)
    assert sent(actions) == [(11, "hang"), (12, "hang")]
    assert machine.hang_s == 61.5
    assert machine.failed(replace(waits, what="worker 0 waits for the others"), 2.1) == [], "once is enough"
    asked = member(start=True)
    (hang, _) = [action.message for action in actions if isinstance(action, Send)]
    asked.received(7, hang, "", 2.0)
    assert asked.hang_s == 61.5
    machine.received(11, Report("worker 1 holds the others up").to_message(), "", 3.0)
    assert machine.end_reason is not None
    assert (machine.end_reason.what, machine.end_reason.culprit) == ("worker 1 holds the others up", 1)


def test_a_suspended_process_is_named_though_its_launcher_lives() -> None:
    machine = leader([1, 2], start=True)
    for now_s in range(1, 32):
        machine.received(11, {"type": "beat", "stopped": True}, "", now_s)
        machine.received(12, {"type": "beat", "stopped": False}, "", now_s)
        machine.tick(now_s)
    assert machine.end_reason is None
    machine.tick(31.5)
    assert machine.end_reason is not None
    assert machine.end_reason.what.startswith("worker 1 is stopped: its process has been suspended for 30 s")
    early = leader([1, 2], start=True)
    early.received(11, {"type": "beat", "stopped": True}, "", 1.0)
    early.failed(VICTIM, 3.0)
    assert early.end_reason is not None
    assert early.end_reason.culprit == 1


def test_nobody_leaves_before_all_have_ended_well_with_the_same_weights() -> None:
    machine = leader([1, 2], start=True)
    assert machine.received(11, {"type": "done", "sha256": "abc"}, "", 1.0) == []
    assert machine.done("abc", 2.0) == []
    assert not machine.may_leave
    assert sent(machine.received(12, {"type": "done", "sha256": "abc"}, "", 3.0)) == [(11, "leave"), (12, "leave")]
    assert machine.may_leave
    assert machine.lost(11, 4.0) == []
    assert machine.end_reason is None


def test_unequal_weights_are_a_failure() -> None:
    machine = leader([1, 2], start=True)
    machine.received(11, {"type": "done", "sha256": "abc"}, "", 1.0)
    machine.received(12, {"type": "done", "sha256": "abd"}, "", 1.0)
    assert sent(machine.done("abc", 2.0)) == [(11, "stop"), (12, "stop")]
    assert machine.end_reason is not None
    assert machine.end_reason.where == "worker 0: abc, worker 1: abc, worker 2: abd"


def test_a_group_of_one_needs_nobody() -> None:
    machine = Leader(identity(0), Roster(("worker 0",), ("h0:1",)), WAITS, 0.0)
    machine.ready(0.0)
    assert machine.started
    machine.done("abc", 1.0)
    assert machine.may_leave
