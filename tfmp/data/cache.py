"""The machine's decoded copy of a data set: made once, mapped by every worker of every run.

One lock protects the whole cache folder. Its holder is the only writer, so every temporary file that it finds belongs
to a writer that died.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tfmp.data.entry import (
    FORMAT_VERSION,
    CachedDataset,
    DamagedEntryError,
    DatasetHeader,
    load_entry,
    open_cached,
    remove_temporaries,
    write_entry,
)
from tfmp.data.factory import make_entry
from tfmp.data.sources import DataSettings, PathText, find_source
from tfmp.errors import TfmpError
from tfmp.text import noop

__all__ = ["CachedDataset", "DatasetHeader", "cache_directory", "open_cached", "prepare"]

CACHE_VARIABLE = "TFMP_CACHE_DIR"
_LOCK_TIMEOUT_S = 600.0


def cache_directory(cache_dir: PathText | None) -> Path:
    """Return the cache folder: ``cache_dir``, else ``TFMP_CACHE_DIR`` (if not empty), else the user's cache folder.

    Args:
        cache_dir: ``data.cache_dir`` of the configuration.
    """
    chosen = cache_dir or os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("tfmp", appauthor=False))


def prepare(
    data: DataSettings,
    notice: Callable[[str], None] = noop,
) -> CachedDataset:
    """Make sure that the decoded data set is on this machine. The launcher calls it before any worker starts.

    Args:
        data: The configuration's ``data`` section.
        notice: Called with one line about a damaged entry that is rebuilt, a folder that cannot be used, or a wait for
            another process.

    Returns:
        The entry. If the cache folder cannot be used, it is in a private temporary folder, which is removed when this
        process exits.

    Raises:
        UsageError: The source is missing or damaged, or its arrays do not match. Nothing was written.
        TfmpError: It cannot be written anywhere.
    """
    if data.factory is not None:
        # What the function reads is not known, so nothing is kept for another run.
        return make_entry(data.factory, _private_directory(), notice)
    source = find_source(data)
    stem = f"{source.name}-v{FORMAT_VERSION}-{source.key[:32]}"
    directory = cache_directory(data.cache_dir)
    path = directory / f"{stem}.json"
    found = _look_up(path)
    if isinstance(found, CachedDataset):
        return found
    decode = lru_cache(maxsize=1)(source.load)
    try:
        with _locked(directory, notice):
            found = _look_up(path)
            if isinstance(found, CachedDataset):
                return found
            if found:
                notice(f"cache entry {path} is damaged ({found}): rebuilding it")
            remove_temporaries(directory)
            return write_entry(directory, stem, decode())
    except (OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks
        reason = getattr(error, "strerror", None) or error
        notice(f"cache folder {directory} cannot be used ({reason}): using a private temporary folder for this run")
    private = _private_directory()
    try:
        return write_entry(private, stem, decode())
    except OSError as error:
        shutil.rmtree(private, ignore_errors=True)
        raise TfmpError(
            f"cannot write the decoded data set: {error.strerror or error}",
            where=str(private),
            hint=f"free some space, or set {CACHE_VARIABLE} to a folder on another disk",
        ) from None


def _look_up(path: Path) -> CachedDataset | str | None:
    """Return the entry, the reason why it cannot be used, or ``None`` if there is none."""
    try:
        return load_entry(path, verify=True)
    except FileNotFoundError:
        return None
    except DamagedEntryError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)


@contextmanager
def _locked(directory: Path, notice: Callable[[str], None]) -> Iterator[None]:
    # Imported here: needed only to make an entry, and it imports asyncio.
    from filelock import FileLock, Timeout

    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / "cache.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        notice(f"another process is preparing a data set in {directory}: waiting for it")
        try:
            lock.acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout:
            raise OSError(f"still locked by another process after {_LOCK_TIMEOUT_S:g} s") from None
    try:
        yield
    finally:
        lock.release()


def _private_directory() -> Path:
    try:
        directory = Path(tempfile.mkdtemp(prefix="tfmp-data-"))
    except OSError as error:
        raise TfmpError(
            f"cannot make a temporary folder for the data set: {error.strerror or error}",
            where=tempfile.gettempdir() if tempfile.tempdir else "temporary folder",
            hint=f"set {CACHE_VARIABLE} or TMPDIR to a folder that can be written",
        ) from None
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child inherits this hook, but does not own the folder
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory
