"""Checks of a data set's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tfmp.data.arrays import DatasetArrays, RawSplit, build_dataset
from tfmp.errors import UsageError

IMAGES = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
LABELS = np.array([0, 2, 1], dtype=np.uint8)


def build(
    images: NDArray[Any] = IMAGES,
    labels: NDArray[Any] = LABELS,
    classes: int | None = None,
    validation_images: NDArray[Any] | None = None,
) -> DatasetArrays:
    validation = images if validation_images is None else validation_images
    validation_labels = LABELS[:1].repeat(len(validation))
    return build_dataset(
        "npz",
        RawSplit(images, labels, "x_train", "y_train"),
        RawSplit(validation, validation_labels, "x_test", "y_test"),
        classes,
    )


def failure(where: str, **arguments: Any) -> str:
    with pytest.raises(UsageError) as caught:
        build(**arguments)
    assert caught.value.where == where
    return caught.value.what


def test_shape_type_and_classes_are_taken_from_the_arrays() -> None:
    dataset = build()
    assert (dataset.input_shape, dataset.train.x.dtype, dataset.classes, len(dataset.train)) == ((2, 4), np.uint8, 3, 3)
    assert dataset.train.y.dtype == np.int32
    assert dataset.train.y.tolist() == [0, 2, 1]
    assert build(classes=10).classes == 10


def test_any_memory_order_and_byte_order_become_plain_arrays() -> None:
    images = np.asfortranarray(IMAGES.astype(">f4"))
    dataset = build(images=images)
    assert dataset.train.x.flags.c_contiguous
    assert dataset.train.x.dtype == np.dtype("=f4")
    assert dataset.train.x.tolist() == IMAGES.tolist()


def test_a_column_of_labels_is_flattened() -> None:
    assert build(labels=LABELS[:, None]).train.y.tolist() == [0, 2, 1]


def test_a_label_out_of_range_is_named_with_its_index() -> None:
    assert failure("y_train", classes=2) == "expected labels in 0..1, received 2 at index 1"
    negative = np.array([0, -1, 1])
    assert failure("y_train", labels=negative, classes=3) == "expected labels in 0..2, received -1 at index 1"


def test_a_label_too_large_for_int32_does_not_wrap_into_range() -> None:
    labels = np.array([0, 2**32, 1], dtype=np.uint64)
    assert failure("y_train", labels=labels, classes=3) == "expected labels in 0..2, received 4294967296 at index 1"
    assert failure("y_train", labels=labels) == "expected labels below 2,147,483,647, received 4,294,967,296"


@pytest.mark.parametrize(("value", "text"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_pixel_that_is_no_number_is_named_with_its_sample(value: float, text: str, dtype: type) -> None:
    images: np.ndarray = IMAGES.astype(dtype)
    images[2, 1, 3] = value
    assert failure("x_train", images=images) == f"expected finite numbers, received {text} in sample 2"


def test_the_finiteness_check_covers_arrays_of_several_blocks() -> None:
    images = np.zeros((5, 600, 1000), dtype=np.float32)  # more than one block, the last one partial
    images[4, 599, 999] = np.nan
    what = failure("x_train", images=images, labels=np.zeros(5, int))
    assert what == "expected finite numbers, received nan in sample 4"


@pytest.mark.parametrize(
    ("arguments", "where", "what"),
    [
        ({"images": IMAGES.astype(np.int32)}, "x_train", "float64, received int32"),
        ({"images": IMAGES[:, 0, 0]}, "x_train", "received shape [3]"),
        ({"images": IMAGES[:, :0]}, "x_train", "received shape [3, 0, 4]"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "x_train", "expected at least 1 sample, received 0"),
        ({"labels": LABELS[:2]}, "y_train", "received 3 images and 2 labels"),
        ({"labels": LABELS.astype(float)}, "y_train", "an integer type, received float64"),
        ({"labels": np.eye(3, dtype=int)}, "y_train", "received shape [3, 3]"),
        ({"validation_images": IMAGES[:, :1]}, "x_test", "received shape [1, 4], uint8"),
        ({"validation_images": IMAGES.astype("f4")}, "x_test", "received shape [2, 4], float32"),
    ],
)
def test_arrays_that_cannot_be_trained_on_are_refused(arguments: dict[str, Any], where: str, what: str) -> None:
    assert what in failure(where, **arguments)
