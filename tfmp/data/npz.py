"""Reader for NumPy archives with the keys Keras uses: x_train, y_train, x_test, y_test."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfmp.errors import UsageError

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read the four arrays of a data set.

    Pickled (object) arrays are refused: unpickling runs code that the file brings along.

    Args:
        path: The ``.npz`` file.

    Returns:
        The arrays by key, as stored; other keys of the file are not read.

    Raises:
        UsageError: The file cannot be read, is no sound archive, lacks a key, or holds a pickle.
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
    if not isinstance(array, np.ndarray):  # numpy hands out a member that is no .npy file as bytes
        raise UsageError("expected an array, received other data", where=where)
    return array
