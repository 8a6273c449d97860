"""Measurements of a benchmark that never ran."""

from __future__ import annotations

from typing import Any

from tfmp.bench.analysis import Measurement
from tfmp.bench.trials import Trial, TrialPlan

PLAN = TrialPlan((1, 2, 4), (256,), ("shm", "ring"), cores=2, train_samples=60000)


def measurement(trial: Trial, number: int, speed: float, **changed: Any) -> Measurement:
    settings: dict[str, Any] = {
        "rates": ((speed,),),
        "samples_per_second": speed,
        "first_step_s": 4.0 + number,
        "reached": ((6.0 + number, 0.95), (7.0 + number, 0.975), (8.0 + number, 0.98)),
        "seconds": 9.0,
        "collective": "none" if trial.workers == 1 else trial.collective,
        "weights_sha256": ("abc",),
        "foreign_cores": 0.0,
    }
    return Measurement(trial=trial, round=number, **{**settings, **changed})


SPEEDS = {
    "workers-1-batch-256": 100_000.0,
    "workers-2-batch-256-shm": 160_000.0,
    "workers-4-batch-256-shm": 80_000.0,
    "workers-2-batch-256-ring": 40_000.0,
    "workers-4-batch-256-ring": 20_000.0,
    "alone-on-1-batch-256": 90_000.0,
    "apart-2-batch-256": 200_000.0,
    "apart-4-batch-256": 150_000.0,
    "workers-2-batch-512-shm": 171_000.0,
    "workers-4-batch-1024-shm": 90_000.0,
}


def everything(rounds: int = 3) -> list[Measurement]:
    return [
        measurement(trial, number, SPEEDS[trial.name] * (1 + number / 1000))
        for number in range(1, rounds + 1)
        for trial in PLAN.trials()
    ]
