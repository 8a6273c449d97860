"""Checkpoint files: what was written is what is read, or a line says why not."""

from __future__ import annotations

import base64
import errno
import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfmp.checkpoint import format as format_module
from tfmp.checkpoint.format import (
    Checkpoint,
    CheckpointHeader,
    DamagedCheckpointError,
    load,
    newest_good,
    peek,
    save,
    verify,
)
from tfmp.errors import TfmpError
from tfmp.rundir.layout import RunFolder, write_json

_ARRAYS: list[np.ndarray] = [
    np.array([1.5, -0.0, np.nan], np.float32),
    np.array(7, np.int64),
    np.arange(6, dtype=np.uint32).reshape(2, 3),
    np.zeros((2, 0)),
]

#: A file of version 0.1, compressed: epoch 1, step 3 of 10.
_WRITTEN_BY_0_1 = (
    "eNoL8GZm0WWAAEWGXJ4Khf9QwMkgwpCWmFxSrJdXUMnIIMAgxwhRBqMn+4X6BkQyMpQxVKunpBYnF6lbKajXlBqq6yiop+UXlRQl"
    "5sXnF6WkgsTdEnOKU4HixRmJBalAvoahqYWOpo5CrQLZgKtaCWhLbmKJkpWCoY6CUmpBfnIGlF1ckloAZBpDmcXxBalF8XAFBkDh"
    "jMzikvyiSiA3ulopJ7+4GMgy0DM2QAUmtbFAtUWpBTmZyYkgJUZAbnJ+Tk5qcklmWSpQQKkoMy9dCWxPfkFBagpQKA3k19oAlIA9"
    "rbzpISxguYABCwwHI1MzWMgugKqD0RSFrLERhQGrwLXjqaQLl8q+uzNKVbWbnvV/e7T90bVfH660tqRfueN+fNppVL9dc/ZmhfmN"
    "Feg3A5i3OqBKOvB5yybNhChvUewrBS4GhgP2QGccQHW+8o4POcjONyTN+ZkWRDmfUscDnc8OdUeANyOTLjNqpgXlSRDmZECABnA+"
    "hWdhdG2gJLkAmui4ULQB/YiUQNH1gaK7AxosrCj6TJkYIJGPrgUUxNi1fAFqMYRoYWUDCbEA4VUgvZkZxAMAZgcLjQ=="
)


def at(epoch: int, step: int = 0) -> Checkpoint:
    return Checkpoint(epoch, step, 10, {"history": [{"loss": 0.1 + 0.2}], "best": float("inf")}, arrays=_ARRAYS)


def test_what_is_read_is_what_was_written_to_the_bit(tmp_path: Path) -> None:
    path = save(tmp_path / "new", at(4, 7))
    assert path.name == "step-0000000047.npz"
    found = load(path)
    assert (found.epoch, found.step, found.steps_per_epoch, found.global_step) == (4, 7, 10, 47)
    assert found.facts == {"history": [{"loss": 0.30000000000000004}], "best": float("inf")}
    assert [(a.dtype, a.shape, a.tobytes()) for a in found.arrays] == [(a.dtype, a.shape, a.tobytes()) for a in _ARRAYS]
    assert found.describe() == "step 47 (epoch 5, step 7 of 10)"


def test_the_last_two_are_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        save(tmp_path, at(epoch))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-0000000030.npz", "step-0000000040.npz"]


@pytest.mark.parametrize("damage", ["cut to 10 bytes", "empty", "a bit flipped", "a file of another kind", "a folder"])
def test_a_damaged_newest_one_falls_back_with_a_line(tmp_path: Path, damage: str) -> None:
    save(tmp_path, at(1))
    newest = save(tmp_path, at(2))
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
    save(tmp_path, at(2))
    assert newest_good(tmp_path, lines.append) is not None
    assert len(lines) == 1, "the damaged one is set aside"
    assert len(list(tmp_path.glob("step-*.npz"))) == 2


@pytest.mark.parametrize("member", ["0", "facts"])
def test_content_that_is_not_the_digests_is_noticed(tmp_path: Path, member: str) -> None:
    """The zip's own CRC would not notice a file that was put together from two."""
    path = save(tmp_path, at(1))
    with np.load(path) as archive:
        content = dict(archive)
    with np.load(save(tmp_path, at(2, 3))) as archive:
        content[member] = archive[member] if member == "facts" else archive[member] + 1
    np.savez(path, **content)
    with pytest.raises(DamagedCheckpointError, match="digest"):
        load(path)


def test_none_that_is_good_is_none(tmp_path: Path) -> None:
    assert newest_good(tmp_path / "no folder", print) is None
    (tmp_path / "step-0000000001.npz").write_bytes(b"PK")
    assert newest_good(tmp_path, lambda _: None) is None


def test_a_full_disk_leaves_the_earlier_ones_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, at(1))

    def full(path: Path, **arrays: object) -> None:
        path.write_bytes(b"PK half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, at(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000010.npz"]


def test_a_run_folder_that_was_deleted_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "run" / "checkpoints", at(1))
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "run" / "summary.json", {})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(TfmpError, match="the run folder is gone"):
        folder.require()
    assert list(tmp_path.iterdir()) == []
    folder.path.mkdir()
    folder.config.touch()
    folder.require()


def bits(checkpoint: Checkpoint) -> list[Any]:
    return [(array.dtype, array.shape, array.tobytes()) for array in checkpoint.arrays]


@pytest.fixture
def no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if an array is decoded, as nothing but ``facts`` and ``sha256`` may be in the launcher."""
    read = format_module._read

    def header_only(archive: zipfile.ZipFile, name: str) -> Any:
        assert name in ("facts", "sha256"), f"array {name} was decoded"
        return read(archive, name)

    monkeypatch.setattr(format_module, "_read", header_only)
    monkeypatch.setattr(np, "load", None)


class CountingHash:
    """Counts the bytes that are hashed by all of them."""

    hashed_bytes = 0
    sha256 = hashlib.sha256

    def __init__(self, data: bytes = b"") -> None:
        self._hash = CountingHash.sha256()
        self.update(data)

    def update(self, data: Any) -> None:
        CountingHash.hashed_bytes += memoryview(data).nbytes
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.digest()


@pytest.mark.usefixtures("no_arrays")
def test_the_newest_good_one_is_found_without_decoding_an_array(tmp_path: Path) -> None:
    save(tmp_path, at(1))
    path = save(tmp_path, at(2, 3))
    found = newest_good(tmp_path, print)
    facts = {"history": [{"loss": 0.30000000000000004}], "best": float("inf")}
    assert found == (path, CheckpointHeader(2, 3, 10, facts, peek(path).digest))
    assert found[1].describe() == "step 23 (epoch 3, step 3 of 10)"


def test_a_restart_hashes_once_and_each_worker_reads_the_arrays_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher and three workers."""
    big = np.arange(1 << 20, dtype=np.float32)
    path = save(tmp_path, Checkpoint(1, 0, 10, arrays=[big]))
    reads: list[str] = []
    read = format_module._read

    def counting(archive: zipfile.ZipFile, name: str) -> Any:
        reads.append(name)
        return read(archive, name)

    monkeypatch.setattr(format_module, "_read", counting)
    monkeypatch.setattr("hashlib.sha256", CountingHash)
    monkeypatch.setattr(CountingHash, "hashed_bytes", 0)
    chosen = newest_good(tmp_path, print)
    assert chosen is not None
    once = CountingHash.hashed_bytes
    assert big.nbytes < once < big.nbytes + 200
    for _ in range(3):
        assert bits(load(path, verified=chosen[1].digest)) == [(big.dtype, big.shape, big.tobytes())]
    assert CountingHash.hashed_bytes == once
    assert [name for name in reads if name.isdecimal()] == ["0", "0", "0"]


def test_a_big_checkpoint_is_verified_in_small_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = save(tmp_path, Checkpoint(1, 0, 10, arrays=[np.zeros(8 << 20, np.float32)]))  # 32 MiB
    tracemalloc.start()
    try:
        verify(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("member", ["0", "1", "2", "3", "facts", "sha256"])
@pytest.mark.parametrize("where", [0, 10, 40, 127, -1], ids=["magic", "length", "header", "end of header", "last byte"])
def test_a_flipped_bit_of_any_member_falls_back(tmp_path: Path, member: str, where: int) -> None:
    save(tmp_path, at(1))
    newest = save(tmp_path, at(2))
    digest = peek(newest).digest
    data = bytearray(newest.read_bytes())
    with zipfile.ZipFile(newest) as archive:
        info = archive.getinfo(f"{member}.npy")
        name_bytes, extra_bytes = (int.from_bytes(data[info.header_offset + at :][:2], "little") for at in (26, 28))
    begin = info.header_offset + 30 + name_bytes + extra_bytes
    data[begin + where % info.file_size] ^= 4
    newest.write_bytes(data)
    for read in (verify, load, lambda path: load(path, verified=digest)):
        with pytest.raises(DamagedCheckpointError):
            read(newest)
    falls_back(tmp_path, newest)


@pytest.mark.parametrize("part", [0.0, 0.01, 0.2, 0.5, 0.8, 0.99])
def test_a_truncated_one_falls_back(tmp_path: Path, part: float) -> None:
    save(tmp_path, at(1))
    newest = save(tmp_path, at(2))
    newest.write_bytes(newest.read_bytes()[: int(newest.stat().st_size * part)])
    falls_back(tmp_path, newest)


def falls_back(folder: Path, newest: Path) -> None:
    lines: list[str] = []
    found = newest_good(folder, lines.append)
    assert found is not None
    assert found[0].name == "step-0000000010.npz"
    assert len(lines) == 1
    assert lines[0].startswith(f"warning: checkpoint {newest.name} is damaged: it")
    assert lines[0].endswith("; falling back to the one before")


def test_no_byte_of_the_file_can_change_the_numbers(tmp_path: Path) -> None:
    """Also not those of zip's own records: refused, or read as it was written."""
    path = save(tmp_path, at(1))
    whole, data = load(path), path.read_bytes()
    readers: list[Callable[[Path], CheckpointHeader]] = [verify, load]
    for position in range(0, len(data), 3):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        for read in readers:
            try:
                found = read(path)
            except DamagedCheckpointError:
                continue
            assert (found.facts, found.digest) == (whole.facts, whole.digest), position
            assert not isinstance(found, Checkpoint) or bits(found) == bits(whole), position


def test_a_worker_refuses_another_checkpoint_than_was_verified(tmp_path: Path) -> None:
    path = save(tmp_path, at(1))
    digest = verify(path).digest
    assert bits(load(path, verified=digest)) == bits(at(1))
    path.write_bytes(save(tmp_path / "other", at(2)).read_bytes())
    with pytest.raises(DamagedCheckpointError, match="digest does not match"):
        load(path, verified=digest)


def test_a_checkpoint_of_version_0_1_is_read_and_written_alike(tmp_path: Path) -> None:
    path = tmp_path / "step-0000000013.npz"
    path.write_bytes(zlib.decompress(base64.b64decode(_WRITTEN_BY_0_1)))
    header = verify(path)
    assert (header.global_step, header.facts["collective"]) == (13, "ring")
    assert header.digest == "b8e519440a24bedd9875252b82e68ff6e2b7e2d6faf0d4858467d4dc47c796cb"
    found = load(path)
    assert bits(found) == bits(Checkpoint(0, 0, 1, arrays=[np.array([1.5, -2.0], np.float32), np.array(7, np.int64)]))
    with np.load(path) as old, np.load(save(tmp_path / "new", found)) as new:
        assert old.files == new.files == ["facts", "sha256", "0", "1"]
        assert [old[name].tobytes() for name in old.files] == [new[name].tobytes() for name in new.files]
