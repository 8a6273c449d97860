"""Checkpoints are written beside the training, as the state was."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfmp.checkpoint import writer
from tfmp.checkpoint.format import Checkpoint, load, save


def test_a_checkpoint_is_written_beside_the_training_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, order = threading.Event(), []

    def slow(folder: Path, checkpoint: Checkpoint) -> Path:
        assert may_write.wait(10)
        order.append(checkpoint.step)
        return save(folder, checkpoint)

    monkeypatch.setattr(writer, "save", slow)
    events: list[Mapping[str, Any]] = []
    checkpoint_writer = writer.CheckpointWriter(tmp_path, events.append)
    weights, history = np.ones(3), [1]
    checkpoint_writer.write(Checkpoint(0, 1, 10, {"history": history}, arrays=[weights]), 0.0)
    weights[:] = 7
    history.append(2)
    assert (order, events) == ([], []), "the caller goes on before anything is written"
    may_write.set()
    checkpoint_writer.write(Checkpoint(0, 2, 10, {"history": history}, arrays=[weights]), 0.0)
    checkpoint_writer.finish()
    assert order == [1, 2]
    first, second = (load(tmp_path / f"step-{step:010d}.npz") for step in (1, 2))
    assert (first.arrays[0].tolist(), first.facts["history"]) == ([1, 1, 1], [1])
    assert (second.arrays[0].tolist(), second.facts["history"]) == ([7, 7, 7], [1, 2])
    assert [event["event"] for event in events] == ["checkpoint", "checkpoint"]
    assert events[1]["path"] == str(tmp_path / "step-0000000002.npz")


def test_a_full_disk_costs_the_checkpoint_and_any_other_error_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [OSError(errno.ENOSPC, "No space left on device"), ValueError("a bug")]

    def fails(folder: Path, checkpoint: Checkpoint) -> Path:
        raise errors.pop(0)

    monkeypatch.setattr(writer, "save", fails)
    events: list[Mapping[str, Any]] = []
    checkpoint_writer = writer.CheckpointWriter(tmp_path, events.append)
    checkpoint_writer.write(Checkpoint(1, 0, 10), 0.0)
    checkpoint_writer.write(Checkpoint(2, 0, 10), 0.0)
    with pytest.raises(ValueError, match="a bug"):
        checkpoint_writer.finish()
    checkpoint_writer.finish()
    failed = {"event": "checkpoint_failed", "epoch": 1, "step": 0, "global_step": 10}
    assert events == [{**failed, "reason": "No space left on device"}]
