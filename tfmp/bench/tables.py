"""The results of a benchmark as tables of text."""

from __future__ import annotations

from dataclasses import dataclass

from tfmp.bench.advice import compare_collectives, explain, ratio_text
from tfmp.bench.analysis import Analysis, Row
from tfmp.bench.stats import Figure, StepSplit
from tfmp.bench.trials import TrialPlan
from tfmp.report.summary import print_rows
from tfmp.text import count, seconds

_NONE = "-"


@dataclass(frozen=True)
class TextTable:
    """A title, a header, rows and notes. A dash stands for a missing value."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def tables(plan: TrialPlan, found: Analysis, target_accuracy: float) -> list[TextTable]:
    """Return all tables that have rows."""
    made = [_throughput(plan, found), _times(found, target_accuracy), _steps(found), _collectives(plan, found)]
    return [table for table in made if table.rows]


def advice_lines(plan: TrialPlan, found: Analysis, target_accuracy: float, *, busy: bool = False) -> list[str]:
    """Return the lines below the tables, ending with the advice.

    Args:
        plan: The trials.
        found: The results.
        target_accuracy: The accuracy for the time-to-accuracy figure.
        busy: Whether other programs used a good part of the machine, which slows down extra workers most.
    """
    lines = [explain(choice) for choice in found.choices]
    lines += [explain(choice, f"fastest to val_accuracy {target_accuracy:g} at ") for choice in found.soonest]
    for batch_size, cores, faster in found.narrower:
        fewer = "1 core" if cores == 1 else f"{cores} cores"
        speed = f"1 worker is {ratio_text(faster)} times as fast on {fewer} as on all {plan.cores}"
        lines.append(f"global batch {batch_size:,}: {speed} (--set cluster.threads_per_worker={cores})")
    if beyond := [n for n in plan.workers if n > plan.cores]:
        there = "1 core" if plan.cores == 1 else f"{plan.cores} cores"
        listed = ", ".join(map(str, beyond))
        lines.append(f"oversubscribed: {listed} workers take turns on {there}; these figures say nothing about scaling")
    limits = " (measured while other programs kept this machine busy; repeat on an idle one)" if busy else ""
    return [*lines, f"advice: {found.advice}{limits}"]


def show(table: TextTable) -> None:
    """Print a table."""
    print_rows(table.rows, table.title, columns=table.columns)
    for note in table.notes:
        print(f"  {note}")
    print(flush=True)


def _throughput(plan: TrialPlan, found: Analysis) -> TextTable:
    least = plan.workers[0]
    columns = ("global batch", "workers", "samples/s", "spread", f"to {least}", "strong", "weak")
    rows = [
        (
            f"{row.batch_size:,}",
            str(row.workers),
            f"{row.rate.median:,.0f}",
            _spread(row.rate),
            ratio_text(row.against_one) if row.against_one else _NONE,
            _percent(row.strong),
            _percent(row.weak),
        )
        for row in found.rows
    ]
    notes = (
        "samples/s: median over the rounds of the median epoch after the first; spread: slowest and fastest round",
        f"to {least}: ratio to {count(least, 'worker')} and its 95 % confidence interval; strong, weak: efficiency",
        "against one worker with the cores of each, at the same global batch and at the same batch per worker",
    )
    names = sorted({row.collective for row in found.rows if row.workers > 1})
    title = f"throughput, collective {', '.join(names)}" if names else "throughput"
    return TextTable(title, columns, tuple(rows), notes)


def _times(found: Analysis, target_accuracy: float) -> TextTable:
    columns = ("global batch", "workers", "to the first step", f"to val_accuracy {target_accuracy:g}")
    rows = [(f"{row.batch_size:,}", str(row.workers), _seconds(row.first_step_s), _target(row)) for row in found.rows]
    return TextTable("seconds from Enter", columns, tuple(rows))


def _target(row: Row) -> str:
    if row.target_s is None:
        return "not reached"
    missed = row.rate.rounds - row.target_s.rounds
    return _seconds(row.target_s) + (f", not in {missed}" if missed else "")


def _steps(found: Analysis) -> TextTable:
    columns = ("global batch", "workers", "step", "exchange", "compute", "rest")
    rows = [
        (
            f"{batch:,}",
            str(workers),
            _milliseconds(split.step_s),
            exchange_text(split),
            _NONE if split.compute_s is None else _milliseconds(split.compute_s),
            _NONE if split.fixed_s is None else _milliseconds(split.fixed_s),
        )
        for batch, workers, split in found.splits
    ]
    notes = (
        "exchange: the time saved when the same workers train at once without exchanging anything, i.e. the sum and",
        "waiting; compute: grows with the batch (input, forward, backward); rest: does not (optimizer, Python)",
    )
    return TextTable("step time breakdown", columns, tuple(rows), notes)


def exchange_text(split: StepSplit) -> str:
    """``0.210 ms``, with an upper bound if it is within noise."""
    if split.measurable:
        return _milliseconds(split.exchange_s)
    if split.exchange_high_s == float("inf"):
        return f"{_milliseconds(split.exchange_s)} (one round)"
    return f"{_milliseconds(split.exchange_s)} (noise: below {1e3 * max(0.0, split.exchange_high_s):.3f})"


def _collectives(plan: TrialPlan, found: Analysis) -> TextTable:
    columns = ("global batch", "workers", *(f"{name}, samples/s" for name in plan.collectives), "")
    rows = [
        (
            f"{row.batch_size:,}",
            str(row.workers),
            *(f"{row.rates[name].median:,.0f}" if name in row.rates else _NONE for name in plan.collectives),
            "; ".join(
                compare_collectives(plan.collectives[0], name, ratio) for name, ratio in row.against_first.items()
            ),
        )
        for row in found.collectives
    ]
    return TextTable("collectives", columns, tuple(rows))


def _spread(figure: Figure) -> str:
    return f"{figure.low:,.0f} to {figure.high:,.0f}" if figure.rounds > 1 else "one round"


def _percent(figure: Figure | None) -> str:
    return _NONE if figure is None else f"{figure.median:.0%}"


def _seconds(figure: Figure | None) -> str:
    if figure is None:
        return _NONE
    return (
        f"{seconds(figure.median)} ({figure.low:.1f} to {figure.high:.1f})"
        if figure.rounds > 1
        else seconds(figure.median)
    )


def _milliseconds(value_s: float) -> str:
    return f"{1e3 * value_s:.3f} ms"
