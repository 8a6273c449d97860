"""What a worker tells its launcher: one dataclass a kind, sent as JSON objects, one a line, over a pipe.

``KIND`` is the value of ``"event"`` on the wire and in ``events.jsonl``. A kind that this version does not know is kept
as an :class:`UnknownEvent`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_args

MAX_EVENT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Ready:
    """The worker has joined its group and is about to work."""

    KIND: ClassVar = "ready"
    replicas: int = 0


@dataclass(frozen=True)
class FirstStep:
    """The first call of the train function has returned; ``step`` counts within the epoch, from 1."""

    KIND: ClassVar = "first_step"
    epoch: int
    step: int


@dataclass(frozen=True)
class Progress:
    """How far the epoch is: epoch and step from 1, and the metrics so far."""

    KIND: ClassVar = "progress"
    epoch: int
    step: int
    samples_per_second: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Validating:
    """A validation is running."""

    KIND: ClassVar = "validating"
    epoch: int


@dataclass(frozen=True)
class EpochEnd:
    """An epoch is done; ``step`` counts over the whole run, ``seconds`` are those of training."""

    KIND: ClassVar = "epoch"
    epoch: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    samples_per_second: float | None = None
    step: int = 0


@dataclass(frozen=True)
class LeftOnRequest:
    """The workers leave together after a stop request; ``asked``: this worker got the signal."""

    KIND: ClassVar = "stopped"
    asked: bool


@dataclass(frozen=True)
class Saving:
    """A checkpoint is being written."""

    KIND: ClassVar = "saving"
    epoch: int
    step: int
    global_step: int


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is on the disk; ``seconds`` from the snapshot to the rename."""

    KIND: ClassVar = "checkpoint"
    epoch: int
    step: int
    global_step: int
    path: str
    seconds: float


@dataclass(frozen=True)
class CheckpointFailed:
    """A checkpoint could not be written; training goes on."""

    KIND: ClassVar = "checkpoint_failed"
    epoch: int
    step: int
    global_step: int
    reason: str


@dataclass(frozen=True)
class ModelSaved:
    """The trained model is on the disk."""

    KIND: ClassVar = "saved"
    path: str
    seconds: float


@dataclass(frozen=True)
class WeightsDigest:
    """The digest of the weights that the worker ended with."""

    KIND: ClassVar = "weights"
    sha256: str


@dataclass(frozen=True)
class EvaluationResult:
    """What ``tfmp evaluate`` measured, with the number of samples, or ``tfmp verify`` compared."""

    KIND: ClassVar = "result"
    values: Mapping[str, Any]


@dataclass(frozen=True)
class UserError:
    """The worker ends with an error that the user can act on."""

    KIND: ClassVar = "error"
    what: str
    where: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class UncaughtException:
    """The target raised. Sent before anything else happens: the order of these events tells culprits from victims."""

    KIND: ClassVar = "exception"
    type: str
    message: str
    reason: str | None = None
    """The innermost reason, without what TensorFlow and Keras put around it, as ``Type: text``."""
    place: str | None = None
    """The user's own line: ``file:line in function``."""


@dataclass(frozen=True)
class FailedAfter:
    """The step of the epoch after which the worker failed: progress is told only now and then."""

    KIND: ClassVar = "failed_after"
    step: int


@dataclass(frozen=True)
class NotStarted:
    """The program could not be executed."""

    KIND: ClassVar = "not_started"
    reason: str


@dataclass(frozen=True)
class UnknownEvent:
    """An event of a kind, or with fields, that this version does not know."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)


WorkerEvent = (
    Ready | FirstStep | Progress | Validating | EpochEnd | LeftOnRequest | Saving | CheckpointSaved
    | CheckpointFailed | ModelSaved | WeightsDigest | EvaluationResult | UserError | UncaughtException | FailedAfter
    | NotStarted | UnknownEvent
)  # fmt: skip

_KINDS: dict[str, Any] = {kind.KIND: kind for kind in get_args(WorkerEvent) if kind is not UnknownEvent}
_METRICS = "metrics"


def kind_of(event: WorkerEvent) -> str:
    """The kind as ``events.jsonl`` names it."""
    return event.kind if isinstance(event, UnknownEvent) else event.KIND


def encode(event: WorkerEvent) -> dict[str, Any]:
    """Return the event as JSON values: ``"event"`` and its fields, metrics among them under their own names."""
    if isinstance(event, UnknownEvent):
        return {"event": event.kind, **event.values}
    names = [field.name for field in fields(event)]
    values: dict[str, Any] = {"event": event.KIND}
    for name in names:
        value = getattr(event, name)
        if name == _METRICS:
            values |= {metric: number for metric, number in value.items() if metric not in ("event", *names)}
        else:
            values[name] = value
    return values


def decode(values: Mapping[str, Any]) -> WorkerEvent:
    """The event of :func:`encode`'s values."""
    kind = str(values.get("event"))
    rest = {name: value for name, value in values.items() if name != "event"}
    event_type = _KINDS.get(kind)
    if event_type is None:
        return UnknownEvent(kind, rest)
    names = {field.name for field in fields(event_type)}
    known = rest
    if _METRICS in names:
        known = {name: value for name, value in rest.items() if name in names}
        known[_METRICS] = {name: value for name, value in rest.items() if name not in names}
    try:
        event: WorkerEvent = event_type(**known)
    except TypeError:
        return UnknownEvent(kind, rest)
    return event


class EventChannel:
    """The worker's end. Safe to use from several threads.

    Args:
        fd: Write end of the pipe. The channel owns it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, event: WorkerEvent) -> None:
        """Send one event; waits while the launcher is behind.

        Args:
            event: JSON values. Encoded, at most 8 MiB.

        Raises:
            TypeError: Holds what JSON cannot carry.
            ValueError: Too large.
        """
        line = json.dumps(encode(event)).encode() + b"\n"
        if len(line) > MAX_EVENT_BYTES:
            raise ValueError(f"expected an event of at most {MAX_EVENT_BYTES} bytes, received {len(line)}")
        view = memoryview(line)
        # Without a reader the launcher is dead, and the kernel is about to end this process too.
        with self._lock, suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._fd, view) :]


class EventReader:
    """The launcher's end: puts chunks together to whole events.

    What is no JSON object on one line is dropped, and so is a last line without its end: its writer died writing it.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[WorkerEvent]:
        """Take the next bytes of the pipe, return the events they complete."""
        *complete, rest = data.split(b"\n")
        events: list[WorkerEvent] = []
        for part in complete:
            line = bytes(self._held) + part
            self._held.clear()
            skip, self._skipping = self._skipping, False
            if not skip:
                events += _parse(line)
        if not self._skipping:
            self._held += rest
            if len(self._held) > MAX_EVENT_BYTES:
                self._held.clear()
                self._skipping = True
        return events


def _parse(line: bytes) -> list[WorkerEvent]:
    try:
        values = json.loads(line)
    except ValueError:
        return []
    return [decode(values)] if isinstance(values, dict) else []
