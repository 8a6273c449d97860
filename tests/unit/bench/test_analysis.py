"""From measurements to figures."""

from __future__ import annotations

import pytest

from tests.unit.bench.support import PLAN, SPEEDS, everything, measurement
from tfmp.bench.analysis import analyse, unlike_weights
from tfmp.bench.trials import Trial


def test_the_trials_of_the_plan_are_those_of_this_test() -> None:
    assert {trial.name for trial in PLAN.trials()} == set(SPEEDS)


def test_every_figure_is_held_against_its_reference() -> None:
    found = analyse(PLAN, everything(), 0.975)
    one, two, four = found.rows
    assert (one.strong, one.weak, one.against_one) == (None, None, None)
    assert two.rate.median == pytest.approx(160_320)
    assert two.against_one is not None
    assert two.against_one.ratio == pytest.approx(1.6)
    assert two.strong is not None
    assert two.strong.median == pytest.approx(160 / (2 * 90))
    assert two.weak is not None
    assert two.weak.median == pytest.approx(171 / (2 * 90))
    assert four.strong is not None
    assert four.strong.median == pytest.approx(80 / (4 * 90))
    assert [(batch, workers) for batch, workers, _ in found.splits] == [(256, 2), (256, 4)]
    split = found.splits[0][2]
    assert split.exchange_s == pytest.approx((256 / 160_000 - 256 / 200_000) / 1.002)
    assert found.collectives[0].against_first["ring"].ratio == pytest.approx(4.0)
    assert found.advice == "2 workers; 4 is slower here"


def test_times_are_to_the_first_epoch_that_reaches_the_accuracy() -> None:
    one = measurement(Trial("run", 1, 256), 1, 1.0)
    assert [one.seconds_to(target) for target in (0.9, 0.975, 0.98, 0.99)] == [7.0, 8.0, 9.0, None]
    row = analyse(PLAN, everything(), 0.976).rows[0]
    assert row.target_s is not None
    assert (row.target_s.median, row.target_s.low, row.target_s.high) == (10.0, 9.0, 11.0)
    assert row.first_step_s is not None
    assert row.first_step_s.median == 6.0
    assert analyse(PLAN, everything(), 0.99).rows[0].target_s is None
    without = [measurement(Trial("run", 1, 256), 1, 1.0, reached=((1.0, None),))]
    assert analyse(PLAN, without, 0.1).rows[0].target_s is None


def test_runs_that_do_not_repeat_are_named() -> None:
    trial, other = PLAN.trials()[:2]
    same = [measurement(trial, number, 1.0) for number in (1, 2)]
    assert unlike_weights(same) == []
    assert unlike_weights([*same, measurement(other, 1, 1.0), measurement(other, 2, 1.0, weights_sha256=("d",))]) == [
        other
    ]
