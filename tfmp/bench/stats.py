"""The arithmetic of a benchmark: figures with their spread, comparisons, scaling efficiency and the parts of a step.

Everything is compared within rounds: each round runs everything once, one after the other, so that a disturbance of
the machine affects both sides of a ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The measured value of each round, by its number.
Rounds: TypeAlias = Mapping[int, float]

Verdict = Literal["more", "less", "noise"]

#: A smaller difference does not matter, however certain.
LEAST_DIFFERENCE = 0.02

# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom; then the normal distribution is close.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T_95_MANY = 1.96

#: The search for the offset spans this factor below the smallest and above the largest amount.
_REACH = 1e6
_GRID = 300
_PRECISION = 1e-10


@dataclass(frozen=True)
class Figure:
    """A quantity over the rounds: median and range."""

    median: float
    low: float
    high: float
    rounds: int


def figure(values: Sequence[float]) -> Figure | None:
    """Return the figure of some values; ``None`` for no values."""
    if not values:
        return None
    return Figure(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval, which is infinite for a single value."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of ``values`` and its 95 % confidence interval by Student's t.

    Raises:
        statistics.StatisticsError: There are no values.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    degrees = len(values) - 1
    point = _T_95[degrees - 1] if degrees <= len(_T_95) else _T_95_MANY
    reach = point * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class Comparison:
    """The ratio of two quantities.

    Attributes:
        ratio: Geometric mean of the ratios of the rounds.
        low: Lower end of its 95 % confidence interval; 0 for a single round.
        high: Upper end; infinite for a single round.
        rounds: Number of rounds that have both.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> Verdict:
        """``noise`` unless the whole interval is on one side of 1 and the difference is large enough."""
        if self.low > 1 and self.ratio >= 1 + LEAST_DIFFERENCE:
            return "more"
        if self.high < 1 and self.ratio <= 1 / (1 + LEAST_DIFFERENCE):
            return "less"
        return "noise"


def compare(first: Rounds, other: Rounds) -> Comparison | None:
    """Compare positive figures round by round; ``None`` if no round has both."""
    both = sorted(first.keys() & other.keys())
    if not both:
        return None
    found = interval([math.log(first[number] / other[number]) for number in both])
    return Comparison(math.exp(found.mean), math.exp(found.low), math.exp(found.high), len(both))


def efficiency(together: Rounds, alone: Rounds, workers: int) -> Figure | None:
    """Return the throughput of N workers as a fraction of N times that of one worker.

    Strong scaling: both have the same global batch. Weak scaling: both have the same batch per worker.

    Args:
        together: Samples/s of the N workers.
        alone: Samples/s of one worker on as many cores as each of them has.
        workers: N.
    """
    both = sorted(together.keys() & alone.keys())
    return figure([together[number] / (workers * alone[number]) for number in both])


@dataclass(frozen=True)
class StepSplit:
    """The two or three parts of a step, which add up to it.

    Attributes:
        step_s: The whole step: median over the rounds.
        exchange_s: The time saved without an exchange: the median difference, at least 0.
        exchange_low_s: Lower end of the 95 % confidence interval of the mean difference.
        exchange_high_s: Upper end.
        compute_s: The part that grows with the batch: input, forward, backward. ``None`` with a single batch size.
        fixed_s: The part that does not: optimizer, Python, dispatch. ``None`` likewise.
    """

    step_s: float
    exchange_s: float
    exchange_low_s: float
    exchange_high_s: float
    compute_s: float | None
    fixed_s: float | None

    @property
    def measurable(self) -> bool:
        """Whether the exchange exceeds noise."""
        return self.exchange_low_s > 0


def split_steps(batch_sizes: Sequence[int], together: Sequence[Rounds], apart: Sequence[Rounds]) -> list[StepSplit]:
    """Split the steps of one number of workers.

    A line through the batch sizes splits the part without exchange: its value at batch size 0 is the fixed part.

    Args:
        batch_sizes: Global batch sizes.
        together: Samples/s of the workers, for each batch size.
        apart: Samples/s of the same workers without an exchange. Each has a round in common with ``together``.
    """
    steps_s, quiet_s, differences_s = [], [], []
    for batch, run, lone in zip(batch_sizes, together, apart, strict=True):
        both = sorted(run.keys() & lone.keys())
        steps_s.append(statistics.median([batch / run[number] for number in both]))
        quiet_s.append(statistics.median([batch / lone[number] for number in both]))
        differences_s.append([batch / run[number] - batch / lone[number] for number in both])
    line = fit_cost(batch_sizes, quiet_s) if len(set(batch_sizes)) > 1 else None
    found = []
    for step_s, differences in zip(steps_s, differences_s, strict=True):
        exchange_s = min(max(0.0, statistics.median(differences)), step_s)
        sure = interval(differences)
        fixed_s = min(line.latency_s, step_s - exchange_s) if line else None
        compute_s = None if fixed_s is None else step_s - exchange_s - fixed_s
        found.append(StepSplit(step_s, exchange_s, sure.low, sure.high, compute_s, fixed_s))
    return found


@dataclass(frozen=True)
class CostModel:
    """seconds = ``latency_s`` + amount * ``seconds_per_unit``.

    Attributes:
        latency_s: The cost of amount 0; at least 0.
        seconds_per_unit: The additional cost per unit; at least 0.
        worst_error: The largest deviation from the model, as a fraction of the measured value.
    """

    latency_s: float
    seconds_per_unit: float
    worst_error: float

    @property
    def units_per_second(self) -> float:
        """The bandwidth; infinite if units cost nothing."""
        return 1 / self.seconds_per_unit if self.seconds_per_unit else float("inf")

    def seconds(self, amount: float) -> float:
        """Return the cost of ``amount``."""
        return self.latency_s + amount * self.seconds_per_unit


def fit_cost(amounts: Sequence[float], seconds: Sequence[float]) -> CostModel:
    """Fit the model by least squares of the logarithms of model / cost, with no negative part.

    Costs span orders of magnitude: with logarithms a cheap point counts as much as an expensive one, and a factor of 2
    is as wrong as a factor of 1/2.

    Args:
        amounts: Positive amounts, at least two different ones.
        seconds: The positive cost of each.

    Raises:
        ValueError: There are fewer than two different amounts, or an amount or a cost is not positive.
    """
    if len(set(amounts)) < 2 or not all(amount > 0 for amount in amounts):
        raise ValueError(f"expected at least two different positive amounts, received {list(amounts)}")
    if not all(cost > 0 for cost in seconds):
        raise ValueError(f"expected positive costs, received {list(seconds)}")
    points = list(zip(amounts, seconds, strict=True))

    # With latency = offset * slope the model is slope * (offset + amount): for each offset the best slope is a
    # geometric mean, and the misfit is the variance of the logarithms. That leaves one unknown to search for.
    def misfit(log_offset: float) -> float:
        offset = math.exp(log_offset)
        return _variance([math.log(cost / (offset + amount)) for amount, cost in points])

    low, high = math.log(min(amounts) / _REACH), math.log(max(amounts) * _REACH)
    grid = [low + (high - low) * place / _GRID for place in range(_GRID + 1)]
    best = min(range(1, _GRID), key=lambda place: misfit(grid[place]))
    offset = math.exp(_least(misfit, grid[best - 1], grid[best + 1]))
    slope = statistics.geometric_mean([cost / (offset + amount) for amount, cost in points])
    rates = [cost / amount for amount, cost in points]
    candidates = [
        (misfit(math.log(offset)), offset * slope, slope),
        (_variance([math.log(rate) for rate in rates]), 0.0, statistics.geometric_mean(rates)),
        (_variance([math.log(cost) for cost in seconds]), statistics.geometric_mean(seconds), 0.0),
    ]
    _, latency_s, slope = min(candidates)
    worst = max(abs(latency_s + slope * amount - cost) / cost for amount, cost in points)
    return CostModel(latency_s, slope, worst)


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Find the minimum of a function with one valley between ``low`` and ``high``, by ternary search."""
    while high - low > _PRECISION:
        third = (high - low) / 3
        if function(low + third) <= function(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2


def _variance(values: Sequence[float]) -> float:
    """Like ``statistics.pvariance``, whose exact fractions are slow."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)
