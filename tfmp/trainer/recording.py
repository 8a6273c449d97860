"""The values of all variables after each step of a short run, and how two such runs differ.

A folder holds ``step-0000.npz`` (before the first step), ``step-0001.npz``, …, and ``logs.json``: what each epoch
measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfmp.errors import TfmpError

_NAMES = "names"
#: What rounding in another order may change, relative to the largest value of a variable, after a few steps
#: (docs/numbers.md).
_ROUNDING = {"float64": 1e-8, "float32": 1e-5}
_ROUNDING_HALF = 1e-2
#: Below this, a variable's own size is no measure.
_SMALL = 1e-4
#: How many times the natural spread a difference may be.
_SPREAD = 4.0


@dataclass(frozen=True)
class Recording:
    """A folder of recorded steps.

    Attributes:
        folder: Where it lies.
    """

    folder: Path

    def write_step(self, step: int, names: Sequence[str], values: Sequence[npt.NDArray[Any]]) -> None:
        """Keep the variables after ``step`` steps."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"v{index}": value for index, value in enumerate(values)}
        # Step by step and variable by variable: neither side ever holds two steps.
        np.savez(self._step(step), allow_pickle=False, **{_NAMES: np.array(names, np.str_), **arrays})

    def write_logs(self, epochs: Sequence[Mapping[str, float]]) -> None:
        """Keep what the epochs so far measured."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "logs.json").write_text(json.dumps(list(epochs)))

    def steps(self) -> list[int]:
        """The recorded steps, ascending."""
        return sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob("step-*.npz"))

    def read_step(self, step: int) -> list[tuple[str, npt.NDArray[Any]]]:
        """The variables after ``step`` steps, by path, in the model's order."""
        with np.load(self._step(step), allow_pickle=False) as file:
            return [(str(name), file[f"v{index}"]) for index, name in enumerate(file[_NAMES])]

    def read_logs(self) -> list[dict[str, float]]:
        """What each epoch measured."""
        logs: list[dict[str, float]] = json.loads((self.folder / "logs.json").read_text())
        return logs

    def _step(self, step: int) -> Path:
        return self.folder / f"step-{step:04d}.npz"


@dataclass(frozen=True)
class Difference:
    """How far the workers are from one process in one value.

    Attributes:
        step: Steps done; 0: the initial weights. For an epoch's results: the steps of the run so far.
        name: The variable's path, or the metric's name.
        difference: The largest absolute difference of an element.
        allowed: How large it may be.
        spread: The natural spread: the same between two runs of one process with the rows of each batch reordered.
    """

    step: int
    name: str
    difference: float
    allowed: float
    spread: float

    @property
    def share(self) -> float:
        """The difference as a share of what is allowed; infinite for NaN."""
        share = self.difference / self.allowed
        return share if share == share else float("inf")

    @property
    def is_too_large(self) -> bool:
        """Whether more than rounding and random layers explain it."""
        return self.share > 1


def compare(workers: Recording, one: Recording, permuted: Recording, precision: str) -> list[Difference]:
    """Compare all recorded steps and what the epochs measured, in the order of the run.

    Raises:
        TfmpError: The runs have other steps or other variables.
    """
    rounding = _ROUNDING.get(precision, _ROUNDING_HALF)
    steps = one.steps()
    if workers.steps() != steps:
        raise TfmpError(f"one process ran {steps[-1]} steps, the workers {workers.steps()[-1]}", where="tfmp verify")
    found: list[Difference] = []
    for step in steps:
        theirs, ours, spread = (recording.read_step(step) for recording in (workers, one, permuted))
        if [value.shape for _, value in theirs] != [value.shape for _, value in ours]:
            raise TfmpError(
                f"one process and the workers have other variables after step {step}: "
                f"{_only(ours, theirs)} and {_only(theirs, ours)}",
                where="tfmp verify",
            )
        for (name, value), (_, expected), (_, reordered) in zip(ours, theirs, spread, strict=True):
            found.append(_difference(step, name, expected, value, reordered, rounding))
    for epoch, (theirs_of, ours_of, spread_of) in enumerate(
        zip(workers.read_logs(), one.read_logs(), permuted.read_logs(), strict=True), start=1
    ):
        step = epoch * steps[-1] // len(one.read_logs())
        for name in sorted(ours_of.keys() - {"learning_rate"}):
            measured = theirs_of.get(name, float("nan"))
            found.append(_difference(step, name, measured, ours_of[name], spread_of[name], rounding))
    return found


def _difference(step: int, name: str, measured: Any, expected: Any, reordered: Any, rounding: float) -> Difference:
    measured, expected, reordered = (np.asarray(value, np.float64) for value in (measured, expected, reordered))
    scale, spread = _largest(expected), _largest(reordered - expected)
    allowed = max(rounding * max(scale, _SMALL), _SPREAD * spread)
    return Difference(step, name, _largest(measured - expected), allowed, spread)


def _largest(values: npt.NDArray[Any]) -> float:
    return float(np.abs(values).max()) if values.size else 0.0


def _only(some: list[tuple[str, Any]], others: list[tuple[str, Any]]) -> str:
    known = {(name, value.shape) for name, value in others}
    found = [f"{name} {list(value.shape)}" for name, value in some if (name, value.shape) not in known]
    return ", ".join(found[:3]) or "no other"


def worst_of_each_step(found: Sequence[Difference]) -> list[Difference]:
    """The value of each step that is furthest from what is allowed."""
    steps = sorted({difference.step for difference in found})
    return [max((one for one in found if one.step == step), key=lambda one: one.share) for step in steps]
