"""The arrays of a data set, and the checks that make them fit for training.

Legend: n samples of one split, … the dimensions of one image (or of any dense input).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfmp.data.structure import Tree, leaves, transform
from tfmp.errors import UsageError

IMAGE_DTYPES = ("uint8", "float16", "float32", "float64")
_SCAN_ELEMENTS = 1 << 20  # limits the temporary memory of the check for finite values


@dataclass(frozen=True)
class SplitArrays:
    """One split. Each part is an array [n, …], or arrays nested in dictionaries, lists and tuples.

    Attributes:
        x: The inputs, as the source has them: not scaled.
        y: The targets. Class numbers are integers from 0 on.
        sample_weight: The weight of each sample in the loss; ``None``: 1.
    """

    x: Tree
    y: Tree
    sample_weight: Tree = None

    def __len__(self) -> int:
        return len(next(array for _, array in leaves(self.x)))

    @property
    def parts(self) -> tuple[Tree, ...]:
        """``(x, y)`` or ``(x, y, sample_weight)``, as Keras takes them."""
        return (self.x, self.y) if self.sample_weight is None else (self.x, self.y, self.sample_weight)

    def first(self, limit: int | None) -> SplitArrays:
        """Return the first ``limit`` samples; ``None``: all."""
        return SplitArrays(*transform(lambda array: array[:limit], (self.x, self.y, self.sample_weight)))

    def take(self, index: NDArray[Any]) -> SplitArrays:
        """Return the samples ``index`` [b]."""
        return SplitArrays(*transform(lambda array: array[index], (self.x, self.y, self.sample_weight)))

    def class_weighted(self, weights: Sequence[float] | None) -> SplitArrays:
        """Return the split with each sample weighted by its class, ``y`` [n]; ``None``: as it is."""
        if weights is None:
            return self
        by_class = np.asarray(weights, np.float64)[np.asarray(self.y).reshape(-1)]
        return SplitArrays(self.x, self.y, by_class if self.sample_weight is None else by_class * self.sample_weight)

    def rows(self, index: NDArray[Any], *, scaled: bool, floatx: str) -> tuple[Tree, ...]:
        """Return the samples ``index`` [b] as the model sees them: floats as ``floatx``, pixels from 0 to 1."""
        scale = np.asarray(255.0, floatx)

        def taken(array: NDArray[Any]) -> NDArray[Any]:
            rows = np.asarray(array[index])
            if scaled and array.dtype == np.uint8:
                return np.asarray(rows.astype(floatx) / scale)
            return rows.astype(floatx) if array.dtype.kind == "f" else rows

        found: tuple[Tree, ...] = transform(taken, self.parts)
        return found


@dataclass(frozen=True)
class DatasetArrays:
    """A checked data set: both splits have the same structure, shapes and types.

    Attributes:
        name: For messages and reports.
        train: The training samples.
        validation: The validation samples.
        classes: Number of classes; 0 if the targets are no class numbers.
        scaled: Whether uint8 inputs are the pixels of images, to be divided by 255.
        sha256: Of the prepared file (hex); empty before it is written.
    """

    name: str
    train: SplitArrays
    validation: SplitArrays
    classes: int
    scaled: bool = False
    sha256: str = ""

    @property
    def input_shape(self) -> Any:
        """Shape of one sample's inputs, without the sample dimension: a tuple, or tuples nested as the inputs are."""
        return transform(lambda array: tuple(array.shape[1:]), self.train.x)

    @property
    def target_shape(self) -> Any:
        """Shape of one sample's targets: ``()`` for a number; nested as the targets are."""
        return transform(lambda array: tuple(array.shape[1:]), self.train.y)


@dataclass(frozen=True)
class RawSplit:
    """Arrays as read, each with its name for errors (a file, or a key in a file)."""

    images: NDArray[Any]
    labels: NDArray[Any]
    images_where: str
    labels_where: str


def build_dataset(name: str, train: RawSplit, validation: RawSplit, classes: int | None) -> DatasetArrays:
    """Check two splits and convert them to their final form.

    Args:
        name: Name of the data set, for messages and reports.
        train: Images [n, …] and labels [n] or [n, 1].
        validation: The same for the validation split; its n may differ.
        classes: Number of classes; ``None`` takes the largest label of both splits plus one.

    Returns:
        C-contiguous arrays in the machine's byte order, labels as int32.

    Raises:
        UsageError: Unsupported type, no samples, different counts, a NaN or an infinity, a label out of range, or
            splits that do not match. Names the array and, if possible, the sample.
    """
    train_images, train_labels = _check_split(train)
    validation_images, validation_labels = _check_split(validation)
    if train_images.shape[1:] != validation_images.shape[1:] or train_images.dtype != validation_images.dtype:
        raise UsageError(
            f"expected validation images like the training images ({_describe(train_images)}), "
            f"received {_describe(validation_images)}",
            where=validation.images_where,
        )
    if classes is None:
        classes = int(max(train_labels.max(), validation_labels.max())) + 1
    if classes > np.iinfo(np.int32).max:
        raise UsageError(f"expected labels below 2,147,483,647, received {classes - 1:,}", where=train.labels_where)
    return DatasetArrays(
        name,
        SplitArrays(train_images, _check_range(train_labels, classes, train.labels_where)),
        SplitArrays(validation_images, _check_range(validation_labels, classes, validation.labels_where)),
        classes,
        scaled=True,
    )


def _check_split(split: RawSplit) -> tuple[NDArray[Any], NDArray[Any]]:
    images = _check_images(split.images, split.images_where)
    labels = _check_labels(split.labels, split.labels_where)
    if len(images) != len(labels):
        raise UsageError(
            f"expected one label per image, received {len(images):,} images and {len(labels):,} labels",
            where=split.labels_where,
        )
    return images, labels


def _check_images(images: NDArray[Any], where: str) -> NDArray[Any]:
    if images.dtype.name not in IMAGE_DTYPES:
        raise UsageError(
            f"expected images of type {', '.join(IMAGE_DTYPES)}, received {images.dtype.name}",
            where=where,
            hint="convert them: pixels 0 to 255 with images.astype('uint8'), anything else to float32",
        )
    if images.ndim < 2 or 0 in images.shape[1:]:
        raise UsageError(f"expected images of shape [n, ...], received shape {list(images.shape)}", where=where)
    if len(images) == 0:
        raise UsageError("expected at least 1 sample, received 0", where=where)
    native = np.ascontiguousarray(images, dtype=images.dtype.newbyteorder("="))
    if native.dtype.kind == "f":
        check_finite(native, where)
    return native


def check_finite(images: NDArray[Any], where: str) -> None:
    """Raise :class:`UsageError` if an array [n, …] holds a NaN or an infinity, with the sample."""
    samples = max(1, _SCAN_ELEMENTS // (images.size // len(images)))
    for start in range(0, len(images), samples):
        block = images[start : start + samples].reshape(min(samples, len(images) - start), -1)
        bad = ~np.isfinite(block)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise UsageError(
                f"expected finite numbers, received {block[row, column]} in sample {start + int(row)}", where=where
            )


def _check_labels(labels: NDArray[Any], where: str) -> NDArray[Any]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        one_hot = labels.ndim == 2
        raise UsageError(
            f"expected labels of shape [n], received shape {list(labels.shape)}",
            where=where,
            hint="turn one-hot rows into class numbers: labels.argmax(axis=1)" if one_hot else None,
        )
    if labels.dtype.kind not in "iu":
        raise UsageError(f"expected labels of an integer type, received {labels.dtype.name}", where=where)
    if len(labels) == 0:
        raise UsageError("expected at least 1 sample, received 0", where=where)
    return labels


def _check_range(labels: NDArray[Any], classes: int, where: str) -> NDArray[np.int32]:
    # Compared in the labels' own type: converting first would wrap a large label into the allowed range.
    bad = (labels < 0) | (labels > classes - 1) if labels.dtype.kind == "i" else labels > classes - 1
    if bad.any():
        index = int(bad.argmax())
        raise UsageError(
            f"expected labels in 0..{classes - 1}, received {labels[index]} at index {index}",
            where=where,
            hint="correct the label, or set data.classes",
        )
    return np.ascontiguousarray(labels, dtype=np.int32)


def _describe(images: NDArray[Any]) -> str:
    return f"shape {list(images.shape[1:])}, {images.dtype.name}"
