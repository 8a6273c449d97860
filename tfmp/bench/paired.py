"""Figures with their spread, and comparisons that know noise from a difference.

All takes place within rounds: in each round everything is run once, one after the other, so that what disturbs the
machine for a while disturbs both sides of a ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: What was measured in each round, by the number of the round.
Rounds: TypeAlias = Mapping[int, float]

Verdict = Literal["more", "less", "noise"]

#: A smaller difference is no reason to choose, however sure.
LEAST_DIFFERENCE = 0.02

# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom; beyond, the normal distribution's is close.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T_95_MANY = 1.96


@dataclass(frozen=True)
class Figure:
    """One quantity over rounds: the median and the whole range."""

    median: float
    low: float
    high: float
    rounds: int


def figure(values: Sequence[float]) -> Figure | None:
    """The figure of some values; ``None`` for none."""
    if not values:
        return None
    return Figure(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Interval:
    """A mean and the range that holds its true value with 95 % confidence: infinite for one value."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """The mean of ``values`` and its 95 % confidence interval by Student's t.

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
    """How many times as much one is of the other.

    Attributes:
        ratio: Geometric mean of the ratios of the rounds.
        low: Lower end of its 95 % confidence interval; 0 for a single round.
        high: Upper end; infinite for a single round.
        rounds: Rounds that have both.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> Verdict:
        """``noise`` unless the whole interval is on one side of 1 and the difference is worth a word."""
        if self.low > 1 and self.ratio >= 1 + LEAST_DIFFERENCE:
            return "more"
        if self.high < 1 and self.ratio <= 1 / (1 + LEAST_DIFFERENCE):
            return "less"
        return "noise"


def compare(one: Rounds, other: Rounds) -> Comparison | None:
    """Compare positive figures round by round; ``None`` where no round has both."""
    both = sorted(one.keys() & other.keys())
    if not both:
        return None
    found = interval([math.log(one[number] / other[number]) for number in both])
    return Comparison(math.exp(found.mean), math.exp(found.low), math.exp(found.high), len(both))
