"""Checkpoints are written beside the training, as the state was."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import numpy as np
import pytest

from tfmp.checkpoint import writer
from tfmp.checkpoint.format import Checkpoint, load, save
from tfmp.events import CheckpointFailed, CheckpointSaved, WorkerEvent


def test_a_checkpoint_is_written_beside_the_training_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, order = threading.Event(), []

    def slow(folder: Path, checkpoint: Checkpoint) -> Path:
        assert may_write.wait(10)
        order.append(checkpoint.step)
        return save(folder, checkpoint)

    monkeypatch.setattr(writer, "save", slow)
    events: list[WorkerEvent] = []
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
    saved = [(event.global_step, event.path) for event in events if isinstance(event, CheckpointSaved)]
    assert saved == [(step, str(tmp_path / f"step-{step:010d}.npz")) for step in (1, 2)]
    assert len(events) == 2


def test_a_full_disk_costs_the_checkpoint_and_any_other_error_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [OSError(errno.ENOSPC, "No space left on device"), ValueError("a bug")]

    def fails(folder: Path, checkpoint: Checkpoint) -> Path:
        raise errors.pop(0)

    monkeypatch.setattr(writer, "save", fails)
    events: list[WorkerEvent] = []
    checkpoint_writer = writer.CheckpointWriter(tmp_path, events.append)
    checkpoint_writer.write(Checkpoint(1, 0, 10), 0.0)
    checkpoint_writer.write(Checkpoint(2, 0, 10), 0.0)
    with pytest.raises(ValueError, match="a bug"):
        checkpoint_writer.finish()
    checkpoint_writer.finish()
    assert events == [CheckpointFailed(1, 0, 10, "No space left on device")]
