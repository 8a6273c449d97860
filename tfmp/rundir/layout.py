"""The run folder: the path of each file, and how files are written so that a reader never sees half of one.

The launcher writes the small files, the chief the model and the checkpoints.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfmp.errors import TfmpError


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run folder."""

    path: Path

    @property
    def config(self) -> Path:
        """The fully resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """A JSON line for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """A JSON line for each start, exit and checkpoint."""
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        """The results of the run."""
        return self.path / "summary.json"

    @property
    def failure(self) -> Path:
        """The reason, if the run failed."""
        return self.path / "failure.json"

    @property
    def model(self) -> Path:
        """The trained model, loadable by plain Keras."""
        return self.path / "model.keras"

    @property
    def checkpoints(self) -> Path:
        """The folder of the last checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """The folder of logs, with one folder for each attempt."""
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard event files, one in each of ``train`` and ``validation``."""
        return self.path / "tensorboard"

    def log(self, attempt: int, rank: int) -> Path:
        """All output of worker ``rank`` in an attempt (both from 0)."""
        return self.logs / f"attempt-{attempt}" / f"worker-{rank}.log"

    def next_attempt(self) -> int:
        """The number of the next attempt: one more than the last that has logs."""
        numbers = [int(folder.name[8:]) for folder in self.logs.glob("attempt-*") if folder.name[8:].isdecimal()]
        return max(numbers, default=-1) + 1

    def require(self) -> None:
        """Check that the folder still exists, before something is written into it.

        Raises:
            TfmpError: It was deleted or moved.
        """
        if not self.config.exists():
            what = "the run folder is gone: it was deleted or moved during the run"
            raise TfmpError(what, where=str(self.path), hint="start again, or put it back and use --resume")

    def remove_temporaries(self) -> None:
        """Remove the half-written files of killed writers. Only while no worker of the run is alive."""
        for folder in (self.path, self.checkpoints):
            for leftover in folder.glob(".*.tmp*"):
                with suppress(OSError):
                    leftover.unlink()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, with the same suffix; on success it replaces ``path``.

    The file is on the disk before it is renamed. On failure it is removed, and ``path`` is unchanged. The folder must
    exist: a run folder that was deleted is not created again.
    """
    # Writers in containers may share a folder and have the same process id.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; NaN and infinities become ``null``."""
    write_text(path, json.dumps(finite(value), indent=2) + "\n")


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line in one write."""
    line = json.dumps(finite(value)) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by ``None``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
