"""Scaling efficiency, and where the time of a step goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfmp.bench.cost import fit_cost
from tfmp.bench.paired import Figure, Rounds, figure, interval


def efficiency(together: Rounds, alone: Rounds, workers: int) -> Figure | None:
    """Which part of N times one worker's throughput N workers reach.

    Strong scaling: both have the same global batch. Weak scaling: both have the same batch a worker.

    Args:
        together: Samples/s of the N workers.
        alone: Samples/s of one worker on as many cores as each of them has.
        workers: N.
    """
    both = sorted(together.keys() & alone.keys())
    return figure([together[number] / (workers * alone[number]) for number in both])


@dataclass(frozen=True)
class StepSplit:
    """Where the seconds of a step go: three parts, or two, that add up to it.

    Attributes:
        step_s: The whole step: median over the rounds.
        exchange_s: What is gone where the same workers exchange nothing: the median difference, not below 0.
        exchange_low_s: Lower end of the 95 % confidence interval of the mean difference.
        exchange_high_s: Upper end.
        compute_s: What grows with the batch: input, forward, backward. ``None`` where a single batch size cannot tell.
        fixed_s: What each step costs whatever its batch: the optimizer, Python, dispatch. ``None`` likewise.
    """

    step_s: float
    exchange_s: float
    exchange_low_s: float
    exchange_high_s: float
    compute_s: float | None
    fixed_s: float | None

    @property
    def measurable(self) -> bool:
        """Whether the exchange stands out of the noise."""
        return self.exchange_low_s > 0


def split_steps(batch_sizes: Sequence[int], together: Sequence[Rounds], apart: Sequence[Rounds]) -> list[StepSplit]:
    """Split the steps of one number of workers.

    The part without exchange is split in two by a line through the batch sizes: its value at a batch of nothing is the
    fixed part.

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
