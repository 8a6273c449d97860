"""A private temporary folder for what the workers of one attempt leave behind, and the end of abandoned ones.

Workers end by ``os._exit``, so nothing of Python's cleaning up happens in them: TensorFlow alone leaves some thirty
files of generated code a worker. They go with this folder. A launcher that was killed cannot remove its own: the next
one does.
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

_NAME = re.compile(r"tfmp-run-\d+-\w+")
_MEETING = re.compile(r"tfmp-(\d+)-\w+")
_OLD_S = 24 * 3600


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make the folder (mode 0700) and remove it at the end; remove those of launchers that are dead.

    Raises:
        OSError: There is no place for temporary files.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    # Under its name only once it is locked: from then on it is looked at by others.
    unnamed = Path(tempfile.mkdtemp(prefix=".tfmp-"))
    folder = unnamed.with_name(f"tfmp-run-{os.getpid()}-{unnamed.name.removeprefix('.tfmp-')}")
    lock = os.open(unnamed, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks: nobody can tell, and nobody will remove it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(folder)
        yield folder
    finally:
        for path in (folder, unnamed):
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders that nobody holds a lock of.

    Not those of process ids that do not exist: a launcher in a container beside this one has a number of its own. That
    is all there is to go by for the meeting places of several launchers, so those must be old too.
    """
    for folder in parent.glob("tfmp-*-*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid():
                continue
            if _NAME.fullmatch(folder.name):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)
            elif match := _MEETING.fullmatch(folder.name):
                old = time.time() - status.st_mtime > _OLD_S
                if old and not Path(f"/proc/{match[1]}").exists():
                    shutil.rmtree(folder, ignore_errors=True)
