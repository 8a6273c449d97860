"""One seed for all workers, where the program has set none."""

from __future__ import annotations

import os

import keras

from tfmp.distribute import keras_hooks

#: ``tfmp launch`` gives all copies the same number.
SEED_VARIABLE = "TFMP_SEED"


def share_seed() -> None:
    """Seed Python, NumPy, TensorFlow and Keras with the launcher's number, unless TensorFlow has a seed already.

    Without it, each worker would draw an order and initial weights of its own. A later call of
    ``keras.utils.set_random_seed`` replaces it.
    """
    text = os.environ.get(SEED_VARIABLE, "")
    if text.isdecimal() and not keras_hooks.has_global_seed():
        keras.utils.set_random_seed(int(text) % 2**32)
