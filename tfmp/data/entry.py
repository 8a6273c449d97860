"""One entry of the data cache: a file of raw arrays, and a JSON header that describes it.

The header is written last and by rename, so an entry is either complete or absent. Every array starts at a multiple of
4096 bytes: it can be mapped separately, and consumers that need aligned memory use it without a copy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tfmp.data.structure import describe, leaves, rebuild
from tfmp.errors import TfmpError
from tfmp.rundir.layout import atomic_write, write_text

if TYPE_CHECKING:
    from tfmp.data.arrays import DatasetArrays

FORMAT_VERSION = 2
ALIGNMENT_BYTES = 4096
SPLITS = ("train", "validation")
_CHUNK_BYTES = 1 << 20
_ORDER = "<" if sys.byteorder == "little" else ">"
# numpy's type strings, so that a header can be checked without numpy.
_TYPE = re.compile(rf"(?:\|[uib]1|{_ORDER}[uif][248]|\|S[1-9]\d{{0,6}})")


class DamagedEntryError(Exception):
    """An entry that does not match its header; the message is the reason."""


@dataclass(frozen=True)
class ArrayLayout:
    """One array inside the data file: numpy type string, shape, offset."""

    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def is_text(self) -> bool:
        """Whether the elements are strings."""
        return self.dtype[1] == "S"

    @property
    def end_bytes(self) -> int:
        """Offset just behind the array."""
        return self.offset_bytes + math.prod(self.shape) * int(self.dtype[2:])


@dataclass(frozen=True)
class DatasetHeader:
    """The contents of a prepared data set; readable without numpy.

    Attributes:
        name: Name of the data set.
        classes: Number of classes; 0 if the targets are no class numbers.
        scaled: Whether uint8 inputs are the pixels of images, to be divided by 255.
        structure: Of one split, ``(x, y, sample_weight)``: see :func:`tfmp.data.structure.describe`.
        data_file: Name of the data file, in the folder of the header.
        data_bytes: Its size.
        data_sha256: Its SHA-256 (hex).
        arrays: Layout by array name: the split, a slash, and the number of the array in the structure.
    """

    name: str
    classes: int
    scaled: bool
    structure: Any
    data_file: str
    data_bytes: int
    data_sha256: str
    arrays: Mapping[str, ArrayLayout]

    @property
    def train_samples(self) -> int:
        """Number of training samples."""
        return self.arrays["train/0"].shape[0]

    @property
    def validation_samples(self) -> int:
        """Number of validation samples."""
        return self.arrays["validation/0"].shape[0]

    @property
    def inputs(self) -> list[ArrayLayout]:
        """The training inputs, one after the other."""
        return self._part(0)

    @property
    def targets(self) -> list[ArrayLayout]:
        """The training targets, one after the other."""
        return self._part(1)

    def _part(self, part: int) -> list[ArrayLayout]:
        numbers = [number for _, number in leaves(rebuild(self.structure, range(len(self.arrays)))[part])]
        return [self.arrays[f"train/{number}"] for number in numbers]

    def to_json(self) -> str:
        """Return the header file's text."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DatasetHeader:
        """Parse and check a header file's text.

        Raises:
            DamagedEntryError: The text is not a header of this format, or an array is outside the data file.
        """
        try:
            raw = json.loads(text)
            if raw.pop("format") != FORMAT_VERSION:
                raise DamagedEntryError("its header has another format")
            layouts = raw.pop("arrays")
            arrays = {
                name: ArrayLayout(layout["dtype"], tuple(layout["shape"]), layout["offset_bytes"])
                for name, layout in layouts.items()
            }
            header = cls(arrays=arrays, **raw)
            sound = _is_sound(header)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
            sound = False
        if not sound:
            raise DamagedEntryError("its header is damaged")
        return header


@dataclass(frozen=True)
class CachedDataset:
    """A prepared data set on this machine. Workers need only ``path`` (see :func:`open_cached`)."""

    path: Path
    header: DatasetHeader

    @property
    def data_path(self) -> Path:
        """The file of raw arrays."""
        return self.path.with_name(self.header.data_file)

    def open(self) -> DatasetArrays:
        """Map the arrays into memory, copy-on-write.

        All processes of the machine share the pages. A write makes a private copy of a page and never reaches the file.
        The arrays are writable because consumers such as DLPack refuse read-only memory.

        Raises:
            OSError: The data file cannot be opened.
        """
        import numpy as np

        from tfmp.data.arrays import DatasetArrays, SplitArrays

        def mapped(layout: ArrayLayout) -> Any:
            array = np.memmap(
                self.data_path, dtype=layout.dtype, mode="c", offset=layout.offset_bytes, shape=layout.shape
            )
            return array.view(np.ndarray)

        def split(name: str) -> SplitArrays:
            arrays = [mapped(self.header.arrays[f"{name}/{i}"]) for i in range(len(self.header.arrays) // 2)]
            return SplitArrays(*rebuild(self.header.structure, arrays))

        train, validation = map(split, SPLITS)
        header = self.header
        return DatasetArrays(header.name, train, validation, header.classes, header.scaled, header.data_sha256)


def load_entry(path: Path, *, verify: bool) -> CachedDataset:
    """Read an entry's header and check its data file.

    Args:
        path: The header file.
        verify: Also compare the data file's SHA-256; its size is always compared.

    Raises:
        FileNotFoundError: There is no header.
        DamagedEntryError: Header and data file do not match.
        OSError: The header cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DamagedEntryError("its header is damaged") from None
    entry = CachedDataset(path, DatasetHeader.from_json(text))
    expected = entry.header.data_bytes
    try:
        with entry.data_path.open("rb") as file:
            received = os.fstat(file.fileno()).st_size
            if received != expected:
                raise DamagedEntryError(f"expected {expected:,} bytes in {entry.data_path.name}, received {received:,}")
            if verify and _sha256(file) != entry.header.data_sha256:
                raise DamagedEntryError(f"the checksum of {entry.data_path.name} does not match")
    except OSError as error:
        raise DamagedEntryError(f"{entry.data_path.name}: {error.strerror or error}") from None
    return entry


def open_cached(path: str | os.PathLike[str]) -> DatasetArrays:
    """Open a data set that the launcher prepared. Workers call it.

    Args:
        path: The header file: ``str(CachedDataset.path)``.

    Returns:
        Arrays mapped copy-on-write: see :meth:`CachedDataset.open`.

    Raises:
        TfmpError: The entry was removed or damaged after it was prepared.
    """
    try:
        return load_entry(Path(path), verify=False).open()
    except (DamagedEntryError, OSError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise TfmpError(
            f"the prepared data set cannot be opened: {reason}",
            where=str(path),
            hint="start the run again: the launcher prepares it again",
        ) from None


def write_entry(directory: Path, stem: str, dataset: DatasetArrays) -> CachedDataset:
    """Write an entry: temporary file, fsync, rename, data first and header last.

    Args:
        directory: Existing folder; the caller holds its lock.
        stem: File name without ending.
        dataset: Checked arrays.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    train, validation = ((split.x, split.y, split.sample_weight) for split in (dataset.train, dataset.validation))
    arrays = {
        f"{name}/{i}": array
        for name, split in zip(SPLITS, (train, validation), strict=True)
        for i, (_, array) in enumerate(leaves(split))
    }
    layouts: dict[str, ArrayLayout] = {}
    digest = hashlib.sha256()
    data_path = directory / f"{stem}.bin"
    position = 0
    with atomic_write(data_path) as temporary, temporary.open("wb") as file:
        for name, array in arrays.items():
            padding = bytes(-position % ALIGNMENT_BYTES)
            layouts[name] = ArrayLayout(array.dtype.str, tuple(array.shape), position + len(padding))
            for part in (memoryview(padding), array.reshape(-1).view("u1").data):
                for start in range(0, len(part), _CHUNK_BYTES):
                    chunk = part[start : start + _CHUNK_BYTES]
                    digest.update(chunk)
                    file.write(chunk)
            position = layouts[name].end_bytes
    header = DatasetHeader(
        dataset.name,
        dataset.classes,
        dataset.scaled,
        describe(train),
        data_path.name,
        position,
        digest.hexdigest(),
        layouts,
    )
    path = directory / f"{stem}.json"
    write_text(path, header.to_json())
    return CachedDataset(path, header)


def remove_temporaries(directory: Path) -> None:
    """Remove what killed makers left. Right only under the folder's lock: then no maker is alive."""
    for path in directory.glob(".*.tmp*"):
        path.unlink(missing_ok=True)


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _is_sound(header: DatasetHeader) -> bool:
    whole = (header.classes, header.data_bytes)
    texts = (header.name, header.data_file, header.data_sha256)
    numbers = (*whole, *(n for a in header.arrays.values() for n in (a.offset_bytes, *a.shape)))
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and all(isinstance(text, str) for text in texts)
        and header.data_file == Path(header.data_file).name
        and type(header.scaled) is bool
        and all(_TYPE.fullmatch(layout.dtype) for layout in header.arrays.values())
        and all(layout.end_bytes <= header.data_bytes for layout in header.arrays.values())
        and all(layout.offset_bytes % ALIGNMENT_BYTES == 0 for layout in header.arrays.values())
        and all(math.prod(layout.shape) > 0 for layout in header.arrays.values())
        and set(header.arrays) == {f"{split}/{i}" for split in SPLITS for i in range(len(header.arrays) // 2)}
        and len(header.inputs) > 0
        and len(header.targets) > 0
    )
