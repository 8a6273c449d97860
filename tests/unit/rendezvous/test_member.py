"""A member: what it tells while it looks for its leader, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.rendezvous.machines import ROSTER, VICTIM, WAITS, hello, identity, leader, member, said, sent
from tfmp.rendezvous.member import Member
from tfmp.rendezvous.peer_status import EndReason, Kind, PeerStatus
from tfmp.rendezvous.protocol import Close, Dial, Report, Send, stop_message


def test_a_member_says_ready_whichever_comes_first() -> None:
    early = Member(identity(1), ROSTER, WAITS, 0.0)
    assert early.ready(0.0) == []
    early.dialed(7, 0, 1.0)
    assert (7, "ready") in sent(early.received(7, {"type": "welcome"}, "", 1.0))
    assert sent(member().ready(2.0)) == [(7, "ready")]


def test_a_member_tells_what_keeps_it_from_the_leader() -> None:
    machine = member(joined=False)
    machine.found(0, PeerStatus(Kind.NO_ANSWER, "timed out"), 3.0)
    line = "waiting for 1 of 3 workers: worker 0 (h0:1): no answer (timed out). Here: this one"
    assert said(machine.tick(3.0)) == [line]
    assert machine.tick(4.0) == [Dial(0)]
    machine.tick(60.0)
    assert machine.end_reason is not None
    assert machine.end_reason.what == "1 of 3 workers did not join within 60 s: worker 0 (h0:1): no answer (timed out)"


def test_a_member_passes_on_the_leaders_roll_call_and_names_the_missing() -> None:
    machine = member()
    roll = {"type": "roll", "here": [0, 1], "missing": [[2, "REFUSED", ""], [9, "REFUSED", ""], [2, "NONSENSE", ""], 5]}
    assert said(machine.received(7, roll, "", 1.0)) == [
        "waiting for 1 of 3 workers: worker 2 (h2:1): connection refused. Here: worker 0, this one"
    ]
    for now_s in range(60):
        machine.received(7, {"type": "beat", "stopped": False}, "", now_s)
        machine.tick(now_s)
    machine.tick(60.0)
    assert machine.end_reason is not None
    assert machine.end_reason.what == "1 of 3 workers did not join within 60 s: worker 2 (h2:1): connection refused"


def test_a_member_whose_leader_leaves_before_the_start_looks_for_it_again() -> None:
    machine = member()
    machine.lost(7, 1.0)
    assert machine.end_reason is None
    assert Dial(0) in machine.tick(2.0)


def test_a_training_that_goes_on_without_it_is_told_after_its_group_had_time_to_end() -> None:
    machine = member(joined=False)
    machine.found(0, PeerStatus(Kind.ALREADY_TRAINING), 1.0)
    machine.found(0, PeerStatus(Kind.ALREADY_TRAINING), 10.9)
    assert machine.end_reason is None
    machine.found(0, PeerStatus(Kind.REFUSED), 10.95)
    machine.found(0, PeerStatus(Kind.ALREADY_TRAINING), 11.5)
    assert machine.end_reason is None, "the group has ended; this is another"
    machine.found(0, PeerStatus(Kind.ALREADY_TRAINING), 21.5)
    assert machine.end_reason is not None
    assert "worker 0 is training already" in machine.end_reason.what
    assert "the whole group must be restarted" in (machine.end_reason.hint or "")


@pytest.mark.parametrize(
    ("message", "what", "code"),
    [
        ({"type": "refused", "kind": "TAKEN", "text": "by process 7 on x"}, "worker 1 is already taken by another", 2),
        (stop_message(EndReason("they differ", exit_code=2)), "they differ", 2),
    ],
)
def test_a_leaders_refusal_ends_it(message: dict[str, Any], what: str, code: int) -> None:
    machine = member(joined=False)
    machine.dialed(7, 0, 0.0)
    machine.received(7, message, "", 0.5)
    assert machine.end_reason is not None
    assert machine.end_reason.what.startswith(what)
    assert machine.end_reason.exit_code == code


def test_another_token_ends_a_member_at_once() -> None:
    machine = member(joined=False)
    machine.found(0, PeerStatus(Kind.OTHER_TOKEN), 1.0)
    assert machine.end_reason is not None
    assert (machine.end_reason.what, machine.end_reason.exit_code) == ("worker 0 has another cluster.token", 2)


def test_a_member_that_is_asked_says_what_it_knows() -> None:
    machine = member(joined=False)
    machine.found(0, PeerStatus(Kind.UNRESOLVED), 1.0)
    (present, close) = machine.received(50, hello(0), "", 2.0)
    assert isinstance(present, Send)
    assert present.message["text"] == "it says of worker 0 (h0:1): its name does not resolve"
    assert close == Close(50)


def test_a_leader_with_other_settings_that_asks_ends_both() -> None:
    machine = member(joined=False)
    actions = machine.received(50, hello(0, agreed={"training.epochs": 7}), "", 2.0)
    assert sent(actions) == [(50, "stop")]
    assert machine.end_reason is not None
    assert machine.end_reason.what == "the workers do not agree about training.epochs: worker 0 has 7, worker 1 has 5"
    asking = leader([])
    asking.dialed(40, 1, 0.0)
    asking.received(40, stop_message(machine.end_reason), "", 0.1)
    assert asking.end_reason == machine.end_reason


def test_the_same_rank_at_a_members_own_address_is_taken() -> None:
    (refused, _) = member(joined=False).received(50, hello(1, pid=5), "", 2.0)
    assert isinstance(refused, Send)
    assert (refused.message["kind"], refused.message["text"]) == ("TAKEN", "by process 101 on h1")


def test_a_member_names_a_leader_that_is_gone_or_silent() -> None:
    gone = member(start=True)
    gone.lost(7, 1.0)
    assert gone.end_reason is not None
    assert gone.end_reason.what.startswith("worker 0 is gone")
    silent = member(start=True)
    silent.tick(30.0)
    assert silent.end_reason is None
    silent.tick(30.1)
    assert silent.end_reason is not None
    assert silent.end_reason.what.startswith("worker 0 is lost: nothing heard from it for 30 s")


def test_a_members_own_failure_is_told_and_is_its_own() -> None:
    machine = member(start=True)
    assert sent(machine.failed(Report("signal 9 (SIGKILL)", exit_code=137), 1.0)) == [(7, "failed")]
    assert machine.end_reason is not None
    assert (machine.end_reason.culprit, machine.end_reason.exit_code) == (1, 137)


def test_a_members_failure_as_a_victim_is_judged_by_the_leader() -> None:
    machine = member(start=True)
    assert sent(machine.failed(VICTIM, 1.0)) == [(7, "failed")]
    assert machine.end_reason is None
    other = leader([1, 2], start=True)
    other.lost(12, 1.5)
    assert other.end_reason is not None
    machine.received(7, stop_message(other.end_reason), "", 1.6)
    assert machine.end_reason == other.end_reason
    alone = member(start=True)
    alone.failed(VICTIM, 1.0)
    alone.tick(4.6)
    assert alone.end_reason is not None
    assert alone.end_reason.culprit == 0, "a leader that does not answer is the cause"


def test_a_member_leaves_at_the_leaders_word_only() -> None:
    machine = member(start=True)
    assert sent(machine.done("abc", 1.0)) == [(7, "done")]
    assert not machine.may_leave
    machine.received(7, {"type": "leave"}, "", 2.0)
    assert machine.may_leave
    machine.lost(7, 2.1)
    assert machine.end_reason is None


def test_news_of_a_suspended_process_do_not_wait_for_the_next_beat() -> None:
    machine = member(start=True)
    machine.tick(1.0)
    assert machine.tick(1.1) == []
    machine.stopped(True, 1.2)
    (beat,) = machine.tick(1.2)
    assert beat == Send(7, {"type": "beat", "stopped": True})
