"""The launcher's record of a run: ``events.jsonl``, ``metrics.jsonl`` and the content of ``summary.json``.

The launcher is the only writer of these files; workers send events.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tfmp.events import (
    CheckpointSaved,
    EpochEnd,
    FirstStep,
    LeftOnRequest,
    ModelSaved,
    Progress,
    Ready,
    Saving,
    UserError,
    Validating,
    WeightsDigest,
    WorkerEvent,
    encode,
)
from tfmp.rundir.layout import RunFolder, append_json_line, finite, write_text

#: Events that are only displayed.
_NOT_RECORDED = (Progress, Validating, Saving)
_METRIC_ORDER = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy")


class Recorder:
    """Writes what workers report, and keeps what the summary needs.

    Args:
        folder: The run folder.
        clock: Wall-clock seconds since the epoch.
        started_s: ``clock()`` when the command was entered.
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float], started_s: float) -> None:
        self._folder = folder
        self._clock = clock
        self._started_s = started_s
        self.epochs: list[dict[str, Any]] = []
        self.digests: dict[int, str] = {}
        self.errors: dict[int, UserError] = {}
        self.ready: dict[int, int] = {}
        self.leaving: set[int] = set()
        self.seconds_to_first_step: float | None = None
        self.model_saved = False
        self.saved_step: int | None = None
        """Step of the last checkpoint that this command saved."""
        self.restarts = 0
        self._metrics_behind = False

    def new_attempt(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Start from a checkpoint: ``metrics.jsonl`` is rewritten with exactly its epochs.

        Args:
            history: The results of the epochs before it.
        """
        self.digests, self.errors, self.ready, self.leaving, self.model_saved = {}, {}, {}, set(), False
        self.epochs = [_ordered(epoch) for epoch in history]
        self._metrics_behind = bool(self.epochs) or self._folder.metrics.exists()
        self.catch_up()

    def catch_up(self) -> None:
        """Rewrite ``metrics.jsonl`` if a line is missing because the disk was full."""
        if self._metrics_behind:
            with suppress(OSError):
                write_text(self._folder.metrics, "".join(json.dumps(finite(epoch)) + "\n" for epoch in self.epochs))
                self._metrics_behind = False

    def on_event(self, rank: int, event: WorkerEvent) -> None:
        """Record an event of worker ``rank``."""
        values = encode(event)
        kind = values.pop("event")
        if not isinstance(event, _NOT_RECORDED) and (rank == 0 or not isinstance(event, EpochEnd)):
            self._append(kind, {"rank": rank} | {name: values[name] for name in values if name != "rank"})
        match event:
            case Ready(replicas):
                self.ready[rank] = replicas
            case FirstStep() if rank == 0 and self.seconds_to_first_step is None:
                self.seconds_to_first_step = self._clock() - self._started_s
            case EpochEnd() if rank == 0:
                line = _ordered(values)
                self.epochs.append(line)
                self._add_epoch(line)
            case WeightsDigest(sha256):
                self.digests[rank] = sha256
                self.leaving.add(rank)
            case LeftOnRequest():
                self.leaving.add(rank)
            case UserError():
                self.errors[rank] = event
            case ModelSaved():
                self.model_saved = True
            case CheckpointSaved(global_step=step):
                self.saved_step = step

    def note(self, kind: Any, **values: Any) -> None:
        """Append a line to ``events.jsonl``: time in seconds since 1970, kind and values.

        If the disk is full, the line is lost, but the run goes on.
        """
        self._append(kind, values)

    def _append(self, kind: str, values: Mapping[str, Any]) -> None:
        with suppress(OSError):
            line = {"time": round(self._clock(), 3), "event": kind}
            append_json_line(self._folder.events, line | {name: values[name] for name in values if name not in line})

    def _add_epoch(self, line: Mapping[str, Any]) -> None:
        if self._metrics_behind:
            self.catch_up()
            return
        try:
            append_json_line(self._folder.metrics, line)
        except OSError:
            self._metrics_behind = True

    def samples_per_second(self) -> float | None:
        """Median throughput over the epochs, without the first one if there are others."""
        rates = [line["samples_per_second"] for line in self.epochs if line.get("samples_per_second")]
        if len(rates) > 1:
            rates = rates[1:]
        return statistics.median(rates) if rates else None

    def summary(self, *, status: str, workers: int, strategy: str, collective: str, replicas: int) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        last = self.epochs[-1] if self.epochs else {}
        measured = {key: value for key, value in last.items() if key not in ("epoch", "step", "seconds")}
        measured.pop("samples_per_second", None)
        return {
            "status": status,
            "workers": workers,
            "replicas": replicas,
            "strategy": strategy,
            "collective": collective,
            "epochs": len(self.epochs),
            **measured,
            "samples_per_second": self.samples_per_second(),
            "seconds_to_first_step": self.seconds_to_first_step,
            "seconds": self._clock() - self._started_s,
            "restarts": self.restarts,
            "weights_sha256": self.digests.get(0),
        }


def _ordered(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of an epoch, well-known names first."""
    first = {key: values[key] for key in _METRIC_ORDER if key in values}
    return first | {key: value for key, value in values.items() if key not in first}
