"""A private temporary folder for what the workers of one attempt leave behind, and the end of abandoned ones.

Workers end by ``os._exit``, so nothing of Python's cleaning up happens in them: TensorFlow alone leaves some thirty
files of generated code a worker. They go with this folder. A launcher that was killed cannot remove its own: the next
one does.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"tfmp-(\d+)-\w+")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make the folder (mode 0700) and remove it at the end; remove those of launchers that are dead.

    Raises:
        OSError: There is no place for temporary files.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"tfmp-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob("tfmp-*-*"):
        match = _NAME.fullmatch(folder.name)
        with suppress(OSError):
            if match and folder.lstat().st_uid == os.getuid() and not _is_alive(int(match[1])):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
