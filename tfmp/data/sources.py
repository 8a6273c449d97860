"""Sources of a data set: the embedded MNIST, IDX files, an NPZ archive, tables, or folders of images."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.data.arrays import DatasetArrays, RawSplit, SplitArrays

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
DECODER_VERSION = 2
# Validation samples drawn from the training samples are always the same ones.
_SPLIT_SEED = 0


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
    def validation_path(self) -> PathText | None: ...
    @property
    def validation_fraction(self) -> float: ...
    @property
    def target(self) -> tuple[str, ...] | None: ...
    @property
    def columns(self) -> tuple[str, ...] | None: ...
    @property
    def image_size(self) -> tuple[int, ...] | None: ...
    @property
    def factory(self) -> str | None: ...
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
        name: ``mnist``, ``idx``, ``npz``, ``csv`` or ``images``.
        files: Configuration key (for images, and the class and number) to file; empty for the embedded MNIST.
        classes: Number of classes; ``None`` means the largest label plus one.
        settings: Further settings that the arrays depend on.
    """

    name: str
    files: Mapping[str, SourceFile]
    classes: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """SHA-256 (hex) of everything that determines the arrays: paths, sizes, times, or embedded checksums."""
        files = {role: [str(file.path), file.size_bytes, file.mtime_ns] for role, file in self.files.items()}
        identity = [DECODER_VERSION, self.name, self.classes, files or MNIST_SHA256, dict(self.settings)]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def load(self) -> DatasetArrays:
        """Read, decode and check the arrays (under a second for MNIST).

        Raises:
            UsageError: A file is missing or damaged, changes meanwhile, or has unsuitable contents.
        """
        from tfmp.data.arrays import build_dataset

        if self.name == "csv":
            dataset = _load_tables(self)
        elif self.name == "images":
            dataset = _load_images(self)
        else:
            if self.name == "mnist":
                train, validation = _load_mnist()
            elif self.name == "idx":
                train, validation = _load_idx({role: file.path for role, file in self.files.items()})
            else:
                train, validation = _load_npz(self.files["path"].path)
            dataset = build_dataset(self.name, train, validation, self.classes)
        for role, file in self.files.items():
            file.check_unchanged(f"data.{role.partition('/')[0]}")
        return dataset


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
    elif data.dataset in ("npz", "csv", "images"):
        paths = {"path": data.path}
    else:
        raise UsageError(f"expected mnist, idx, npz, csv or images, received {data.dataset!r}", where="data.dataset")
    if data.dataset in ("csv", "images") and data.validation_path is not None:
        paths["validation_path"] = data.validation_path
    files: dict[str, SourceFile] = {}
    for role, path in paths.items():
        if not path:
            raise UsageError(f"expected a file for data.dataset={data.dataset}, received none", where=f"data.{role}")
        if data.dataset == "images":
            files |= _image_files(Path(path), role)
        else:
            files[role] = SourceFile.find(path, f"data.{role}")
    return Source(data.dataset, files, data.classes, _settings(data))


def _settings(data: DataSettings) -> dict[str, Any]:
    if data.dataset == "csv":
        return {"fraction": data.validation_fraction, "target": data.target or (), "columns": data.columns}
    if data.dataset == "images":
        if data.image_size is not None and len(data.image_size) != 2:
            raise UsageError(
                f"expected height and width, received {len(data.image_size)} numbers", where="data.image_size"
            )
        return {"fraction": data.validation_fraction, "size": data.image_size}
    return {}


def _image_files(folder: Path, role: str) -> dict[str, SourceFile]:
    from tfmp.data.folders import list_images

    where = f"data.{role}"
    classes = list_images(folder.expanduser().absolute(), where)
    return {
        f"{role}/{name}/{file.name}": SourceFile.find(file, where) for name, paths in classes.items() for file in paths
    }


def _load_tables(source: Source) -> DatasetArrays:
    from tfmp.data.collect import build_from_splits
    from tfmp.data.tables import read_table, split_columns

    tables = {role: read_table(file.path) for role, file in source.files.items()}
    settings = source.settings
    train, validation = split_columns(
        tables["path"], tables.get("validation_path"), settings["target"], settings["columns"]
    )
    return build_from_splits(
        "csv", *_divided(train, validation, settings), where=str(tables["path"].path), classes=source.classes
    )


def _load_images(source: Source) -> DatasetArrays:
    from tfmp.data.arrays import SplitArrays
    from tfmp.data.collect import build_from_splits
    from tfmp.data.folders import read_images

    roles: dict[str, dict[str, list[Path]]] = {}
    for role, file in source.files.items():
        key, name, _ = role.split("/", 2)
        roles.setdefault(key, {}).setdefault(name, []).append(file.path)
    names = sorted(roles["path"])
    for name in roles.get("validation_path", {}):
        if name not in names:
            raise UsageError(
                f"expected classes of the training images, received {name!r}",
                where="data.validation_path",
                hint=f"the classes are {', '.join(names)}",
            )
    splits = {key: SplitArrays(*read_images(classes, names, source.settings["size"])) for key, classes in roles.items()}
    divided = _divided(splits["path"], splits.get("validation_path"), source.settings)
    return build_from_splits("images", *divided, where="data.path", classes=len(names), scaled=True)


def _divided(
    train: SplitArrays, validation: SplitArrays | None, settings: Mapping[str, Any]
) -> tuple[SplitArrays, SplitArrays]:
    """Both splits; without one for validation, part of the other, drawn at random but always the same."""
    import numpy as np

    if validation is not None:
        return train, validation
    count = max(1, round(len(train) * settings["fraction"]))
    if count >= len(train):
        raise UsageError(
            f"expected more than {count} samples, to validate on part of them, received {len(train)}", where="data.path"
        )
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(train))
    return train.take(np.sort(order[count:])), train.take(np.sort(order[:count]))


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
