"""Checkpoint files: written atomically, guarded by a digest, the last two kept. No TensorFlow.

The chief saves, the launcher chooses the newest good file, and every worker loads that one. The format is NumPy's
``.npz``: arrays ``0``, ``1``, … beside ``facts`` (JSON) and ``sha256`` (over everything else).

For a restart, the launcher hashes the file once, in chunks, without decoding an array; each worker then reads the
arrays once. Damage in between cannot go unnoticed: zip has a CRC of each member, which every reading compares.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tfmp.errors import TfmpError
from tfmp.rundir.layout import atomic_write

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    # NumPy is imported where checkpoints are read and written: the command line needs only the names here.
    Array = Any

FORMAT = 1
KEPT = 2
_PATTERN = "step-*.npz"
_FACTS, _SHA256 = "facts", "sha256"
_CHUNK_BYTES = 1 << 20


class DamagedCheckpointError(TfmpError):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class CheckpointHeader:
    """What a checkpoint says about itself.

    Attributes:
        epoch: Epochs that are done; the number of the one to resume in, from 0.
        step: Steps of that epoch that are done. If all of them are, its validation is still to come.
        steps_per_epoch: Steps of an epoch.
        facts: Everything else but the arrays, as JSON values.
        digest: SHA-256 (hex) of the content, as recorded in the file; empty until it is saved.
    """

    epoch: int
    step: int
    steps_per_epoch: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def global_step(self) -> int:
        """Steps that are done, of all epochs."""
        return self.epoch * self.steps_per_epoch + self.step

    def describe(self) -> str:
        """Return the position in words: ``step 470 (epoch 3, step 0 of 235)``."""
        return f"step {self.global_step:,} (epoch {self.epoch + 1}, step {self.step:,} of {self.steps_per_epoch:,})"


@dataclass(frozen=True)
class Checkpoint(CheckpointHeader):
    """The state of a training between two steps.

    Attributes:
        arrays: The values of variables.
    """

    arrays: Sequence[Array] = ()


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically and remove all but the last two.

    Raises:
        OSError: It could not be written (disk full); earlier checkpoints are untouched.
    """
    import numpy as np

    facts = {
        "format": FORMAT,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "steps_per_epoch": checkpoint.steps_per_epoch,
        **checkpoint.facts,
    }
    text = json.dumps(facts).encode()
    arrays = [np.asarray(array, order="C") for array in checkpoint.arrays]
    members: dict[str, Any] = {
        _FACTS: np.frombuffer(text, np.uint8),
        _SHA256: np.frombuffer(_digest(text, arrays), np.uint8),
        **{str(i): array for i, array in enumerate(arrays)},
    }
    path = folder / f"step-{checkpoint.global_step:010d}.npz"
    folder.mkdir(exist_ok=True)
    with atomic_write(path) as temporary:
        np.savez(temporary, **members)
    for old in _files(folder)[KEPT:]:
        with suppress(FileNotFoundError):
            old.unlink()
    return path


def peek(path: Path) -> CheckpointHeader:
    """Read the header alone.

    Raises:
        DamagedCheckpointError: It cannot be read, or has a newer format.
    """
    with _opened(path) as archive:
        return _header(archive, path)


def verify(path: Path) -> CheckpointHeader:
    """Compare the digest with the content in bounded memory, without decoding an array, and return the header.

    Raises:
        DamagedCheckpointError: It is cut off, changed, or of a newer format.
    """
    with _opened(path) as archive:
        hashing = hashlib.sha256(_read(archive, _FACTS).tobytes())
        for i in range(_array_count(archive)):
            with archive.open(f"{i}.npy") as member:
                hashing.update(_array_header(member))
                while chunk := member.read(_CHUNK_BYTES):
                    hashing.update(chunk)
        return _header(archive, path, hashing.digest())


def load(path: Path, *, verified: str | None = None) -> Checkpoint:
    """Read a checkpoint, each array once.

    Args:
        path: The file.
        verified: The digest, where :func:`verify` has compared it on this machine: the content is not hashed again.

    Raises:
        DamagedCheckpointError: It is cut off, changed, of a newer format, or another one than was verified.
    """
    with _opened(path) as archive:
        arrays = [_read(archive, str(i)) for i in range(_array_count(archive))]
        digest = bytes.fromhex(verified) if verified else _digest(_read(archive, _FACTS).tobytes(), arrays)
        header = _header(archive, path, digest)
    return Checkpoint(header.epoch, header.step, header.steps_per_epoch, header.facts, header.digest, arrays)


def newest_good(folder: Path, tell: Callable[[str], None]) -> tuple[Path, CheckpointHeader] | None:
    """Return the newest checkpoint that is not damaged; ``None`` if there is none.

    Damaged ones are renamed, so that they do not count as one of the last two.

    Args:
        folder: Where checkpoints are.
        tell: Receives a line for each damaged one.
    """
    for path in _files(folder):
        try:
            return path, verify(path)
        except DamagedCheckpointError as error:
            tell(f"warning: checkpoint {path.name} is damaged: {error.what}; falling back to the one before")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
    return None


def _files(folder: Path) -> list[Path]:
    """Checkpoint files, newest first: names sort by step."""
    return sorted(folder.glob(_PATTERN), reverse=True)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the file; whatever its bytes cause while it is read is damage."""
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("a compressed member")
            yield archive
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise DamagedCheckpointError(f"it cannot be read ({type(error).__name__})", where=str(path)) from error


def _array_count(archive: zipfile.ZipFile) -> int:
    return len(archive.namelist()) - len((_FACTS, _SHA256))


def _read(archive: zipfile.ZipFile, name: str) -> Array:
    import numpy as np

    with archive.open(f"{name}.npy") as member:
        array: Array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):  # also compares the CRC, which is known at the end only
            raise ValueError("more bytes than its shape has")
    return array


def _header(archive: zipfile.ZipFile, path: Path, digest: bytes | None = None) -> CheckpointHeader:
    """Read the header and, where the content's digest is given, compare the recorded one."""
    recorded = _read(archive, _SHA256).tobytes()
    if digest is not None and digest != recorded:
        raise DamagedCheckpointError("its digest does not match its content", where=str(path))
    facts: dict[str, Any] = json.loads(_read(archive, _FACTS).tobytes())
    if facts.pop("format") != FORMAT:
        raise DamagedCheckpointError("it was written by a newer tfmp", where=str(path))
    position = (int(facts.pop("epoch")), int(facts.pop("step")), int(facts.pop("steps_per_epoch")))
    return CheckpointHeader(*position, facts, recorded.hex())


def _digest(facts: bytes, arrays: Iterable[Array]) -> bytes:
    import numpy as np

    hashing = hashlib.sha256(facts)
    for array in arrays:
        hashing.update(_array_title(array.dtype, array.shape))
        hashing.update(np.ascontiguousarray(array).data)
    return hashing.digest()


def _array_title(dtype: Any, shape: tuple[int, ...]) -> bytes:
    """What is hashed before an array's bytes."""
    return f"{dtype.str} {shape}".encode()


def _array_header(member: IO[bytes]) -> bytes:
    """Read the header of a ``.npy`` member, up to the array's bytes, and return its title."""
    from numpy.lib import format as npy

    version = npy.read_magic(member)
    shape, fortran_order, dtype = npy.read_array_header_1_0(member)
    if version != (1, 0) or fortran_order:
        raise ValueError("not as arrays are saved here")
    return _array_title(dtype, shape)
