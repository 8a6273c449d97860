"""Plots the results of a benchmark, if matplotlib is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfmp.bench.analysis import Analysis
from tfmp.bench.trials import TrialPlan
from tfmp.errors import TfmpError
from tfmp.rundir.layout import atomic_write


def save_plot(path: Path, plan: TrialPlan, found: Analysis) -> None:
    """Plot throughput, scaling efficiency and the step breakdown as a PNG file.

    Raises:
        TfmpError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TfmpError("no plot: matplotlib is not installed", hint="pip install 'tfmp[plot]'") from error
    # Without pyplot, which would look for a display and keep figures in a global list.
    picture = Figure(figsize=(15, 4.5), layout="constrained")
    canvas = FigureCanvasAgg(picture)
    throughput, scaling, steps = picture.subplots(1, 3)
    _draw_throughput(throughput, plan, found)
    _draw_efficiency(scaling, plan, found)
    _draw_steps(steps, found)
    picture.suptitle(f"advice: {found.advice}")
    with atomic_write(path) as temporary:
        canvas.print_png(str(temporary))


def _draw_throughput(axes: Any, plan: TrialPlan, found: Analysis) -> None:
    for batch in plan.batch_sizes:
        rows = [row for row in found.rows if row.batch_size == batch]
        if rows:
            middle = [row.rate.median for row in rows]
            below = [row.rate.median - row.rate.low for row in rows]
            above = [row.rate.high - row.rate.median for row in rows]
            workers = [row.workers for row in rows]
            axes.errorbar(workers, middle, [below, above], marker="o", capsize=3, label=f"global batch {batch:,}")
    _finish(axes, plan, "samples/s")


def _draw_efficiency(axes: Any, plan: TrialPlan, found: Analysis) -> None:
    for batch in plan.batch_sizes:
        for name, style in (("strong", "-"), ("weak", "--")):
            rows = [row for row in found.rows if row.batch_size == batch and getattr(row, name) is not None]
            if rows:
                values = [100 * getattr(row, name).median for row in rows]
                label = f"{name}, {batch:,}" + (" a worker" if name == "weak" else "")
                axes.plot([row.workers for row in rows], values, style, marker="o", label=label)
    axes.axhline(100, color="grey", linewidth=0.8)
    axes.set_ylim(bottom=0)
    _finish(axes, plan, "scaling efficiency, %")


def _draw_steps(axes: Any, found: Analysis) -> None:
    names = [f"{workers} × {batch:,}" for batch, workers, _ in found.splits]
    splits = [split for _, _, split in found.splits]
    bottom = [0.0] * len(names)
    fixed_s, exchange_s = [split.fixed_s or 0.0 for split in splits], [split.exchange_s for split in splits]
    compute_s = [split.step_s - split.exchange_s - (split.fixed_s or 0.0) for split in splits]
    named = all(split.fixed_s is not None for split in splits)
    parts = [("compute" if named else "compute and rest", compute_s), ("exchange", exchange_s)]
    if named:
        parts.insert(0, ("rest", fixed_s))
    for label, values_s in parts:
        # As shares of the step: batches of 32 and 2,048 would not fit one scale of milliseconds.
        share = [100 * value / split.step_s for value, split in zip(values_s, splits, strict=True)]
        axes.bar(names, share, bottom=bottom, label=label)
        bottom = [low + high for low, high in zip(bottom, share, strict=True)]
    axes.set_xlabel("workers × global batch")
    axes.set_ylabel("share of a step, %")
    axes.tick_params("x", rotation=30 if len(names) > 3 else 0)
    if names:
        axes.legend(fontsize="small")


def _finish(axes: Any, plan: TrialPlan, label: str) -> None:
    axes.set_xlabel("workers")
    axes.set_ylabel(label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(plan.workers, [str(n) for n in plan.workers])
    axes.set_xlim(plan.workers[0] / 1.2, plan.workers[-1] * 1.2)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
