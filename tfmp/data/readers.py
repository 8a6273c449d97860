"""Readers of the two file formats: IDX, in which MNIST is published, and NumPy archives.

Layout of an IDX file, plain or compressed with gzip (all big-endian): two zero bytes, a type code, the number of
dimensions, one unsigned 32-bit length for each dimension, then the elements in C order.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tfmp.errors import UsageError

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_DIMENSIONS = 32  # numpy 1.x cannot hold more
_CHUNK_BYTES = 1 << 20
# DEFLATE cannot expand by more than this factor (zlib's technical notes), so a header that promises more is wrong.
_DEFLATE_MAX_RATIO = 1032


def read_idx(path: str | os.PathLike[str], *, sha256: str | None = None) -> NDArray[Any]:
    """Read one IDX file.

    The first bytes of the file, not its name, decide whether it is compressed.

    Args:
        path: The file.
        sha256: Expected SHA-256 (hex) of the uncompressed file; ``None`` to skip the check.

    Returns:
        A writable array in the machine's byte order, with the file's shape.

    Raises:
        UsageError: The file cannot be read, is not an IDX file, does not have the length in its header, is a damaged
            gzip file, or has another checksum.
    """
    path = Path(path)
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not compressed:
                return _read_stream(raw, path, file_bytes, compressed=False, sha256=sha256)
            with gzip.GzipFile(fileobj=raw, mode="rb") as stream:
                return _read_stream(stream, path, file_bytes, compressed=True, sha256=sha256)
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(
            f"expected a sound gzip file, received damaged data ({error})",
            where=str(path),
            hint="download the file again and verify its checksum",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read the data file: {error.strerror or error}", where=str(path)) from None


def _read_stream(
    stream: IO[bytes] | gzip.GzipFile, path: Path, file_bytes: int, *, compressed: bool, sha256: str | None
) -> NDArray[Any]:
    digest = hashlib.sha256()
    magic = _read_header(stream, 4, path)
    if magic[:2] != b"\0\0" or magic[2] not in _DTYPES:
        codes = ", ".join(f"{code:02x}" for code in _DTYPES)
        raise UsageError(
            f"expected an IDX header (00 00, a type code of {codes}, the number of dimensions), "
            f"received {magic.hex(' ')}",
            where=str(path),
        )
    if not 1 <= magic[3] <= _MAX_DIMENSIONS:
        raise UsageError(
            f"expected 1 to {_MAX_DIMENSIONS} dimensions in the IDX header, received {magic[3]}", where=str(path)
        )
    lengths = _read_header(stream, 4 * magic[3], path)
    shape = struct.unpack(f">{magic[3]}I", lengths)
    dtype = np.dtype(_DTYPES[magic[2]])
    header_bytes = len(magic) + len(lengths)
    body_bytes = math.prod(shape) * dtype.itemsize
    _check_plausible(header_bytes + body_bytes, file_bytes, shape, path, compressed=compressed)

    body = _read_body(stream, body_bytes, header_bytes, path)
    if sha256 is not None:
        for part in (magic, lengths, body):
            digest.update(part)
        if digest.hexdigest() != sha256:
            raise UsageError(
                f"expected SHA-256 {sha256} (uncompressed), received {digest.hexdigest()}",
                where=str(path),
                hint="the file is not the original: download or install it again",
            )
    array = np.frombuffer(body, dtype=dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _check_plausible(
    expected_bytes: int, file_bytes: int, shape: tuple[int, ...], path: Path, *, compressed: bool
) -> None:
    """Refuse a length that the file cannot hold, before allocating memory for it."""
    dims = " x ".join(str(length) for length in shape)
    if compressed:
        if expected_bytes > file_bytes * _DEFLATE_MAX_RATIO:
            raise UsageError(
                f"expected {expected_bytes:,} bytes ({dims}), more than {file_bytes:,} bytes of gzip can hold: "
                "the file is truncated or its header damaged",
                where=str(path),
            )
    elif expected_bytes != file_bytes:
        state = "truncated" if file_bytes < expected_bytes else "too long"
        raise UsageError(
            f"expected {expected_bytes:,} bytes ({dims}), received {file_bytes:,}: the file is {state}", where=str(path)
        )


def _read_header(stream: IO[bytes] | gzip.GzipFile, count: int, path: Path) -> bytes:
    try:
        data = stream.read(count)
    except EOFError:
        data = b""
    if len(data) != count:
        raise UsageError("expected an IDX header, received a file that ends inside it", where=str(path))
    return data


def _read_body(stream: IO[bytes] | gzip.GzipFile, count: int, header_bytes: int, path: Path) -> bytearray:
    """Read exactly ``count`` bytes and the end of the file; memory grows only with what is there."""
    body = bytearray()
    try:
        # One byte more than expected, to detect an overlong file and to make gzip verify its trailing checksum.
        while len(body) <= count:
            chunk = stream.read(min(_CHUNK_BYTES, count + 1 - len(body)))
            if not chunk:
                break
            body += chunk
    except EOFError:
        raise UsageError(
            f"expected {header_bytes + count:,} bytes (uncompressed), received a gzip file that ends after "
            f"about {header_bytes + len(body):,}: the file is truncated",
            where=str(path),
            hint="download the file again",
        ) from None
    if len(body) != count:
        received = "more" if len(body) > count else f"{header_bytes + len(body):,}"
        raise UsageError(
            f"expected {header_bytes + count:,} bytes (uncompressed), received {received}", where=str(path)
        )
    return body


def read_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read the four arrays of an archive with the keys that Keras uses (:data:`NPZ_KEYS`).

    Pickled (object) arrays are refused: unpickling runs code from the file.

    Args:
        path: The ``.npz`` file.

    Returns:
        The arrays by key, as stored; other keys of the file are not read.

    Raises:
        UsageError: The file cannot be read, is not a valid archive, lacks a key, or holds a pickle.
    """
    path = Path(path)
    try:
        if not path.is_file():
            reason = "it is not a regular file" if path.exists() else "no such file"
            raise UsageError(f"cannot read the data file: {reason}", where=str(path))
        if not zipfile.is_zipfile(path):
            raise UsageError(
                "expected an .npz archive, received another format or a truncated file",
                where=str(path),
                hint="write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)",
            )
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in NPZ_KEYS if key not in archive.files]
            if missing:
                found = ", ".join(archive.files[:20]) or "none"
                raise UsageError(f"expected the key {missing[0]}, received the keys {found}", where=str(path))
            return {key: _member(archive, key, path) for key in NPZ_KEYS}
    except OSError as error:
        raise UsageError(f"cannot read the data file: {error.strerror or error}", where=str(path)) from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"expected a sound .npz archive, received: {error}", where=str(path)) from None


def _member(archive: Any, key: str, path: Path) -> NDArray[Any]:
    where = f"{key} in {path}"
    try:
        array: object = archive[key]
    except MemoryError:
        raise UsageError("expected an array that fits into memory, received a larger one", where=where) from None
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        if "pickle" in str(error):
            raise UsageError(
                "expected an array of numbers, received Python objects (a pickle)",
                where=where,
                hint="store it with a numeric type, for example array.astype('uint8')",
            ) from None
        raise UsageError(f"expected a sound array, received damaged data ({error})", where=where) from None
    if not isinstance(array, np.ndarray):  # numpy returns a member that is not a .npy file as bytes
        raise UsageError("expected an array, received other data", where=where)
    return array
