"""Checkpoint files: one file each, written whole, guarded by a digest, the last two kept. No TensorFlow.

Both sides use it: the chief writes, the launcher chooses the newest good one, every worker reads that. The format is
NumPy's ``.npz``: arrays ``0``, ``1``, … beside ``facts`` (JSON) and ``sha256`` (over everything else).
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.errors import TfmpError
from tfmp.rundir.layout import atomic_write

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    # The command line asks for nothing but the names of files; numpy is imported where arrays are.
    Array = Any

FORMAT = 1
KEPT = 2
_PATTERN = "step-*.npz"


class DamagedCheckpointError(TfmpError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training between two steps.

    Attributes:
        epoch: Epochs that are done; the number of the one to go on in, from 0.
        step: Steps of that epoch that are done. All of them: its validation is still to come.
        steps_per_epoch: Steps of an epoch.
        arrays: The values of variables.
        facts: What else there is, as JSON values.
    """

    epoch: int
    step: int
    steps_per_epoch: int
    arrays: Sequence[Array]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def global_step(self) -> int:
        """Steps that are done, of all epochs."""
        return self.epoch * self.steps_per_epoch + self.step

    def describe(self) -> str:
        """Say where it is: ``step 470 (epoch 3, step 0 of 235)``."""
        return f"step {self.global_step:,} (epoch {self.epoch + 1}, step {self.step:,} of {self.steps_per_epoch:,})"


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically and remove all but the last two.

    Raises:
        OSError: It could not be written (disk full); those before are untouched.
    """
    facts = {
        "format": FORMAT,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "steps_per_epoch": checkpoint.steps_per_epoch,
        **checkpoint.facts,
    }
    import numpy as np

    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    arrays = [np.asarray(array) for array in checkpoint.arrays]
    digest = np.frombuffer(_digest(text, arrays), np.uint8)
    path = folder / f"step-{checkpoint.global_step:010d}.npz"
    content: dict[str, Any] = {"facts": text, "sha256": digest, **{str(i): one for i, one in enumerate(arrays)}}
    folder.mkdir(exist_ok=True)
    with atomic_write(path) as temporary:
        np.savez(temporary, **content)
    for old in _files(folder)[KEPT:]:
        with suppress(FileNotFoundError):
            old.unlink()
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and compare its digest.

    Raises:
        DamagedCheckpointError: It is cut off, changed, or of a newer format.
    """
    import numpy as np

    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            text, digest = archive["facts"], archive["sha256"].tobytes()
            arrays = [archive[str(i)] for i in range(len(archive.files) - 2)]
        if digest != _digest(text, arrays):
            raise DamagedCheckpointError("its digest does not match its content", where=str(path))
        facts: dict[str, Any] = json.loads(text.tobytes())
        if facts.pop("format") != FORMAT:
            raise DamagedCheckpointError("it was written by a newer tfmp", where=str(path))
        place = (int(facts.pop("epoch")), int(facts.pop("step")), int(facts.pop("steps_per_epoch")))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedCheckpointError(f"it cannot be read ({type(error).__name__})", where=str(path)) from error
    return Checkpoint(*place, arrays, facts)


def newest_good(folder: Path, say: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
    """Return the newest checkpoint that is whole, ``None`` if there is none.

    Damaged ones are set aside under another name, so that they do not count as one of the last two.

    Args:
        folder: Where checkpoints are.
        say: Is told a line for each damaged one.
    """
    for path in _files(folder):
        try:
            return path, load_checkpoint(path)
        except DamagedCheckpointError as error:
            say(f"warning: checkpoint {path.name} is damaged: {error.what}; falling back to the one before")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
    return None


def _files(folder: Path) -> list[Path]:
    """Checkpoint files, newest first: names sort by step."""
    return sorted(folder.glob(_PATTERN), reverse=True)


def _digest(facts: Array, arrays: Sequence[Array]) -> bytes:
    import numpy as np

    digest = hashlib.sha256(facts.tobytes())
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
