"""The run folder: where each file is, and how it is written so that a reader never sees half of one.

Both sides use it: the launcher writes the small files, the chief the model and its checkpoints.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfmp.errors import TfmpError


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path

    @property
    def config(self) -> Path:
        """The fully resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """A JSON line an epoch."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """A JSON line for each start, exit and checkpoint."""
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        """What the run came to."""
        return self.path / "summary.json"

    @property
    def failure(self) -> Path:
        """What went wrong, where it failed."""
        return self.path / "failure.json"

    @property
    def model(self) -> Path:
        """The trained model, loadable by plain Keras."""
        return self.path / "model.keras"

    @property
    def checkpoints(self) -> Path:
        """The last checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """One folder an attempt."""
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files, one in each of ``train`` and ``validation``."""
        return self.path / "tensorboard"

    def log(self, attempt: int, rank: int) -> Path:
        """Everything worker ``rank`` printed in an attempt (both from 0)."""
        return self.logs / f"attempt-{attempt}" / f"worker-{rank}.log"

    def next_attempt(self) -> int:
        """The number of the next attempt: one more than the last that has logs."""
        numbers = [int(one.name[8:]) for one in self.logs.glob("attempt-*") if one.name[8:].isdecimal()]
        return max(numbers, default=-1) + 1

    def require(self) -> None:
        """Be there still, before something is written into it.

        Raises:
            TfmpError: It was deleted or moved.
        """
        if not self.config.exists():
            what = "the run folder is gone: it was deleted or moved while the run went on"
            raise TfmpError(what, where=str(self.path), hint="start again, or put it back and use --resume")

    def remove_temporaries(self) -> None:
        """Remove what killed writers left half written. Only while no worker of the run is alive."""
        for folder in (self.path, self.checkpoints):
            for leftover in folder.glob(".*.tmp*"):
                with suppress(OSError):
                    leftover.unlink()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, of the same suffix; on success it takes the place of ``path``.

    The file is on disk before it is renamed; on failure nothing is left of it and ``path`` is what it was. The folder
    must be there: a run folder that was deleted is not to be half made again.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; what is not a finite number becomes ``null``."""
    write_text(path, json.dumps(finite(value), indent=2) + "\n")


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line in one write."""
    line = json.dumps(finite(value)) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())


def finite(value: Any) -> Any:
    """``value`` with NaN and infinities, which JSON does not have, replaced by ``None``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value
