"""The built-in MLP: its last layer, and the samples that it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfmp.config import RunConfig
from tfmp.data.entry import ArrayLayout
from tfmp.errors import UsageError
from tfmp.planning.mlp import Head, check_task, count_parameters, mlp_head


@pytest.mark.parametrize(
    ("loss", "classes", "shape", "head"),
    [
        ("sparse_categorical_crossentropy", 7, (), Head(7, "softmax")),
        ("categorical_crossentropy", 0, (5,), Head(5, "softmax")),
        ("binary_crossentropy", 2, (), Head(1, "sigmoid")),
        ("binary_crossentropy", 0, (4,), Head(4, "sigmoid")),
        ("mean_squared_error", 0, (), Head(1, "linear")),
        ("huber", 0, (3,), Head(3, "linear")),
    ],
)
def test_the_last_layer_fits_the_loss(loss: str, classes: int, shape: tuple[int, ...], head: Head) -> None:
    assert mlp_head(loss, classes, shape) == head


def dataset(x: str = "<f8", shape: tuple[int, ...] = (), y: str = "<f8", classes: int = 0, inputs: int = 1) -> Any:
    return SimpleNamespace(
        name="csv",
        classes=classes,
        inputs=[ArrayLayout(x, (9, 4), 0)] * inputs,
        targets=[ArrayLayout(y, (9, *shape), 0)],
    )


def config(**training: Any) -> RunConfig:
    return RunConfig.model_validate({"training": training})


@pytest.mark.parametrize(
    ("training", "samples", "what", "hint"),
    [
        ({}, dataset(), "expected class numbers from 0 on, received targets of shape [n], float64",
         "--set training.loss=mean_squared_error"),
        ({}, dataset(y="|b1"), "received targets of shape [n], bool", "--set training.loss=binary_crossentropy"),
        ({}, dataset(shape=(3,)), "received targets of shape [n, 3], float64", "categorical_crossentropy for one-hot"),
        ({}, dataset(y="<i8", classes=1), "expected labels of at least two classes", "check the labels"),
        ({"loss": "categorical_crossentropy"}, dataset(y="<i8", classes=3), "expected one-hot rows [n, classes]",
         "--set training.loss=sparse_categorical_crossentropy"),
        ({"loss": "mse"}, dataset(inputs=2), "received inputs of 2 arrays", "leave out columns of text"),
        ({"loss": "mse"}, dataset(x="|S5"), "received inputs of text", "model.factory"),
        ({"loss": "mse"}, dataset(shape=(2, 2)), "received targets of 1 arrays of shape [n, 2, 2], float64", "factory"),
        ({"class_weight": [1, 2]}, dataset(y="<i8", classes=3), "expected one weight per class, received 2 weights for "
         "3 classes", ""),
        ({"class_weight": [1, 2], "loss": "mse"}, dataset(), "for targets that are no class numbers", ""),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_are_refused(training: Any, samples: Any, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_task(config(**training), samples)
    assert what in caught.value.what
    assert hint in str(caught.value.hint or "")


def test_parameters_are_those_of_the_last_layer_too() -> None:
    assert count_parameters(config(loss="mse"), dataset(shape=(2,))) == 4 * 128 + 128 + 128 * 2 + 2
