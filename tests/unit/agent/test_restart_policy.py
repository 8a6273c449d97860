"""Histories of failed attempts: what is tried again, when, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfmp.agent.failures.diagnosis import Cause, Diagnosis
from tfmp.agent.restart_policy import Restart, RestartPolicy, Restarts, Stop
from tfmp.workers.spec import GroupResult


def failure(cause: Cause, step: int | None, signature: str = "", ran_s: float = 5.0) -> Diagnosis:
    return Diagnosis(cause, (), (), False, step, signature, {}, GroupResult(()), ran_s=ran_s)


def crash(step: int | None = 10, signature: str = "", ran_s: float = 5.0) -> Diagnosis:
    return failure("crash", step, signature, ran_s)


def run(*failures: Diagnosis, **policy: object) -> list[Restart | Stop]:
    restarts = Restarts(RestartPolicy(**policy))  # type: ignore[arg-type]
    return [restarts.after(diagnosis) for diagnosis in failures]


def test_delays_double_and_the_budget_ends() -> None:
    assert run(crash(1), crash(2), crash(3), crash(4)) == [
        Restart(1.0, 1, 3), Restart(2.0, 2, 3), Restart(4.0, 3, 3), Stop("all 3 restarts are used up"),
    ]  # fmt: skip
    assert run(crash(1), crash(2), max_restarts=1)[1] == Stop("the restart is used up")
    assert run(*map(crash, range(10)), max_restarts=10)[-1] == Restart(60.0, 10, 10)


def test_zero_means_never_without_a_word() -> None:
    causes: list[Cause] = ["crash", "signal", "ports", "preempted"]
    assert [run(failure(cause, 5), max_restarts=0) for cause in causes] == [[Stop(None)]] * 4


@pytest.mark.parametrize("cause", ["crash", "hang", "start"])
def test_a_failure_before_the_first_step_is_final(cause: Cause) -> None:
    (decision,) = run(failure(cause, None))
    assert isinstance(decision, Stop)
    assert "before the first step" in (decision.why or "")


@pytest.mark.parametrize("cause", ["signal", "preempted", "fork-server"])
def test_death_from_outside_is_not_the_programs_fault_even_before_the_first_step(cause: Cause) -> None:
    (decision,) = run(failure(cause, None))
    assert isinstance(decision, Restart)


def test_an_error_the_user_must_act_on_is_final() -> None:
    assert run(failure("error", 400)) == [Stop("it would fail again: not restarted")]


def test_crashes_and_deaths_from_outside_have_a_budget_each() -> None:
    signal = failure("signal", 3)
    decisions = run(crash(1), signal, crash(2), signal, crash(3), signal, max_restarts=2)
    assert [type(decision) for decision in decisions] == [Restart, Restart, Restart, Restart, Stop, Stop]


def test_who_is_preempted_goes_on_at_once() -> None:
    assert run(failure("preempted", 3)) == [Restart(0.0, 1, 3)]


def test_the_same_traceback_at_the_same_step_twice_is_final() -> None:
    assert run(crash(7, "a"), crash(7, "a"))[1] == Stop("the same error twice after step 7: not restarted")
    for second in (crash(8, "a"), crash(7, "b"), failure("hang", 7, "a")):
        assert isinstance(run(crash(7, "a"), second)[1], Restart)
    assert isinstance(run(crash(7), crash(7))[1], Restart), "nothing is known of why"
    assert isinstance(run(crash(7, "a"), failure("signal", 7), crash(7, "a"))[2], Restart)


def test_an_hour_of_health_fills_the_budget_up() -> None:
    decisions = run(crash(1), crash(2), crash(3, ran_s=3600.0), crash(4), max_restarts=2)
    assert [getattr(decision, "number", None) for decision in decisions] == [1, 2, 1, 2]


def test_taken_ports_are_replaced_a_few_times_without_a_wait() -> None:
    taken = failure("ports", None)
    decisions = run(*[taken] * 4, crash(1))
    assert decisions[:3] == [Restart(0.0, 1, 3), Restart(0.0, 2, 3), Restart(0.0, 3, 3)]
    assert isinstance(decisions[3], Stop)
    assert isinstance(decisions[4], Restart), "ports have a budget of their own"
    assert isinstance(run(taken, ports_are_free=False)[0], Stop)


@given(
    st.lists(
        st.builds(
            failure,
            st.sampled_from(["error", "crash", "hang", "signal", "preempted", "fork-server", "ports", "start"]),
            st.one_of(st.none(), st.integers(0, 3)),
            st.sampled_from(["", "a", "b"]),
            st.just(1.0),
        ),
        min_size=12,
        max_size=20,
    ),
    st.integers(0, 3),
)
def test_every_history_ends(history: list[Diagnosis], max_restarts: int) -> None:
    """No mixture of failures goes on for ever: two budgets and the ports' are all there is."""
    restarts = Restarts(RestartPolicy(max_restarts=max_restarts))
    decisions = [restarts.after(diagnosis) for diagnosis in history]
    assert any(isinstance(decision, Stop) for decision in decisions[: 2 * max_restarts + 3 + 1])
