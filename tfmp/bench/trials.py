"""What ``tfmp bench`` runs: each layout of workers, and the references to compare it with.

Three kinds of trial:

- ``run``: N workers, as ``tfmp train`` starts them;
- ``alone``: one worker with the whole batch, on as many cores as each of N workers has: the reference for scaling;
- ``apart``: N independent workers at once, each with its share of cores, batch and samples: the reference for the
  cost of the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["run", "alone", "apart"]


@dataclass(frozen=True)
class Trial:
    """A training to run.

    Attributes:
        kind: See the module.
        workers: Worker processes that train at the same time; 1 for ``alone``.
        batch_size: Samples per step across all of them.
        collective: As requested; ``auto`` if there is nothing to exchange.
        cores: Cores that the processes may use together; ``None``: all.
    """

    kind: Kind
    workers: int
    batch_size: int
    collective: str = "auto"
    cores: int | None = None

    @property
    def name(self) -> str:
        """A name for files: ``workers-2-batch-256-shm``, ``alone-on-1-batch-256``, ``apart-2-batch-256``."""
        if self.kind == "alone":
            return f"alone-on-{self.cores}-batch-{self.batch_size}"
        if self.kind == "apart":
            return f"apart-{self.workers}-batch-{self.batch_size}"
        collective = f"-{self.collective}" if self.workers > 1 else ""
        return f"workers-{self.workers}-batch-{self.batch_size}{collective}"

    @property
    def title(self) -> str:
        """A description for people."""
        if self.kind == "alone":
            cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
            return f"1 worker on {cores}, batch {self.batch_size:,} (reference)"
        if self.kind == "apart":
            return f"{self.workers} workers without exchange, batch {self.batch_size:,} (reference)"
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers, {self.collective}"
        return f"{workers}, batch {self.batch_size:,}"


@dataclass(frozen=True)
class TrialPlan:
    """The trials of a benchmark, and which figure needs which.

    Attributes:
        workers: Numbers of workers, ascending.
        batch_sizes: Global batch sizes, ascending.
        collectives: Collectives to compare; all other figures use the first.
        cores: Usable cores of this machine.
        train_samples: Samples per epoch, which bound the batch size.
        weak: Whether to measure weak scaling: N times the batch on N workers.
        references: Whether to run the references, which efficiency and step breakdown need.
    """

    workers: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    collectives: tuple[str, ...]
    cores: int
    train_samples: int
    weak: bool = True
    references: bool = True

    def run(self, workers: int, batch_size: int, collective: str | None = None) -> Trial:
        """``workers`` workers as a user starts them, by default with the first collective."""
        return Trial("run", workers, batch_size, "auto" if workers == 1 else collective or self.collectives[0])

    def alone(self, workers: int, batch_size: int) -> Trial:
        """One worker on the cores of each of ``workers``, which is the plain run if those are all cores."""
        share = max(1, self.cores // workers)
        return self.run(1, batch_size) if share == self.cores else Trial("alone", 1, batch_size, cores=share)

    def apart(self, workers: int, batch_size: int) -> Trial:
        """``workers`` independent workers at once that share the batch."""
        return Trial("apart", workers, batch_size)

    def weak_run(self, workers: int, batch_size: int) -> Trial | None:
        """``workers`` workers with ``batch_size`` samples each; ``None`` if that is not measured."""
        if not self.weak or workers == 1 or workers * batch_size > self.train_samples:
            return None
        return self.run(workers, workers * batch_size)

    def trials(self) -> tuple[Trial, ...]:
        """Return the trials of a round in order, with those to compare close together."""
        found: dict[Trial, None] = {}
        for batch_size in self.batch_sizes:
            for workers in self.workers:
                for collective in self.collectives if workers > 1 else ("auto",):
                    found[self.run(workers, batch_size, collective)] = None
                if not self.references:
                    continue
                found[self.alone(workers, batch_size)] = None
                if workers > 1:
                    found[self.apart(workers, batch_size)] = None
                if weak := self.weak_run(workers, batch_size):
                    found[weak] = None
        return tuple(found)


def default_workers(cores: int) -> tuple[int, ...]:
    """1, 2, 4, … and the number of cores."""
    powers = [2**exponent for exponent in range(cores.bit_length())]
    return tuple(sorted({*powers, cores}))


def shares(total: int, parts: int) -> tuple[int, ...]:
    """Divide ``total`` into ``parts`` whole shares; the first ones may be larger by one."""
    base, extra = divmod(total, parts)
    return tuple(base + (part < extra) for part in range(parts))


def time_left_s(spent_s: Sequence[tuple[Trial, float]], left: Sequence[Trial]) -> float | None:
    """Estimate the seconds for the remaining trials: what each took before, or the mean of all for a new one.

    Args:
        spent_s: Finished trials and their seconds.
        left: Remaining trials, once for each time they will run.

    Returns:
        ``None`` before the first trial has finished.
    """
    if not spent_s:
        return None
    mean_s = sum(seconds for _, seconds in spent_s) / len(spent_s)
    known: dict[Trial, list[float]] = {}
    for trial, seconds in spent_s:
        known.setdefault(trial, []).append(seconds)
    return sum(sum(known[trial]) / len(known[trial]) if trial in known else mean_s for trial in left)
