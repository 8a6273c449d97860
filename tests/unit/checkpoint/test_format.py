"""Checkpoint files: what was written is what is read, or a line says why not."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import numpy as np
import pytest

from tfmp.checkpoint import writer
from tfmp.checkpoint.format import Checkpoint, DamagedCheckpointError, load_checkpoint, newest_good, save_checkpoint
from tfmp.errors import TfmpError
from tfmp.events import CheckpointFailed, CheckpointSaved, WorkerEvent
from tfmp.rundir.layout import RunFolder, write_json

_ARRAYS: list[np.ndarray] = [
    np.array([1.5, -0.0, np.nan], np.float32),
    np.array(7, np.int64),
    np.arange(6, dtype=np.uint32).reshape(2, 3),
    np.zeros((2, 0)),
]


def at(epoch: int, step: int = 0) -> Checkpoint:
    return Checkpoint(epoch, step, 10, _ARRAYS, {"history": [{"loss": 0.1 + 0.2}], "best": float("inf")})


def test_what_is_read_is_what_was_written_to_the_bit(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "new", at(4, 7))
    assert path.name == "step-0000000047.npz"
    found = load_checkpoint(path)
    assert (found.epoch, found.step, found.steps_per_epoch, found.global_step) == (4, 7, 10, 47)
    assert found.facts == {"history": [{"loss": 0.30000000000000004}], "best": float("inf")}
    assert [(a.dtype, a.shape, a.tobytes()) for a in found.arrays] == [(a.dtype, a.shape, a.tobytes()) for a in _ARRAYS]
    assert found.describe() == "step 47 (epoch 5, step 7 of 10)"


def test_the_last_two_are_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        save_checkpoint(tmp_path, at(epoch))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-0000000030.npz", "step-0000000040.npz"]


@pytest.mark.parametrize("damage", ["cut to 10 bytes", "empty", "a bit flipped", "a file of another kind", "a folder"])
def test_a_damaged_newest_one_falls_back_with_a_line(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, at(1))
    newest = save_checkpoint(tmp_path, at(2))
    data = bytearray(newest.read_bytes())
    if damage == "cut to 10 bytes":
        newest.write_bytes(data[:10])
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "a bit flipped":
        data[data.index(_ARRAYS[2].tobytes())] ^= 1
        newest.write_bytes(data)
    elif damage == "a file of another kind":
        np.savez(newest, weights=np.zeros(3))
    else:
        newest.unlink()
        newest.mkdir()
    lines: list[str] = []
    found = newest_good(tmp_path, lines.append)
    assert found is not None
    assert found[1].epoch == 1
    assert len(lines) == 1
    assert newest.name in lines[0]
    assert "falling back" in lines[0]
    save_checkpoint(tmp_path, at(2))
    assert newest_good(tmp_path, lines.append) is not None
    assert len(lines) == 1, "the damaged one is set aside"
    assert len(list(tmp_path.glob("step-*.npz"))) == 2


@pytest.mark.parametrize("member", ["0", "facts"])
def test_content_that_is_not_the_digests_is_noticed(tmp_path: Path, member: str) -> None:
    """The zip's own CRC would not notice a file that was put together from two."""
    path = save_checkpoint(tmp_path, at(1))
    with np.load(path) as archive:
        content = dict(archive)
    with np.load(save_checkpoint(tmp_path, at(2, 3))) as archive:
        content[member] = archive[member] if member == "facts" else archive[member] + 1
    np.savez(path, **content)
    with pytest.raises(DamagedCheckpointError, match="digest"):
        load_checkpoint(path)


def test_none_that_is_good_is_none(tmp_path: Path) -> None:
    assert newest_good(tmp_path / "no folder", print) is None
    (tmp_path / "step-0000000001.npz").write_bytes(b"PK")
    assert newest_good(tmp_path, lambda _: None) is None


def test_a_full_disk_leaves_the_earlier_ones_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, at(1))

    def full(path: Path, **arrays: object) -> None:
        path.write_bytes(b"PK half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, at(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000010.npz"]


def test_a_checkpoint_is_written_beside_the_training_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, order = threading.Event(), []

    def slow(folder: Path, checkpoint: Checkpoint) -> Path:
        assert may_write.wait(10)
        order.append(checkpoint.step)
        return save_checkpoint(folder, checkpoint)

    monkeypatch.setattr(writer, "save_checkpoint", slow)
    events: list[WorkerEvent] = []
    checkpoint_writer = writer.CheckpointWriter(tmp_path, events.append)
    weights, history = np.ones(3), [1]
    checkpoint_writer.write(Checkpoint(0, 1, 10, [weights], {"history": history}), 0.0)
    weights[:] = 7
    history.append(2)
    assert (order, events) == ([], []), "the caller goes on before anything is written"
    may_write.set()
    checkpoint_writer.write(Checkpoint(0, 2, 10, [weights], {"history": history}), 0.0)
    checkpoint_writer.finish()
    assert order == [1, 2]
    first, second = (load_checkpoint(tmp_path / f"step-{step:010d}.npz") for step in (1, 2))
    assert (first.arrays[0].tolist(), first.facts["history"]) == ([1, 1, 1], [1])
    assert (second.arrays[0].tolist(), second.facts["history"]) == ([7, 7, 7], [1, 2])
    told = [(event.global_step, event.path) for event in events if isinstance(event, CheckpointSaved)]
    assert told == [(step, str(tmp_path / f"step-{step:010d}.npz")) for step in (1, 2)]
    assert len(events) == 2


def test_a_full_disk_costs_the_checkpoint_and_any_other_error_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [OSError(errno.ENOSPC, "No space left on device"), ValueError("a bug")]

    def fails(folder: Path, checkpoint: Checkpoint) -> Path:
        raise errors.pop(0)

    monkeypatch.setattr(writer, "save_checkpoint", fails)
    events: list[WorkerEvent] = []
    checkpoint_writer = writer.CheckpointWriter(tmp_path, events.append)
    checkpoint_writer.write(Checkpoint(1, 0, 10, []), 0.0)
    checkpoint_writer.write(Checkpoint(2, 0, 10, []), 0.0)
    with pytest.raises(ValueError, match="a bug"):
        checkpoint_writer.finish()
    checkpoint_writer.finish()
    assert events == [CheckpointFailed(1, 0, 10, "No space left on device")]


def test_a_run_folder_that_was_deleted_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_checkpoint(tmp_path / "run" / "checkpoints", at(1))
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "run" / "summary.json", {})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(TfmpError, match="the run folder is gone"):
        folder.require()
    assert list(tmp_path.iterdir()) == []
    folder.path.mkdir()
    folder.config.touch()
    folder.require()
