"""The decoded copy on disk: whole or not there, shared, and rebuilt when damaged."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tfmp.data.cache import CachedDataset, cache_directory, open_cached, prepare
from tfmp.data.sources import find_source
from tfmp.errors import TfmpError, UsageError


@dataclass(frozen=True)
class Data:
    dataset: str = "idx"
    train_images: Path | None = None
    train_labels: Path | None = None
    validation_images: Path | None = None
    validation_labels: Path | None = None
    path: Path | None = None
    validation_path: Path | None = None
    validation_fraction: float = 0.1
    target: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    image_size: tuple[int, ...] | None = None
    factory: str | None = None
    classes: int | None = None
    cache_dir: Path | None = None


def idx(path: Path, array: np.ndarray, compress: bool = False) -> Path:
    data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if compress else data)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """A data set of 100 and 20 images, 80 KB, with a cache folder that does not exist yet."""
    source = tmp_path / "source"
    source.mkdir()
    rng = np.random.default_rng(1)
    return Data(
        train_images=idx(source / "a", rng.integers(0, 256, (100, 28, 28), dtype=np.uint8)),
        train_labels=idx(source / "b", np.arange(100, dtype=np.uint8) % 7, compress=True),
        validation_images=idx(source / "c", rng.integers(0, 256, (20, 28, 28), dtype=np.uint8)),
        validation_labels=idx(source / "d", np.arange(20, dtype=np.uint8) % 7),
        cache_dir=tmp_path / "cache folder",
    )


def names(folder: Path | None) -> list[str]:
    assert folder is not None
    return sorted(path.suffix for path in folder.iterdir())


def assert_right(entry: CachedDataset, data: Data) -> None:
    arrays = entry.open()
    assert data.train_images is not None
    assert arrays.train.x.tobytes() == data.train_images.read_bytes()[16:]
    assert arrays.validation.y.tolist() == [i % 7 for i in range(20)]
    assert (arrays.classes, arrays.input_shape, len(arrays.train)) == (7, (28, 28), 100)


def test_entry_is_made_once_and_opened_from_its_path_alone(data: Data) -> None:
    notices: list[str] = []
    entry = prepare(data, notices.append)
    made = entry.data_path.stat()
    again = prepare(data, notices.append)
    assert again == entry
    assert again.data_path.stat().st_ino == made.st_ino
    assert notices == []
    assert names(data.cache_dir) == [".bin", ".json", ".lock"]
    assert_right(entry, data)
    assert open_cached(json.loads(json.dumps(str(entry.path)))).train.y.tolist() == [i % 7 for i in range(100)]
    header = entry.header
    assert (header.train_samples, header.validation_samples, header.inputs[0].shape) == (100, 20, (100, 28, 28))
    assert [layout.offset_bytes for layout in header.arrays.values()] == [0, 81920, 86016, 102400]


def test_writing_to_the_arrays_never_reaches_the_file(data: Data) -> None:
    entry = prepare(data)
    arrays = entry.open()
    arrays.train.x[:] = 7
    arrays.train.y[0] = 6
    assert_right(entry, data)


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "header", "header bytes", "header offset"])
def test_damaged_entry_is_rebuilt_with_one_notice(data: Data, damage: str) -> None:
    entry = prepare(data)
    raw = bytearray(entry.data_path.read_bytes())
    if damage == "truncate":
        os.truncate(entry.data_path, 1000)
    elif damage == "flip":
        raw[50_000] ^= 1
        entry.data_path.write_bytes(raw)
    elif damage == "delete":
        entry.data_path.unlink()
    elif damage == "header":
        entry.path.write_text(entry.path.read_text()[:100])
    elif damage == "header bytes":
        entry.path.write_bytes(b"\xff\xfe")
    else:
        text = json.loads(entry.path.read_text())
        text["arrays"]["validation/1"]["offset_bytes"] = 4096 * 4096
        entry.path.write_text(json.dumps(text))
    notices: list[str] = []
    assert_right(prepare(data, notices.append), data)
    assert len(notices) == 1
    assert str(entry.path) in notices[0]
    assert "is damaged" in notices[0]
    assert notices[0].endswith("rebuilding it")
    assert_right(prepare(data, notices.append), data)
    assert len(notices) == 1


def test_workers_see_a_wrong_size_but_skip_the_checksum(data: Data) -> None:
    entry = prepare(data)
    raw = bytearray(entry.data_path.read_bytes())
    raw[0] ^= 1
    entry.data_path.write_bytes(raw)
    assert int(open_cached(entry.path).train.x[0, 0, 0]) == raw[0]
    os.truncate(entry.data_path, 5000)
    with pytest.raises(TfmpError, match=r"expected 102,480 bytes in idx-.*\.bin, received 5,000") as caught:
        open_cached(entry.path)
    assert caught.value.where == str(entry.path)
    with pytest.raises(TfmpError, match="No such file"):
        open_cached(entry.path.with_name("other.json"))


def test_changed_source_files_make_another_entry(data: Data) -> None:
    first = prepare(data)
    assert data.train_labels is not None
    idx(data.train_labels, np.zeros(100, dtype=np.uint8))
    os.utime(data.train_labels, ns=(1, 1))
    second = prepare(data)
    assert second.path != first.path
    assert second.open().train.y.tolist() == [0] * 100
    assert prepare(replace(data, classes=8)).header.classes == 8


def test_unusable_cache_folder_falls_back_to_a_private_one(data: Data, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/tfmp-cache")):
        notices: list[str] = []
        entry = prepare(replace(data, cache_dir=folder), notices.append)
        assert_right(entry, data)
        assert entry.path.parent.stat().st_mode & 0o777 == 0o700
        assert len(notices) == 1
        assert notices[0].startswith(f"cache folder {folder} cannot be used (")
        shutil.rmtree(entry.path.parent)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only folders")
def test_read_only_cache_folder_serves_what_it_has(data: Data) -> None:
    entry = prepare(data)
    assert data.cache_dir is not None
    data.cache_dir.chmod(0o555)
    try:
        assert prepare(data) == entry
        os.truncate(entry.data_path, 10)
        notices: list[str] = []
        assert_right(prepare(data, notices.append), data)
        assert "Permission denied" in notices[-1]
    finally:
        data.cache_dir.chmod(0o755)


def test_full_disk_leaves_nothing_behind(data: Data) -> None:
    # A limit on file size fails the write half-way, like a disk that fills up.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    notices: list[str] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(TfmpError, match="File too large") as caught:
            prepare(data, notices.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "TFMP_CACHE_DIR" in (caught.value.hint or "")
    assert not Path(caught.value.where or "/").exists()
    assert names(data.cache_dir) == [".lock"]
    assert_right(prepare(data), data)


def test_wait_for_a_stuck_maker_is_said_and_bounded(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    assert data.cache_dir is not None
    data.cache_dir.mkdir()
    notices: list[str] = []
    monkeypatch.setattr("tfmp.data.cache._LOCK_TIMEOUT_S", 0.1)
    with FileLock(data.cache_dir / "cache.lock"):
        entry = prepare(data, notices.append)
    assert_right(entry, data)
    assert entry.path.parent != data.cache_dir
    assert notices[0] == f"another process is preparing a data set in {data.cache_dir}: waiting for it"
    assert "still locked by another process after 0.1 s" in notices[1]


def test_cache_folder_is_the_option_then_the_variable_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFMP_CACHE_DIR", "/x")
    assert cache_directory(tmp_path) == tmp_path
    assert cache_directory(None) == Path("/x")
    monkeypatch.setenv("TFMP_CACHE_DIR", "")
    assert cache_directory("~/c") == Path.home() / "c"
    assert cache_directory(None).name == "tfmp"


def test_missing_keys_and_files_are_named(data: Data, tmp_path: Path) -> None:
    for settings, where, what in [
        (replace(data, validation_labels=None), "data.validation_labels", "received none"),
        (replace(data, train_images=tmp_path / "no"), "data.train_images", f"received {tmp_path / 'no'}: No such file"),
        (Data(dataset="npz"), "data.path", "received none"),
        (Data(dataset="cifar"), "data.dataset", "expected mnist, idx, npz, csv or images, received 'cifar'"),
        (Data(dataset="mnist", classes=9), "data.classes", "expected 10 classes for mnist, received 9"),
    ]:
        with pytest.raises(UsageError) as caught:
            prepare(settings)
        assert caught.value.where == where
        assert what in caught.value.what


def test_a_damaged_source_writes_nothing(data: Data) -> None:
    assert data.train_images is not None
    os.truncate(data.train_images, 1000)
    with pytest.raises(UsageError, match="received 1,000: the file is truncated"):
        prepare(data)
    assert names(data.cache_dir) == [".lock"]


def test_npz_is_prepared_like_idx(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    images = np.random.default_rng(0).random((6, 5)).astype(np.float16)
    np.savez(path, x_train=images, y_train=np.arange(6)[:, None], x_test=images[:2], y_test=np.arange(2))
    arrays = prepare(Data(dataset="npz", path=path, cache_dir=tmp_path / "cache")).open()
    assert arrays.train.x.dtype == np.float16
    assert arrays.train.x.tolist() == images.tolist()
    assert (arrays.name, arrays.classes, arrays.validation.y.tolist()) == ("npz", 6, [0, 1])


def test_embedded_mnist_is_the_original() -> None:
    arrays = find_source(Data(dataset="mnist")).load()  # compares the published checksums
    assert arrays.train.x.shape == (60_000, 28, 28)
    assert arrays.validation.x.shape == (10_000, 28, 28)
    assert arrays.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(arrays.validation.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert arrays.classes == 10
