"""What ``data.factory`` may return, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tfmp.data.collect import collect_dataset
from tfmp.errors import UsageError

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 3


def collect(returned: Any) -> Any:
    return collect_dataset(returned, "own.data:load", "data.factory: own.data:load")


def refusal(returned: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        collect(returned)
    return caught.value


def test_arrays_stay_as_they_are() -> None:
    dataset = collect(((X, Y), (X[:2], Y[:2])))
    assert (dataset.name, dataset.classes, dataset.scaled) == ("own.data:load", 3, False)
    assert dataset.train.x.tolist() == X.tolist()
    assert dataset.train.y.dtype == Y.dtype
    assert (dataset.input_shape, dataset.target_shape, len(dataset.validation)) == ((2,), (), 2)
    named = collect({"train": (X, Y), "validation": (X, Y)})
    assert named.validation.x.tolist() == X.tolist()


def test_structures_weights_and_text() -> None:
    words = np.array([["a", "ü"], ["bb", "c"], ["d", "e"]], object)
    split = ({"words": words, "more": [X[:3], X[:3].astype("uint8")]}, (X[:3, 0], Y[:3]), np.ones(3))
    dataset = collect((split, split))
    assert dataset.train.x["words"].tolist() == [[b"a", "ü".encode()], [b"bb", b"c"], [b"d", b"e"]]
    assert dataset.train.x["more"][1].dtype == np.uint8
    assert dataset.input_shape == {"words": (2,), "more": [(2,), (2,)]}
    assert (dataset.classes, dataset.train.sample_weight.tolist()) == (0, [1.0, 1.0, 1.0])


class Samples:
    """Sample i, as people write it for other frameworks."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        if i >= 6:
            raise IndexError(i)
        return {"a": X[i]}, int(Y[i])


class PyDataset:
    """As Keras's, which is recognised by its name."""

    __module__ = "keras.utils"

    def __init__(self, *, steady: bool = True) -> None:
        self._steady, self._reads = steady, 0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        self._reads += 1
        return X[3 * i : 3 * i + 3] + (0 if self._steady else self._reads), Y[3 * i : 3 * i + 3]


class DatasetV2:
    """As TensorFlow's, which is recognised by its name."""

    __module__ = "tensorflow.python.data"

    def __init__(self, *batches: Any, cardinality: int = 2) -> None:
        self._batches, self._cardinality = batches, cardinality

    def cardinality(self) -> int:
        return self._cardinality

    def as_numpy_iterator(self) -> Iterator[Any]:
        return iter(self._batches)


@pytest.mark.parametrize("source", [PyDataset(), DatasetV2((X[:4], Y[:4]), (X[4:], Y[4:]))], ids=["keras", "tf.data"])
def test_batches_are_put_together(source: Any) -> None:
    dataset = collect((source, (X, Y)))
    assert (dataset.train.x.tolist(), dataset.train.y.tolist()) == (X.tolist(), Y.tolist())


def test_samples_are_read_one_by_one() -> None:
    dataset = collect((Samples(), Samples()))
    assert dataset.train.x["a"].tolist() == X.tolist()
    assert dataset.validation.y.tolist() == Y.tolist()


GOOD = (X, Y)


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (None, "expected two splits, received NoneType"),
        ((GOOD, GOOD, GOOD), "expected two splits, received a tuple of 3"),
        ((GOOD, X), "expected samples, received numpy.ndarray"),
        (((X,), GOOD), "expected (x, y) or (x, y, sample_weight), received 1 parts"),
        (((X, Y[:5]), GOOD), "expected one count of samples, received x 6, y 5"),
        (((X[:0], Y[:0]), GOOD), "expected at least 1 sample, received 0"),
        (((X, np.array([{}] * 6)), GOOD), "expected numbers or text, received an array of object"),
        (((np.where(X == 5, np.nan, X), Y), GOOD), "expected finite numbers, received nan in sample 2"),
        (((X.astype("complex64"), Y), GOOD), "expected numbers or text, received an array of complex64"),
        ((GOOD, (X[:, :1], Y)), "expected validation samples like the training samples ([0]: [2] float64), received "
         "[1] float64"),
        ((GOOD, (X, Y, np.ones(6))), "expected sample weights in both splits or in none, received them in one"),
        ((PyDataset(steady=False), GOOD), "the first batch is another one when it is read again"),
        ((DatasetV2((X, Y), cardinality=-1), GOOD), "expected a data set that ends, received an endless one"),
        ((DatasetV2(), GOOD), "expected at least 1 sample, received none"),
        ((DatasetV2((X, Y), (X[:, :1], Y)), GOOD),
         "expected parts of one shape, received [1] after [2] at number 1[0]"),
    ],
)  # fmt: skip
def test_what_is_refused(returned: Any, what: str) -> None:
    error = refusal(returned)
    assert error.what == what
    assert str(error.where).startswith("data.factory: own.data:load")


def test_negative_integers_are_no_classes() -> None:
    assert collect(((X, Y - 1), GOOD)).classes == 0
