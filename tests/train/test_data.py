"""`tfmp train` on samples of one's own: the numbers of plain Keras, and those of a run that is disturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

from tests.conftest import Run
from tfmp.data.order import epoch_permutation

_FLOAT64 = ("--seed", 7, "--set", "training.precision=float64", "--set", "training.schedule=constant")
_SGD = ("--set", "training.optimizer=sgd", "--set", "training.learning_rate=0.05")


def weights(run: Run) -> list[Any]:
    return keras.models.load_model(run.folder / "model.keras", compile=False).get_weights()


def plain_fit(
    units: int,
    activation: str,
    loss: str,
    x: Any,
    y: Any,
    *,
    batch: int,
    class_weight: dict[int, float] | None = None,
) -> list[Any]:
    """What plain Keras trains in one process, two epochs, in tfmp's order of samples."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.layers.Input(x.shape[1:]),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(units, activation),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), loss)
    for epoch in range(2):
        order = epoch_permutation(len(x), 7, epoch)
        model.fit(x[order], y[order], batch_size=batch, shuffle=False, verbose=0, class_weight=class_weight)
    return model.get_weights()


def largest_difference(one: list[Any], other: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def test_a_regression_on_a_table_is_that_of_plain_keras(
    trained: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    table = np.round(rng.normal(size=(253, 4)), 6)
    for name, rows in (("train", table[:203]), ("test", table[203:])):
        np.savetxt(folder / f"{name}.csv", rows, "%.6f", delimiter=",", header="a,b,price,c", comments="")
    run = trained(
        "--workers", 3, "--epochs", 2, "--batch-size", 32, *_FLOAT64, *_SGD, "--set", "model.units=[8]",
        "--set", "data.dataset=csv", "--set", f"data.path={folder}/train.csv",
        "--set", f"data.validation_path={folder}/test.csv", "--set", "data.target=price",
        "--set", "data.columns=[a,b,c]", "--set", "training.loss=mean_squared_error",
        "--set", "training.metrics=[r2_score,tests.train.programs.samples:spread]",
    )  # fmt: skip
    x, y = table[:203][:, [0, 1, 3]], table[:203, 2]
    expected = plain_fit(1, "linear", "mean_squared_error", x, y, batch=32)
    assert largest_difference(weights(run), expected) <= 1e-12
    assert {"val_loss", "val_r2_score", "val_spread"} <= run.summary.keys()


def test_weighted_classes_of_a_folder_of_images_are_those_of_plain_keras(
    trained: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(1)
    pixels, labels = rng.integers(0, 256, (2, 30, 4, 4), dtype=np.uint8), np.repeat(np.arange(3), 10)
    for split, images in zip(("train", "test"), pixels, strict=True):
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            (folder / split / f"class-{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / split / f"class-{label}" / f"{i:02}.png")
    run = trained(
        "--workers", 2, "--epochs", 2, "--batch-size", 8, *_FLOAT64, *_SGD, "--set", "model.units=[8]",
        "--set", "data.dataset=images", "--set", f"data.path={folder}/train",
        "--set", f"data.validation_path={folder}/test", "--set", "training.class_weight=[1,5,0.5]",
    )  # fmt: skip
    weight = {0: 1.0, 1: 5.0, 2: 0.5}
    x = pixels[0][..., np.newaxis] / 255.0
    expected = plain_fit(3, "softmax", "sparse_categorical_crossentropy", x, labels, batch=8, class_weight=weight)
    assert largest_difference(weights(run), expected) <= 1e-12


def test_text_from_a_factory_is_alike_on_other_workers_and_after_a_restart(trained: Callable[..., Run]) -> None:
    settings = (
        "--epochs", 2, "--batch-size", 32, *_FLOAT64, "--set", "training.loss=binary_crossentropy",
        "--set", "data.factory=tests.train.programs.samples:texts",
        "--set", "model.factory=tests.train.programs.samples:text_model",
    )  # fmt: skip
    alone, together = trained("--workers", 1, *settings), trained("--workers", 2, *settings)
    assert largest_difference(weights(alone), weights(together)) <= 1e-12
    disturbed = trained("--workers", 2, *settings, "--inject-fault", "kill:1@step=9")
    assert disturbed.summary["restarts"] == 1
    assert disturbed.summary["weights_sha256"] == together.summary["weights_sha256"]


def test_what_does_not_fit_is_refused_before_anything_starts(trained: Callable[..., Run], tmp_path: Path) -> None:
    run = trained("--workers", 2, "--set", "data.factory=tests.train.programs.samples:texts", ok=False)
    assert run.done.code == 2
    assert "the built-in MLP takes one array of numbers, received inputs of 2 arrays" in run.done.text
    assert not run.folder.exists()
