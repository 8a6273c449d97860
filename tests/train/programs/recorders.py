"""Callbacks that keep state, for a run that is disturbed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras


class Score(keras.callbacks.Callback):
    """Makes the second epoch the best."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["score"] = [1.0, 5.0, 2.0, 3.0][epoch]


class Best(keras.callbacks.EarlyStopping):
    """A class derived from Keras's."""

    def __init__(self) -> None:
        super().__init__("score", mode="max", patience=10, restore_best_weights=True)


def recorders() -> list[Any]:
    folder = Path(os.environ["RECORDS"])
    save = keras.callbacks.ModelCheckpoint(
        folder / "best.weights.h5", monitor="score", mode="max", save_best_only=True, save_weights_only=True
    )
    return [Score(), save, keras.callbacks.CSVLogger(folder / "log.csv"), Best()]
