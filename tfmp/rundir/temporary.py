"""A private folder for the temporary files of one attempt, and the removal of abandoned ones.

Workers end by ``os._exit``, without Python's clean-up: their temporary files are removed with this folder. A killed
launcher cannot remove its own folder: the next launcher does. Each user of a folder holds a lock on a file in it, which
ends with the process. (Process ids would not do: launchers in containers may share the folder for temporary files, but
each sees only its own processes.)
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"tfmp-\d+-\w+")
_LOCK = ".in-use"
#: A folder without a lock file is abandoned once it is older than this.
_YOUNG_S = 60.0


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create the folder (mode 0700) and remove it at the end; remove those of dead launchers.

    Raises:
        OSError: There is no place for temporary files.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=f"tfmp-{os.getpid()}-", ignore_cleanup_errors=True) as folder,
        in_use(Path(folder)),
    ):
        yield Path(folder)


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep other launchers from removing the folder; several may use it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # a file system without locks: nobody will remove it
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob("tfmp-*-*"):
        with suppress(OSError):
            if _NAME.fullmatch(folder.name) and folder.lstat().st_uid == os.getuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - folder.lstat().st_mtime > _YOUNG_S
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
