"""Models of a user's own, for the tests."""

from __future__ import annotations

from typing import Any

import keras


class Unsaveable(keras.Model):
    """Has an argument that Keras cannot write down, and no ``get_config``."""

    def __init__(self, helper: object) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.inner(x)


def unsaveable() -> keras.Model:
    return Unsaveable(object())
