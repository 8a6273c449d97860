"""Samples in whatever form ``data.factory`` returns them, collected into checked arrays.

Legend: n samples of one split, b samples of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfmp.data.arrays import DatasetArrays, SplitArrays, check_finite
from tfmp.data.structure import Tree, describe, leaves, rebuild, transform
from tfmp.errors import UsageError

_RETURNS = "return (train, validation), each (x, y) or (x, y, sample_weight) or an object that holds samples"


def collect_dataset(returned: Any, name: str, where: str) -> DatasetArrays:
    """Return the arrays of what ``data.factory`` returned.

    Args:
        returned: ``(train, validation)``, also as a dictionary with these keys. Each is one of:

            - ``(x, y)`` or ``(x, y, sample_weight)``: arrays [n, …], also nested in dictionaries, lists and tuples;
            - an object with ``__len__`` and ``__getitem__``: sample i, as ``(x, y)`` or ``(x, y, sample_weight)``;
            - a ``keras.utils.PyDataset`` or a ``tf.data.Dataset``: batches, as ``model.fit`` takes them.
        name: Name of the data set.
        where: The configuration key and the function, for errors.

    Raises:
        UsageError: Another form, no samples, different counts, a type that no tensor has, a NaN or an infinity, splits
            that do not match, or batches that differ when they are read again.
    """
    if isinstance(returned, Mapping) and set(returned) == {"train", "validation"}:
        returned = (returned["train"], returned["validation"])
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UsageError(f"expected two splits, received {_kind(returned)}", where=where, hint=_RETURNS)
    train, validation = (
        _collect_split(split, f"{where}: {part}") for part, split in zip(("train", "validation"), returned, strict=True)
    )
    return build_from_splits(name, train, validation, where=where)


def build_from_splits(
    name: str,
    train: SplitArrays,
    validation: SplitArrays,
    *,
    where: str,
    classes: int | None = None,
    scaled: bool = False,
) -> DatasetArrays:
    """Check two splits of any structure.

    Args:
        name: Name of the data set.
        train: The training samples.
        validation: The validation samples.
        where: Where they come from, for errors.
        classes: Number of classes; ``None``: the largest label plus one, if the targets are class numbers.
        scaled: Whether uint8 inputs are the pixels of images.

    Returns:
        C-contiguous arrays in the machine's byte order, text as UTF-8.

    Raises:
        UsageError: See :func:`collect_dataset`.
    """
    train, validation = (
        _check_split(split, f"{where}: {part}") for part, split in (("train", train), ("validation", validation))
    )
    _check_alike(train, validation, where)
    found = _classes(train, validation)
    if classes is not None and found > classes:
        raise UsageError(f"expected labels in 0..{classes - 1}, received {found - 1}", where=where)
    return DatasetArrays(name, train, validation, classes if classes is not None and found else found, scaled)


def _collect_split(split: Any, where: str) -> SplitArrays:
    if isinstance(split, tuple | list):
        return _parts(split, where)
    kinds = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(split).__mro__}
    if "tensorflow.DatasetV2" in kinds:
        return _of_batches(_twice(_dataset_batches(split, where), _dataset_batches(split, where), where), where)
    if "keras.PyDataset" in kinds:
        return _of_batches(_twice(_indexed(split), _indexed(split), where), where)
    if hasattr(split, "__len__") and hasattr(split, "__getitem__") and not hasattr(split, "__array__"):
        samples = (transform(lambda value: np.asarray(value)[np.newaxis], tuple(sample)) for sample in _indexed(split))
        return _of_batches(samples, where)
    raise UsageError(f"expected samples, received {_kind(split)}", where=where, hint=_RETURNS)


def _parts(parts: Any, where: str) -> SplitArrays:
    if not 2 <= len(parts) <= 3:
        raise UsageError(f"expected (x, y) or (x, y, sample_weight), received {len(parts)} parts", where=where)
    return SplitArrays(*(transform(np.asarray, part) for part in parts))


def _indexed(source: Any) -> Iterator[Any]:
    return (source[i] for i in range(len(source)))


def _dataset_batches(dataset: Any, where: str) -> Iterator[Any]:
    if int(dataset.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
        raise UsageError(
            "expected a data set that ends, received an endless one", where=where, hint="leave out repeat()"
        )
    return iter(dataset.as_numpy_iterator())


def _twice(batches: Iterator[Any], again: Iterator[Any], where: str) -> Iterator[Any]:
    """Pass on ``batches``; the first is compared with that of a second reading.

    What is drawn anew at each reading would be drawn once here, for all epochs.
    """
    first = next(batches, None)
    if first is None:
        return
    other = next(again, None)
    mine, theirs = (list(leaves(batch)) for batch in (first, other))
    if len(mine) != len(theirs) or not all(
        np.array_equal(np.asarray(a), np.asarray(b)) for (_, a), (_, b) in zip(mine, theirs, strict=True)
    ):
        raise UsageError(
            "the first batch is another one when it is read again",
            where=where,
            hint="leave out shuffle(), since tfmp shuffles, and anything random, since it would be drawn only once",
        )
    yield first
    yield from batches


def _of_batches(batches: Iterator[Any], where: str) -> SplitArrays:
    description: Any = None
    parts: list[list[NDArray[Any]]] = []
    for number, batch in enumerate(batches):
        described = describe(batch)
        if description is None:
            description, parts = described, [[] for _ in leaves(batch)]
        if described != description:
            raise UsageError(f"number {number} has another structure than the first", where=where)
        for part, (path, array) in zip(parts, leaves(batch), strict=True):
            rows = np.asarray(array)
            if rows.shape[1:] != (part[0] if part else rows).shape[1:]:
                raise UsageError(
                    f"expected parts of one shape, received {list(rows.shape[1:])} after {list(part[0].shape[1:])} "
                    f"at number {number}{path}",
                    where=where,
                    hint="pad or resize them",
                )
            part.append(rows)
    if description is None:
        raise UsageError("expected at least 1 sample, received none", where=where)
    found = rebuild(description, [np.concatenate(part) for part in parts])
    if not isinstance(found, tuple | list):
        raise UsageError(f"expected (x, y) or (x, y, sample_weight), received {_kind(found)}", where=where)
    return _parts(found, where)


def _check_split(split: SplitArrays, where: str) -> SplitArrays:
    whole = (split.x, split.y, split.sample_weight)
    named = [
        (f"{name}{path}", array)
        for name, part in zip(("x", "y", "sample_weight"), whole, strict=True)
        for path, array in leaves(part)
    ]
    counts = {name: len(array) if array.ndim else 0 for name, array in named}
    if not named or not list(leaves(split.x)) or not list(leaves(split.y)):
        raise UsageError("expected inputs and targets, received none", where=where, hint=_RETURNS)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise UsageError(f"expected one count of samples, received {listed}", where=where)
    if not next(iter(counts.values())):
        raise UsageError("expected at least 1 sample, received 0", where=where)
    checked = iter([_check_array(array, f"{where}: {name}") for name, array in named])
    return SplitArrays(*transform(lambda _: next(checked), whole))


def _check_array(array: NDArray[Any], where: str) -> NDArray[Any]:
    if array.dtype.kind == "O" and all(isinstance(value, str | bytes) for value in array.flat):
        array = array.astype("S") if all(isinstance(value, bytes) for value in array.flat) else array.astype("U")
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    if native.dtype.kind not in "fiubS" or (native.dtype.itemsize > 8 and native.dtype.kind != "S"):
        raise UsageError(f"expected numbers or text, received an array of {array.dtype}", where=where)
    if native.dtype.kind == "S" and native.dtype.itemsize == 0:
        native = native.astype("S1")
    if 0 in native.shape:
        raise UsageError(f"expected values, received shape {list(native.shape)}", where=where)
    if native.dtype.kind == "f":
        check_finite(native, where)
    return native


def _check_alike(train: SplitArrays, validation: SplitArrays, where: str) -> None:
    if (train.sample_weight is None) != (validation.sample_weight is None):
        raise UsageError("expected sample weights in both splits or in none, received them in one", where=where)

    def shape_of(split: SplitArrays) -> Tree:
        kinds = transform(lambda a: f"{list(a.shape[1:])} {a.dtype if a.dtype.kind != 'S' else 'text'}", split.parts)
        return dict(leaves(kinds))

    mine, theirs = shape_of(train), shape_of(validation)
    for path in {**mine, **theirs}:
        if mine.get(path) != theirs.get(path):
            raise UsageError(
                f"expected validation samples like the training samples ({path}: {mine.get(path, 'absent')}), "
                f"received {theirs.get(path, 'absent')}",
                where=where,
            )


def _classes(train: SplitArrays, validation: SplitArrays) -> int:
    """Largest label plus one, where the targets are class numbers."""
    labels = [split.y for split in (train, validation)]
    if not all(isinstance(y, np.ndarray) and y.dtype.kind in "iu" and y.size == len(y) for y in labels):
        return 0
    if min(int(y.min()) for y in labels) < 0:
        return 0
    return max(int(y.max()) for y in labels) + 1


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
