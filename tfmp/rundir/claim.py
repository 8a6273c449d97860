"""Creates the run folder, and makes sure that two runs never share one."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tfmp.errors import UsageError
from tfmp.rundir.layout import RunFolder

_TRIES = 100


def default_run_dir(name: str | None, config_file: Path | None, dataset: str, now: datetime) -> Path:
    """``runs/<date>-<time>-<name>``: see :func:`run_name`."""
    label = re.sub(r"[^\w.-]+", "-", run_name(name, config_file, dataset))
    return Path("runs") / f"{now:%Y%m%d-%H%M%S}-{label}"


def run_name(name: str | None, config_file: Path | None, dataset: str) -> str:
    """The name of the run: ``run.name``, else the stem of its file, else the data set."""
    return name or (config_file.stem if config_file else dataset)


def claim_run_folder(wanted: Path | None, default: Callable[[], Path], config_yaml: str) -> RunFolder:
    """Create the run folder and ``config.yaml`` in it; the run that creates that file owns the folder.

    Args:
        wanted: The folder that the user named; it may exist, but not hold a run.
        default: Returns a folder if the user named none; a number is added if it is taken.
        config_yaml: The fully resolved configuration.

    Raises:
        UsageError: The folder already holds a run, or cannot be created or written.
    """
    if wanted is not None:
        if _claim(wanted, config_yaml):
            return RunFolder(wanted)
        raise UsageError(
            "this folder already holds a run, which is never overwritten",
            where=str(wanted),
            hint="choose another --run-dir, or remove the folder first",
        )
    base = default()
    for attempt in range(1, _TRIES):
        folder = base if attempt == 1 else base.with_name(f"{base.name}-{attempt}")
        if _claim(folder, config_yaml):
            return RunFolder(folder)
    raise UsageError(f"expected a free name, found {_TRIES - 1} runs", where=str(base), hint="give --run-dir")


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Keep other launchers out of a run folder. The lock ends with this process, however it ends.

    Raises:
        UsageError: Another launcher uses it.
    """
    fd = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = "wait until it ends, or stop it; `lsof +D` on the folder names it"
            raise UsageError("another tfmp is running in this folder", where=str(folder.path), hint=hint) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(fd)


def _claim(folder: Path, config_yaml: str) -> bool:
    target = folder / "config.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".config.{os.getpid()}.tmp"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(config_yaml)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, target)  # atomic, unlike open; fails if another run was first
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        if target.exists():
            return False
        hint = "choose another --run-dir"
        raise UsageError("expected a folder, found a file", where=str(folder), hint=hint) from None
    except OSError as error:
        raise UsageError(
            f"the run folder cannot be written: {error.strerror}", where=str(folder), hint="choose another --run-dir"
        ) from error
    return True
