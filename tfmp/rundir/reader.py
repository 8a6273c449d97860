"""Reads the files of a run back, typed: metrics, events, summary and failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tfmp.rundir.layout import RunFolder

T = TypeVar("T")


@dataclass(frozen=True)
class EpochMetrics:
    """A line of ``metrics.jsonl``.

    Attributes:
        epoch: The epoch, from 1.
        values: Loss and metrics by name; ``None`` for what is not a finite number.
        seconds: Duration of the epoch.
        samples_per_second: Training throughput of all workers; ``None`` if unknown.
    """

    epoch: int
    values: Mapping[str, float | None]
    seconds: float
    samples_per_second: float | None


@dataclass(frozen=True)
class Event:
    """A line of ``events.jsonl``.

    Attributes:
        kind: Such as ``ready``, ``first_step``, ``epoch``, ``checkpoint`` or ``exit``.
        time_s: Wall-clock seconds since 1970.
        values: The rest, such as ``rank``.
    """

    kind: str
    time_s: float
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """``summary.json``.

    Attributes:
        status: ``done``, ``failed`` or ``interrupted``.
        epochs: Finished epochs.
        workers: Number of workers.
        replicas: Number of replicas.
        strategy: ``multi-worker`` or ``mirrored``.
        collective: The collective that was used.
        samples_per_second: Median throughput; ``None`` if unknown.
        seconds_to_first_step: From the start of the command; ``None`` if there was no step.
        seconds: Duration of the command.
        restarts: Number of restarts.
        weights_sha256: Digest of the final weights; ``None`` if there are none.
        values: The last loss and metrics by name.
    """

    status: str
    epochs: int
    workers: int = 1
    replicas: int = 1
    strategy: str = "multi-worker"
    collective: str = "none"
    samples_per_second: float | None = None
    seconds_to_first_step: float | None = None
    seconds: float = 0.0
    restarts: int = 0
    weights_sha256: str | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """``failure.json``.

    Attributes:
        what: What went wrong.
        where: The place, if known.
        hint: What to do, if known.
        exit_code: The exit code of the command.
        cause: The kind of failure.
        culprits: Ranks of the workers to blame.
        victims: Ranks of the workers that failed because of them.
        details: Everything else in the file.
    """

    what: str
    where: str | None
    hint: str | None
    exit_code: int
    cause: str | None
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    details: Mapping[str, Any] = field(default_factory=dict)


def read_metrics(folder: RunFolder) -> list[EpochMetrics]:
    """Read ``metrics.jsonl``.

    Raises:
        OSError: There is no such file.
        ValueError: It is damaged.
    """
    return _read_lines(folder.metrics, _epoch_metrics)


def read_events(folder: RunFolder) -> list[Event]:
    """Read ``events.jsonl``; raises like :func:`read_metrics`."""
    return _read_lines(folder.events, lambda values: Event(str(values.pop("event")), float(values.pop("time")), values))


def read_summary(folder: RunFolder) -> Summary:
    """Read ``summary.json``; raises like :func:`read_metrics`."""
    return _parse(folder.summary, folder.summary.read_text(encoding="utf-8"), _summary)


def read_failure(folder: RunFolder) -> Failure:
    """Read ``failure.json``; raises like :func:`read_metrics`."""
    return _parse(folder.failure, folder.failure.read_text(encoding="utf-8"), _failure)


def _epoch_metrics(values: dict[str, Any]) -> EpochMetrics:
    epoch, seconds = int(values.pop("epoch")), float(values.pop("seconds"))
    values.pop("step", None)
    return EpochMetrics(
        epoch, samples_per_second=values.pop("samples_per_second", None), seconds=seconds, values=values
    )


def _summary(values: dict[str, Any]) -> Summary:
    known = {name: values.pop(name) for name in Summary.__dataclass_fields__ if name in values}
    return Summary(**known, values=values)


def _failure(values: dict[str, Any]) -> Failure:
    return Failure(
        what=values.pop("what"),
        where=values.pop("where", None),
        hint=values.pop("hint", None),
        exit_code=values.pop("exit_code"),
        cause=values.pop("cause", None),
        culprits=tuple(values.pop("culprits", ())),
        victims=tuple(values.pop("victims", ())),
        details=values,
    )


def _read_lines(path: Path, convert: Callable[[dict[str, Any]], T]) -> list[T]:
    return [_parse(path, line, convert) for line in path.read_text(encoding="utf-8").splitlines()]


def _parse(path: Path, text: str, convert: Callable[[dict[str, Any]], T]) -> T:
    try:
        return convert(dict(json.loads(text)))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is damaged: {type(error).__name__}: {error}") from error
