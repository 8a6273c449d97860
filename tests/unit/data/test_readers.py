"""IDX files and NPZ archives: every element type, and every kind of damage named with its file."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfmp.data.readers import read_idx, read_npz
from tfmp.errors import UsageError

PIXELS = bytes(range(12))
IMAGES = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
LABELS = np.array([0, 2, 1], dtype=np.uint8)


def header(code: int, *dims: int) -> bytes:
    return bytes([0, 0, code, len(dims)]) + struct.pack(f">{len(dims)}I", *dims)


def write(folder: Path, data: bytes, name: str = "data") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def failure(path: Path, sha256: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read_idx(path, sha256=sha256)
    assert caught.value.exit_code == 2
    assert caught.value.where == str(path)
    return caught.value.what


@pytest.mark.parametrize(
    ("code", "raw", "dtype", "values"),
    [
        (0x08, b"\x01\xff", np.uint8, [1, 255]),
        (0x09, b"\x01\xff", np.int8, [1, -1]),
        (0x0B, b"\x01\x02\xff\xfe", np.int16, [258, -2]),
        (0x0C, b"\x00\x00\x01\x00\xff\xff\xff\xff", np.int32, [256, -1]),
        (0x0D, struct.pack(">2f", 1.5, -2.0), np.float32, [1.5, -2.0]),
        (0x0E, struct.pack(">2d", 0.1, -2.0), np.float64, [0.1, -2.0]),
    ],
)
def test_every_element_type_is_read_in_the_machines_byte_order(
    tmp_path: Path, code: int, raw: bytes, dtype: type, values: list[float]
) -> None:
    array = read_idx(write(tmp_path, header(code, 2) + raw))
    assert array.dtype == np.dtype(dtype)
    assert array.dtype.isnative
    assert array.flags.writeable
    assert array.tolist() == values


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize("compress", [False, True])
def test_compression_is_seen_in_the_bytes_not_in_the_name(tmp_path: Path, name: str, compress: bool) -> None:
    data = header(0x08, 3, 2, 2) + PIXELS
    path = write(tmp_path, gzip.compress(data) if compress else data, name)
    assert read_idx(path).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]


def test_truncated_and_overlong_plain_files_name_both_lengths(tmp_path: Path) -> None:
    data = header(0x08, 3, 2, 2) + PIXELS
    assert failure(write(tmp_path, data[:-1])) == "expected 28 bytes (3 x 2 x 2), received 27: the file is truncated"
    assert failure(write(tmp_path, data + b"x")) == "expected 28 bytes (3 x 2 x 2), received 29: the file is too long"


def test_a_gzip_file_that_holds_too_little_or_too_much_is_refused(tmp_path: Path) -> None:
    data = header(0x08, 3, 2, 2) + PIXELS
    assert failure(write(tmp_path, gzip.compress(data[:-1]))) == "expected 28 bytes (uncompressed), received 27"
    assert failure(write(tmp_path, gzip.compress(data + b"x"))) == "expected 28 bytes (uncompressed), received more"


def test_a_gzip_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(4000)
    whole = gzip.compress(header(0x08, 4000) + noise)
    for length in (3, 12, 2000, len(whole) - 9, len(whole) - 1):
        what = failure(write(tmp_path, whole[:length]))
        assert "expected" in what
        assert "received" in what
    assert "expected 4,008 bytes" in failure(write(tmp_path, whole[:2000]))


def test_a_flipped_byte_in_a_gzip_file_is_found(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(header(0x08, 4000) + np.random.default_rng(0).bytes(4000)))
    for position in (12, 3000, len(whole) - 6):
        damaged = whole.copy()
        damaged[position] ^= 0x55
        assert "expected" in failure(write(tmp_path, bytes(damaged)))


def test_a_header_that_promises_terabytes_takes_no_memory(tmp_path: Path) -> None:
    data = header(0x0E, 2**31, 2**31, 2**31) + bytes(100)
    promised = "expected 79,228,162,514,264,337,593,543,950,352 bytes (2147483648 x 2147483648 x 2147483648)"
    assert failure(write(tmp_path, data)) == f"{promised}, received 116: the file is truncated"
    packed = gzip.compress(data)
    assert failure(write(tmp_path, packed)).startswith(f"{promised}, more than {len(packed)} bytes of gzip can hold")


@pytest.mark.parametrize(
    ("data", "received"),
    [
        (b"", "a file that ends inside it"),
        (b"\0\0\x08", "a file that ends inside it"),
        (header(0x08, 3, 2)[:-1], "a file that ends inside it"),
        (b"PK\x03\x04....", "received 50 4b 03 04"),
        (header(0x0A, 1) + b"x", "received 00 00 0a 01"),
        (header(0x08) + b"x", "received 0"),
        (bytes([0, 0, 8, 33]) + bytes(4 * 33), "received 33"),
    ],
)
def test_other_files_are_not_taken_for_idx(tmp_path: Path, data: bytes, received: str) -> None:
    assert received in failure(write(tmp_path, data))


def test_checksum_is_that_of_the_uncompressed_file(tmp_path: Path) -> None:
    data = header(0x08, 12) + PIXELS
    path = write(tmp_path, gzip.compress(data))
    right = hashlib.sha256(data).hexdigest()
    assert read_idx(path, sha256=right).tolist() == list(range(12))
    assert failure(path, sha256="0" * 64) == f"expected SHA-256 {'0' * 64} (uncompressed), received {right}"


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    assert failure(tmp_path / "none") == "cannot read the data file: No such file or directory"
    assert failure(tmp_path) == "cannot read the data file: Is a directory"


def npz_failure(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_npz(path)
    assert str(path) in (caught.value.where or "")
    return caught.value


def test_npz_holds_the_four_keys_of_keras(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS, more=LABELS)
    arrays = read_npz(path)
    assert sorted(arrays) == ["x_test", "x_train", "y_test", "y_train"]
    assert arrays["x_train"].tolist() == IMAGES.tolist()


def test_a_missing_npz_key_names_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_train=IMAGES, labels=LABELS)
    assert npz_failure(path).what == "expected the key y_train, received the keys x_train, labels"


def test_a_pickle_in_an_npz_is_refused_without_running_it(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Payload:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (marker,))  # type: ignore[return-value]

    path = tmp_path / "data.npz"
    np.savez(path, x_train=np.array([Payload()], dtype=object), y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    assert "Python objects" in npz_failure(path).what
    assert not marker.exists()


def test_damaged_and_foreign_archives_are_named(tmp_path: Path) -> None:
    whole = tmp_path / "data.npz"
    np.savez(whole, x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    data = whole.read_bytes()
    path = tmp_path / "bad.npz"
    path.write_bytes(data[: len(data) // 2])
    assert "another format or a truncated file" in npz_failure(path).what
    flipped = bytearray(data)
    flipped[data.index(IMAGES.tobytes()) + 3] ^= 1
    path.write_bytes(flipped)
    assert "damaged" in npz_failure(path).what
    np.save(tmp_path / "one.npy", IMAGES)
    assert "another format" in npz_failure(tmp_path / "one.npy").what
    assert "no such file" in npz_failure(tmp_path / "none.npz").what
    assert "not a regular file" in npz_failure(tmp_path).what


def test_an_npz_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(key, b"text")
    assert npz_failure(path).what == "expected an array, received other data"
