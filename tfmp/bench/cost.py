"""The model of a cost: a fixed part and a part that grows with the amount, as latency + bytes / bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    """Fit the model by least squares of the relative errors, no part below 0.

    Relative, since costs span orders of magnitude and a cheap point matters as much as a dear one.

    Raises:
        ValueError: Fewer than two different amounts, or a cost that is not positive.
    """
    points = list(zip(amounts, seconds, strict=True))
    if len(set(amounts)) < 2:
        raise ValueError(f"expected at least two different amounts, received {list(amounts)}")
    if not all(cost > 0 for cost in seconds):
        raise ValueError(f"expected positive costs, received {list(seconds)}")
    # Minimise sum((latency / s + slope * x / s - 1)^2): two unknowns, so the normal equations are written out.
    u = [1 / cost for _, cost in points]
    v = [amount / cost for amount, cost in points]
    uu, uv, vv = _dot(u, u), _dot(u, v), _dot(v, v)
    determinant = uu * vv - uv * uv
    latency_s = (vv * sum(u) - uv * sum(v)) / determinant
    slope = (uu * sum(v) - uv * sum(u)) / determinant
    if latency_s < 0:
        latency_s, slope = 0.0, sum(v) / vv
    elif slope < 0:
        latency_s, slope = sum(u) / uu, 0.0
    worst = max(abs(latency_s + slope * amount - cost) / cost for amount, cost in points)
    return CostModel(latency_s, slope, worst)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
