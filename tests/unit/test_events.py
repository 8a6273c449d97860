"""What workers tell their launcher, on the wire and back."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from tfmp.events import (
    CheckpointFailed,
    CheckpointSaved,
    EpochEnd,
    EvaluationResult,
    FailedAfter,
    FirstStep,
    LeftOnRequest,
    ModelSaved,
    NotStarted,
    Progress,
    Ready,
    Saving,
    UncaughtException,
    UnknownEvent,
    UserError,
    Validating,
    WeightsDigest,
    WorkerEvent,
    decode,
    encode,
    kind_of,
)

#: Each kind, and how it is on the wire: ``events.jsonl`` and readers of it depend on these names.
WIRE: list[tuple[WorkerEvent, dict[str, Any]]] = [
    (Ready(2), {"event": "ready", "replicas": 2}),
    (FirstStep(1, 4), {"event": "first_step", "epoch": 1, "step": 4}),
    (
        Progress(2, 8, 1234.5, {"loss": 0.5, "accuracy": 0.9}),
        {"event": "progress", "epoch": 2, "step": 8, "samples_per_second": 1234.5, "loss": 0.5, "accuracy": 0.9},
    ),
    (Validating(3), {"event": "validating", "epoch": 3}),
    (
        EpochEnd(1, {"loss": 0.25, "val_loss": None}, seconds=1.25, samples_per_second=48000.4, step=235),
        {"event": "epoch", "epoch": 1, "loss": 0.25, "val_loss": None, "seconds": 1.25, "samples_per_second": 48000.4,
         "step": 235},
    ),
    (LeftOnRequest(asked=True), {"event": "stopped", "asked": True}),
    (Saving(1, 2, 12), {"event": "saving", "epoch": 1, "step": 2, "global_step": 12}),
    (
        CheckpointSaved(1, 2, 12, "x.npz", 0.5),
        {"event": "checkpoint", "epoch": 1, "step": 2, "global_step": 12, "path": "x.npz", "seconds": 0.5},
    ),
    (
        CheckpointFailed(1, 2, 12, "disk full"),
        {"event": "checkpoint_failed", "epoch": 1, "step": 2, "global_step": 12, "reason": "disk full"},
    ),
    (ModelSaved("model.keras", 0.5), {"event": "saved", "path": "model.keras", "seconds": 0.5}),
    (WeightsDigest("abc"), {"event": "weights", "sha256": "abc"}),
    (EvaluationResult({"loss": 0.5, "samples": 7}), {"event": "result", "values": {"loss": 0.5, "samples": 7}}),
    (UserError("nan", "model", None), {"event": "error", "what": "nan", "where": "model", "hint": None}),
    (
        UncaughtException("KeyError", "'x'", "KeyError: 'x'", "a.py:1 in f"),
        {"event": "exception", "type": "KeyError", "message": "'x'", "reason": "KeyError: 'x'", "place": "a.py:1 in f"},
    ),
    (FailedAfter(3), {"event": "failed_after", "step": 3}),
    (NotStarted("command not found: x"), {"event": "not_started", "reason": "command not found: x"}),
    (UnknownEvent("found", {"cpus": [1, 2]}), {"event": "found", "cpus": [1, 2]}),
]  # fmt: skip


@pytest.mark.parametrize(("event", "wire"), WIRE, ids=lambda value: "" if isinstance(value, dict) else kind_of(value))
def test_every_kind_survives_the_wire_under_its_name(event: WorkerEvent, wire: dict[str, Any]) -> None:
    assert encode(event) == wire
    assert list(encode(event)) == list(wire), "readers see fields in this order"
    assert decode(json.loads(json.dumps(wire))) == event
    assert kind_of(event) == wire["event"]


def test_every_kind_is_tried_here() -> None:
    assert {type(event) for event, _ in WIRE} == set(get_args(WorkerEvent))


@pytest.mark.parametrize(
    "wire",
    [
        {"event": "from the future", "value": [1, {"a": None}]},
        {"event": "from the future"},
        {"event": "ready", "replicas": 1, "warmth": 37},
        {"event": "error", "what": "x", "severity": 3},
        {"event": "first_step", "epoch": 1},
        {"event": "checkpoint"},
    ],
    ids=["unknown kind", "without values", "extra field", "extra field of an error", "field missing", "all missing"],
)
def test_what_this_version_does_not_know_is_kept_as_it_is(wire: dict[str, Any]) -> None:
    kind = wire["event"]
    event = decode(wire)
    assert event == UnknownEvent(kind, {name: value for name, value in wire.items() if name != "event"})
    assert encode(event) == wire


def test_what_has_no_kind_is_none_that_is_known() -> None:
    assert decode({"a": 1}) == UnknownEvent("None", {"a": 1})
    assert decode({"event": 7}) == UnknownEvent("7")


def test_what_may_be_left_out_has_a_value() -> None:
    assert decode({"event": "ready"}) == Ready(0)
    assert decode({"event": "progress", "epoch": 1, "step": 2, "loss": 0.5}) == Progress(1, 2, None, {"loss": 0.5})
    assert decode({"event": "epoch", "epoch": 3}) == EpochEnd(3, {}, 0.0, None, 0)
    assert decode({"event": "error", "what": "nan"}) == UserError("nan", None, None)


@pytest.mark.parametrize("name", ["epoch", "step", "samples_per_second", "metrics"])
def test_a_metric_never_takes_the_place_of_a_field(name: str) -> None:
    told = encode(Progress(2, 8, 9.5, {name: -1.0, "loss": 0.5}))
    assert told == {"event": "progress", "epoch": 2, "step": 8, "samples_per_second": 9.5, "loss": 0.5}
    told = encode(EpochEnd(2, {name: -1.0, "seconds": -1.0}, seconds=1.0, samples_per_second=9.5, step=8))
    assert told == {"event": "epoch", "epoch": 2, "seconds": 1.0, "samples_per_second": 9.5, "step": 8}


def test_a_metric_named_event_does_not_change_the_kind() -> None:
    assert encode(Progress(1, 2, None, {"event": 0.5}))["event"] == "progress"
