"""Sources of a data set: the embedded MNIST, IDX files, or an NPZ archive."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.data.arrays import DatasetArrays, RawSplit

PathText = str | os.PathLike[str]

# SHA-256 of the uncompressed files as their authors published them.
MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST_CLASSES = 10
IDX_KEYS = ("train_images", "train_labels", "validation_images", "validation_labels")
# Part of every cache key. Increase it when the same source decodes into other arrays.
DECODER_VERSION = 1


class DataSettings(Protocol):
    """The part of the configuration's ``data`` section that this package reads."""

    @property
    def dataset(self) -> str: ...
    @property
    def train_images(self) -> PathText | None: ...
    @property
    def train_labels(self) -> PathText | None: ...
    @property
    def validation_images(self) -> PathText | None: ...
    @property
    def validation_labels(self) -> PathText | None: ...
    @property
    def path(self) -> PathText | None: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def cache_dir(self) -> PathText | None: ...


@dataclass(frozen=True)
class SourceFile:
    """A file of the user, as it was when the run started."""

    path: Path
    size_bytes: int
    mtime_ns: int

    @classmethod
    def find(cls, path: PathText, where: str) -> SourceFile:
        """Look up a file.

        Raises:
            UsageError: It does not exist or cannot be accessed; names ``where`` (a configuration key).
        """
        absolute = Path(path).expanduser().absolute()
        try:
            status = absolute.stat()
        except OSError as error:
            raise UsageError(
                f"expected a data file, received {absolute}: {error.strerror or error}",
                where=where,
                hint="paths are relative to the current directory",
            ) from None
        return cls(absolute, status.st_size, status.st_mtime_ns)

    def check_unchanged(self, where: str) -> None:
        """Raise :class:`UsageError` if the file is no longer what :meth:`find` saw."""
        if SourceFile.find(self.path, where) != self:
            raise UsageError(f"the data file changed while it was read: {self.path}", where=where, hint="start again")


@dataclass(frozen=True)
class Source:
    """A data set whose key is known without reading it, and which can be read into checked arrays.

    Attributes:
        name: ``mnist``, ``idx`` or ``npz``.
        files: Configuration key to file; empty for the embedded MNIST.
        classes: Number of classes; ``None`` means the largest label plus one.
    """

    name: str
    files: Mapping[str, SourceFile]
    classes: int | None

    @cached_property
    def key(self) -> str:
        """SHA-256 (hex) of everything that determines the arrays: paths, sizes, times, or embedded checksums."""
        files = {role: [str(file.path), file.size_bytes, file.mtime_ns] for role, file in self.files.items()}
        identity = [DECODER_VERSION, self.name, self.classes, files or MNIST_SHA256]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def load(self) -> DatasetArrays:
        """Read, decode and check the arrays (under a second for MNIST).

        Raises:
            UsageError: A file is missing or damaged, changes meanwhile, or has unsuitable contents.
        """
        from tfmp.data.arrays import build_dataset

        if self.name == "mnist":
            train, validation = _load_mnist()
        elif self.name == "idx":
            train, validation = _load_idx({role: file.path for role, file in self.files.items()})
        else:
            train, validation = _load_npz(self.files["path"].path)
        for role, file in self.files.items():
            file.check_unchanged(f"data.{role}")
        return build_dataset(self.name, train, validation, self.classes)


def find_source(data: DataSettings) -> Source:
    """Find the data set that a configuration asks for, without reading it.

    Raises:
        UsageError: The data set is unknown, a required key is not set, or a file is missing.
    """
    if data.dataset == "mnist":
        if data.classes is not None and data.classes < MNIST_CLASSES:
            raise UsageError(f"expected 10 classes for mnist, received {data.classes}", where="data.classes")
        return Source("mnist", {}, data.classes or MNIST_CLASSES)
    if data.dataset == "idx":
        paths = dict(
            zip(
                IDX_KEYS,
                (data.train_images, data.train_labels, data.validation_images, data.validation_labels),
                strict=True,
            )
        )
    elif data.dataset == "npz":
        paths = {"path": data.path}
    else:
        raise UsageError(f"expected mnist, idx or npz, received {data.dataset!r}", where="data.dataset")
    files = {}
    for role, path in paths.items():
        if not path:
            raise UsageError(f"expected a file for data.dataset={data.dataset}, received none", where=f"data.{role}")
        files[role] = SourceFile.find(path, f"data.{role}")
    return Source(data.dataset, files, data.classes)


def _load_mnist() -> tuple[RawSplit, RawSplit]:
    from importlib.resources import as_file, files

    folder = files("tfmp.data").joinpath("mnist")
    with ExitStack() as stack:
        # as_file unpacks a file only if the package itself is packed (a zip application).
        paths = [stack.enter_context(as_file(folder.joinpath(f"{name}.gz"))) for name in MNIST_SHA256]
        return _load_idx(dict(zip(IDX_KEYS, paths, strict=True)), tuple(MNIST_SHA256.values()))


def _load_idx(paths: Mapping[str, Path], checksums: tuple[str | None, ...] = (None,) * 4) -> tuple[RawSplit, RawSplit]:
    from tfmp.data.arrays import RawSplit
    from tfmp.data.readers import read_idx

    where = [str(paths[key]) for key in IDX_KEYS]
    images, labels, test_images, test_labels = (
        read_idx(path, sha256=checksum) for path, checksum in zip(where, checksums, strict=True)
    )
    return RawSplit(images, labels, where[0], where[1]), RawSplit(test_images, test_labels, where[2], where[3])


def _load_npz(path: Path) -> tuple[RawSplit, RawSplit]:
    from tfmp.data.arrays import RawSplit
    from tfmp.data.readers import NPZ_KEYS, read_npz

    arrays = read_npz(path)
    where = {key: f"{key} in {path}" for key in NPZ_KEYS}
    return (
        RawSplit(arrays["x_train"], arrays["y_train"], where["x_train"], where["y_train"]),
        RawSplit(arrays["x_test"], arrays["y_test"], where["x_test"], where["y_test"]),
    )
