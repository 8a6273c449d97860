"""Figures, comparisons and cost models: exact values, and no winner inside the noise."""

from __future__ import annotations

import math
import random

import pytest

from tfmp.bench.stats import Figure, compare, efficiency, figure, fit_cost, interval, split_steps


def test_a_figure_is_the_median_and_the_whole_range() -> None:
    assert figure([30.0, 10.0, 20.0]) == Figure(20.0, 10.0, 30.0, 3)
    assert figure([4.0, 1.0]) == Figure(2.5, 1.0, 4.0, 2)
    assert figure([]) is None


def test_the_interval_is_students() -> None:
    # 1, 2, 3: mean 2, standard error 1 / sqrt(3), t of 2 degrees 4.303
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx(
        (2.0, 2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3))
    )
    # 0, 2: mean 1, standard deviation sqrt(2), standard error 1, t of 1 degree 12.706
    assert interval([0.0, 2.0]).low == pytest.approx(-11.706)
    many = [0.0, 2.0] * 50
    assert interval(many).high == pytest.approx(1 + 1.96 * math.sqrt(100 / 99) / 10)
    assert (interval([5.0]).low, interval([5.0]).high) == (-math.inf, math.inf)


def test_the_confidence_interval_holds_the_truth_nineteen_times_of_twenty() -> None:
    draw = random.Random(7)
    for size in (2, 3, 5, 12):
        held = 0
        for _ in range(1000):
            found = interval([draw.gauss(1.0, 3.0) for _ in range(size)])
            held += found.low <= 1.0 <= found.high
        assert held / 1000 == pytest.approx(0.95, abs=0.015), size


def test_ratios_are_taken_within_rounds() -> None:
    # The machine was half as fast in round 2: the ratio does not see it.
    found = compare({1: 300.0, 2: 150.0, 3: 300.0}, {1: 200.0, 2: 100.0, 3: 200.0})
    assert found is not None
    assert (found.ratio, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.verdict == "more"
    backwards = compare({1: 200.0, 2: 100.0}, {1: 300.0, 2: 150.0})
    assert backwards is not None
    assert backwards.verdict == "less"


def test_only_rounds_that_have_both_count() -> None:
    found = compare({1: 2.0, 2: 4.0, 3: 9.0}, {2: 1.0, 3: 1.0, 4: 7.0})
    assert found is not None
    assert (found.rounds, found.ratio) == (2, pytest.approx(6.0))  # sqrt(4 * 9)
    assert compare({1: 2.0}, {2: 1.0}) is None


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.5, 1.5, 1.5], "more"),
        ([1.5, 0.9, 1.2], "noise"),  # faster twice, slower once
        ([1.1, 1.5, 3.0], "noise"),  # faster each time, but by anything
        ([1.30, 1.35, 1.40], "more"),
        ([1.01, 1.01, 1.01], "noise"),  # sure, and not worth a word
        ([1 / 1.01] * 3, "noise"),
        ([1.0, 1.0, 1.0], "noise"),
        ([0.5, 0.5, 0.55], "less"),
        ([0.7, 1.01, 0.7], "noise"),  # slower twice
        ([9.0], "noise"),  # a single round proves nothing
    ],
)
def test_no_winner_inside_the_noise(ratios: list[float], verdict: str) -> None:
    found = compare(dict(enumerate(ratios)), dict.fromkeys(range(len(ratios)), 1.0))
    assert found is not None
    assert found.verdict == verdict


def test_two_equal_contenders_seldom_get_a_winner() -> None:
    draw = random.Random(11)
    winners = 0
    for _ in range(2000):
        one = {number: draw.lognormvariate(5, 0.2) for number in range(3)}
        other = {number: draw.lognormvariate(5, 0.2) for number in range(3)}
        found = compare(one, other)
        assert found is not None
        winners += found.verdict != "noise"
    assert winners / 2000 < 0.07


def test_efficiency_is_the_part_of_n_times_one() -> None:
    assert efficiency({1: 180.0, 2: 190.0, 3: 100.0}, {1: 100.0, 2: 100.0, 3: 100.0}, 2) == Figure(0.9, 0.5, 0.95, 3)
    assert efficiency({}, {1: 100.0}, 2) is None


def test_cost_models_are_found_again() -> None:
    found = fit_cost([400e3, 4e6, 40e6], [50e-6 + size / 8e9 for size in (400e3, 4e6, 40e6)])
    assert (found.latency_s, found.units_per_second) == pytest.approx((50e-6, 8e9))
    assert found.worst_error == pytest.approx(0.0, abs=1e-9)
    assert found.seconds(80e6) == pytest.approx(50e-6 + 0.01)


def test_a_cheap_point_matters_as_much_as_a_dear_one() -> None:
    # By absolute errors the line would go through the dear points and cost -0.7 at the cheap one.
    found = fit_cost([1.0, 10.0, 100.0], [2.0, 11.0, 120.0])
    assert found.latency_s > 0.7
    assert found.worst_error < 0.12


def test_twice_too_much_is_as_wrong_as_half_too_little() -> None:
    # Two costs of the same amount, one four times the other: the model is their geometric mean, twice and half.
    found = fit_cost([1.0, 1.0, 10.0, 10.0], [1.0, 4.0, 10.0, 40.0])
    assert (found.seconds(1.0), found.seconds(10.0)) == pytest.approx((2.0, 20.0))
    assert found.worst_error == pytest.approx(1.0)


def test_no_part_of_a_cost_is_negative() -> None:
    through_zero = fit_cost([1.0, 2.0, 4.0], [1.0, 2.2, 5.0])  # bends upwards: the line would start below 0
    assert through_zero.latency_s == 0.0
    assert through_zero.seconds_per_unit == pytest.approx((1.0 * 1.1 * 1.25) ** (1 / 3))
    flat = fit_cost([1.0, 2.0], [2.0, 1.0])
    assert (flat.seconds_per_unit, flat.units_per_second) == (0.0, math.inf)
    assert flat.latency_s == pytest.approx(math.sqrt(2))


def test_the_fit_is_the_best_there_is() -> None:
    draw = random.Random(3)
    for _ in range(50):
        amounts = [10 ** draw.uniform(4, 8) for _ in range(6)]
        seconds = [(1e-3 + amount / 1e9) * draw.lognormvariate(0, 0.3) for amount in amounts]
        found = fit_cost(amounts, seconds)

        def misfit(
            latency_s: float, slope: float, amounts: list[float] = amounts, costs: list[float] = seconds
        ) -> float:
            pairs = zip(amounts, costs, strict=True)
            return sum(math.log((latency_s + slope * amount) / cost) ** 2 for amount, cost in pairs)

        best = misfit(found.latency_s, found.seconds_per_unit)
        for changed in (0.99, 1.01):
            assert misfit(found.latency_s * changed + 1e-9, found.seconds_per_unit) >= best
            assert misfit(found.latency_s, found.seconds_per_unit * changed) >= best


@pytest.mark.parametrize(
    ("amounts", "seconds"), [([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, 0.0]), ([0.0, 2.0], [1.0, 2.0])]
)
def test_what_cannot_be_fitted_is_refused(amounts: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        fit_cost(amounts, seconds)


def test_the_split_of_a_step_adds_up() -> None:
    # Apart: 0.5 ms and 4 µs a sample. Together 0.25 ms more.
    batches = [32, 256]
    apart = [{1: batch / (0.5e-3 + 4e-6 * batch), 2: batch / (0.5e-3 + 4e-6 * batch)} for batch in batches]
    together = [{1: batch / (0.75e-3 + 4e-6 * batch), 2: batch / (0.75e-3 + 4e-6 * batch)} for batch in batches]
    small, large = split_steps(batches, together, apart)
    assert (small.step_s, small.exchange_s, small.fixed_s, small.compute_s) == pytest.approx(
        (0.878e-3, 0.25e-3, 0.5e-3, 0.128e-3)
    )
    assert (large.step_s, large.exchange_s, large.fixed_s, large.compute_s) == pytest.approx(
        (1.774e-3, 0.25e-3, 0.5e-3, 1.024e-3)
    )
    assert small.measurable


def test_an_exchange_inside_the_noise_is_not_measurable() -> None:
    (split,) = split_steps([100], [{1: 100.0, 2: 100.0, 3: 80.0}], [{1: 110.0, 2: 90.0, 3: 100.0}])
    assert not split.measurable
    assert split.exchange_s == pytest.approx(1 - 100 / 110)
    assert (split.compute_s, split.fixed_s) == (None, None), "one batch size cannot tell them apart"
    (faster,) = split_steps([100], [{1: 200.0, 2: 200.0}], [{1: 100.0, 2: 100.0}])
    assert (faster.step_s, faster.exchange_s) == (0.5, 0.0)
