"""Computes the figures that are shown from the measurements of all rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfmp.bench.advice import Choice, advise, choose
from tfmp.bench.stats import Comparison, Figure, Rounds, StepSplit, compare, efficiency, figure, split_steps
from tfmp.bench.trials import Trial, TrialPlan


@dataclass(frozen=True)
class Measurement:
    """The result of one trial in one round. Times count from the start of the command ("Enter").

    Attributes:
        trial: What was run.
        round: The round, from 1.
        rates: Samples/s of each epoch after the first, for each process that trained on its own: one list for all
            workers of a cluster, one per worker for ``apart``.
        samples_per_second: Their median, or the sum of the medians of several lists.
        first_step_s: Seconds to the end of the first execution of the slowest process.
        reached: For each epoch, seconds to its end and its ``val_accuracy``, if any.
        seconds: Seconds to the end of the command.
        collective: The collective that the plan resolved to.
        weights_sha256: Digest of the final weights of each process.
        foreign_cores: Cores that other programs kept busy during the trial, on average.
    """

    trial: Trial
    round: int
    rates: tuple[tuple[float, ...], ...]
    samples_per_second: float
    first_step_s: float
    reached: tuple[tuple[float, float | None], ...]
    seconds: float
    collective: str
    weights_sha256: tuple[str | None, ...]
    foreign_cores: float

    def seconds_to(self, accuracy: float) -> float | None:
        """Seconds to the end of the first epoch whose validation reached ``accuracy``; ``None`` for none."""
        return next((at_s for at_s, value in self.reached if value is not None and value >= accuracy), None)


@dataclass(frozen=True)
class Row:
    """One number of workers at one batch size, with the first collective."""

    batch_size: int
    workers: int
    collective: str
    rate: Figure
    against_one: Comparison | None
    strong: Figure | None
    weak: Figure | None
    first_step_s: Figure | None
    target_s: Figure | None


@dataclass(frozen=True)
class CollectiveRow:
    """One number of workers at one batch size, with each collective."""

    batch_size: int
    workers: int
    rates: Mapping[str, Figure]
    against_first: Mapping[str, Comparison]


@dataclass(frozen=True)
class Analysis:
    """All figures that are shown."""

    rows: tuple[Row, ...]
    splits: tuple[tuple[int, int, StepSplit], ...]  # (global batch, workers, where its step's time goes)
    collectives: tuple[CollectiveRow, ...]
    choices: tuple[Choice, ...]  # by throughput
    soonest: tuple[Choice, ...]  # by the seconds from Enter to the accuracy
    narrower: tuple[tuple[int, int, Comparison], ...]  # (global batch, cores, ratio to one worker on all cores)
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings."""
        splits = [{"batch_size": batch, "workers": n, **asdict(split)} for batch, n, split in self.splits]
        return {
            "throughput": [asdict(row) for row in self.rows],
            "steps": splits,
            "collectives": [asdict(row) for row in self.collectives],
            "choices": [asdict(choice) for choice in self.choices],
            "soonest": [asdict(choice) for choice in self.soonest],
            "narrower": [
                {"batch_size": batch, "cores": cores, **asdict(found)} for batch, cores, found in self.narrower
            ],
            "advice": self.advice,
        }


class Table:
    """The measurements, by trial and round."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._found: dict[Trial, dict[int, Measurement]] = {}
        for measurement in measurements:
            self._found.setdefault(measurement.trial, {})[measurement.round] = measurement

    def rates(self, trial: Trial | None) -> Rounds:
        """Samples/s by round; empty if it was not run."""
        return {number: measurement.samples_per_second for number, measurement in self.of(trial).items()}

    def of(self, trial: Trial | None) -> Mapping[int, Measurement]:
        """Measurements by round; empty if it was not run."""
        return self._found.get(trial, {}) if trial is not None else {}


def analyse(plan: TrialPlan, measurements: Iterable[Measurement], target_accuracy: float) -> Analysis:
    """Compute all figures that the measurements so far allow."""
    table = Table(measurements)
    rows = [
        row
        for batch_size in plan.batch_sizes
        for workers in plan.workers
        if (row := _row(plan, table, workers, batch_size, target_accuracy)) is not None
    ]
    choices = [
        choice
        for batch_size in plan.batch_sizes
        if (choice := choose(batch_size, {n: table.rates(plan.run(n, batch_size)) for n in plan.workers})) is not None
    ]
    soonest = [
        choice
        for batch_size in plan.batch_sizes
        if (choice := choose(batch_size, _quickness(plan, table, batch_size, target_accuracy))) is not None
    ]
    collectives = [
        compared
        for batch_size in plan.batch_sizes
        for workers in plan.workers
        if len(plan.collectives) > 1
        and workers > 1
        and (compared := _collective_row(plan, table, workers, batch_size)) is not None
    ]
    return Analysis(
        rows=tuple(rows),
        splits=_splits(plan, table),
        collectives=tuple(collectives),
        choices=tuple(choices),
        soonest=tuple(soonest),
        narrower=_narrower(plan, table),
        advice=advise(choices),
    )


def _row(plan: TrialPlan, table: Table, workers: int, batch_size: int, target_accuracy: float) -> Row | None:
    trial = plan.run(workers, batch_size)
    found, rates = table.of(trial), table.rates(trial)
    rate = figure(list(rates.values()))
    if rate is None:
        return None
    least = plan.workers[0]
    times = [measurement.seconds_to(target_accuracy) for measurement in found.values()]
    alone = table.rates(plan.alone(workers, batch_size))
    return Row(
        batch_size=batch_size,
        workers=workers,
        collective=next(iter(found.values())).collective,
        rate=rate,
        against_one=compare(rates, table.rates(plan.run(least, batch_size))) if workers > least else None,
        strong=efficiency(rates, alone, workers) if workers > 1 else None,
        weak=efficiency(table.rates(plan.weak_run(workers, batch_size)), alone, workers),
        first_step_s=figure([measurement.first_step_s for measurement in found.values()]),
        target_s=figure([at_s for at_s in times if at_s is not None]),
    )


def _quickness(plan: TrialPlan, table: Table, batch_size: int, target_accuracy: float) -> dict[int, Rounds]:
    """The inverse of the time to the accuracy, for each number of workers and round: higher is better."""
    found: dict[int, Rounds] = {}
    for workers in plan.workers:
        times = {
            number: measurement.seconds_to(target_accuracy)
            for number, measurement in table.of(plan.run(workers, batch_size)).items()
        }
        found[workers] = {number: 1 / at_s for number, at_s in times.items() if at_s is not None}
    return found


def _narrower(plan: TrialPlan, table: Table) -> tuple[tuple[int, int, Comparison], ...]:
    """The best number of cores per batch size, if one worker is faster on fewer cores beyond noise."""
    best: dict[int, tuple[int, int, Comparison]] = {}
    for trial in plan.trials():
        if trial.kind != "alone" or trial.cores is None:
            continue
        found = compare(table.rates(trial), table.rates(plan.run(1, trial.batch_size)))
        if found is None or found.verdict != "more":
            continue
        before = best.get(trial.batch_size)
        if before is None or found.ratio > before[2].ratio:
            best[trial.batch_size] = (trial.batch_size, trial.cores, found)
    return tuple(best.values())


def _splits(plan: TrialPlan, table: Table) -> tuple[tuple[int, int, StepSplit], ...]:
    found: list[tuple[int, int, StepSplit]] = []
    for workers in plan.workers:
        if workers == 1:
            continue
        # A round must have both the run and its reference.
        pairs: list[tuple[int, Rounds, Rounds]] = []
        for batch in plan.batch_sizes:
            run, lone = table.rates(plan.run(workers, batch)), table.rates(plan.apart(workers, batch))
            if run.keys() & lone.keys():
                pairs.append((batch, run, lone))
        if pairs:
            batches, together, apart = zip(*pairs, strict=True)
            splits = split_steps(batches, together, apart)
            found += [(batch, workers, split) for batch, split in zip(batches, splits, strict=True)]
    return tuple(sorted(found, key=lambda row: row[:2]))


def _collective_row(plan: TrialPlan, table: Table, workers: int, batch_size: int) -> CollectiveRow | None:
    by_name = {name: table.rates(plan.run(workers, batch_size, name)) for name in plan.collectives}
    first = plan.collectives[0]
    figures = {name: found for name, rates in by_name.items() if (found := figure(list(rates.values()))) is not None}
    against = {
        name: ratio
        for name, rates in by_name.items()
        if name != first and (ratio := compare(by_name[first], rates)) is not None
    }
    return CollectiveRow(batch_size, workers, figures, against) if against else None


def unlike_weights(measurements: Sequence[Measurement]) -> list[Trial]:
    """Return the repeated trials whose final weights differ."""
    found: dict[Trial, set[tuple[str | None, ...]]] = {}
    for measurement in measurements:
        found.setdefault(measurement.trial, set()).add(measurement.weights_sha256)
    return [trial for trial, digests in found.items() if len(digests) > 1]
