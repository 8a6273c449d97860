"""The model of a cost: a fixed part and a part that grows with the amount, as latency + bytes / bandwidth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: The latency is looked for from this part of the least amount's cost to so many times the largest's.
_REACH = 1e6
_GRID = 300
_PRECISION = 1e-10


@dataclass(frozen=True)
class CostModel:
    """seconds = ``latency_s`` + amount * ``seconds_per_unit``.

    Attributes:
        latency_s: What nothing costs, 0 or more.
        seconds_per_unit: What one unit of the amount adds, 0 or more.
        worst_error: The largest deviation of a point from the model, as a fraction of the point.
    """

    latency_s: float
    seconds_per_unit: float
    worst_error: float

    @property
    def units_per_second(self) -> float:
        """The bandwidth; infinite where the amount costs nothing."""
        return 1 / self.seconds_per_unit if self.seconds_per_unit else float("inf")

    def seconds(self, amount: float) -> float:
        """What ``amount`` costs."""
        return self.latency_s + amount * self.seconds_per_unit


def fit_cost(amounts: Sequence[float], seconds: Sequence[float]) -> CostModel:
    """Fit the model by least squares of the logarithms of model / cost, no part below 0.

    Logarithms, since costs span orders of magnitude: a cheap point matters as much as a dear one, and twice too much
    is as wrong as half too little.

    Args:
        amounts: Positive, at least two different ones.
        seconds: What each costs, positive.

    Raises:
        ValueError: Fewer than two different amounts, or one or a cost that is not positive.
    """
    if len(set(amounts)) < 2 or not all(amount > 0 for amount in amounts):
        raise ValueError(f"expected at least two different positive amounts, received {list(amounts)}")
    if not all(cost > 0 for cost in seconds):
        raise ValueError(f"expected positive costs, received {list(seconds)}")
    points = list(zip(amounts, seconds, strict=True))

    # With latency = offset * slope the model is slope * (offset + amount): for each offset the best slope is a
    # geometric mean, and what is left is the variance of the logarithms: one unknown to search for.
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
    """Where a function with one valley between ``low`` and ``high`` is least, by thirds."""
    while high - low > _PRECISION:
        third = (high - low) / 3
        if function(low + third) <= function(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2


def _variance(values: Sequence[float]) -> float:
    """As ``statistics.pvariance``, whose exact fractions are slow."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)
