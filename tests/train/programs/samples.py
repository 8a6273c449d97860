"""Samples of a user's own, and a model for them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

WORDS = np.array(["deep", "fast", "right", "wide"])


def texts() -> Any:
    """Two inputs, words and numbers; yes or no."""
    rng = np.random.default_rng(2)

    def split(n: int) -> Any:
        words, numbers = WORDS[rng.integers(0, 4, (n, 3))], rng.normal(size=(n, 2))
        return {"words": words, "numbers": numbers}, (numbers.sum(1) + (words == "fast").sum(1) > 1).astype("int64")

    return split(203), split(50)


def text_model(input_shape: Any) -> keras.Model:
    words = keras.Input(input_shape["words"], dtype="string", name="words")
    numbers = keras.Input(input_shape["numbers"], name="numbers")
    embedded = keras.layers.Embedding(6, 4)(keras.layers.StringLookup(vocabulary=list(WORDS))(words))
    both = keras.layers.Concatenate()([keras.layers.Flatten()(embedded), numbers])
    return keras.Model({"words": words, "numbers": numbers}, keras.layers.Dense(1, activation="sigmoid")(both))


def spread(y_true: Any, y_pred: Any) -> Any:
    """A metric: how far predictions are from targets."""
    return keras.ops.abs(keras.ops.reshape(y_true, (-1,)) - keras.ops.reshape(y_pred, (-1,)))
