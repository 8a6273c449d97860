"""Saves the trained model, which lives on many replicas, as a Keras file; only the chief writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfmp.distribute import read_together
from tfmp.distribute.keras_hooks import reading_values
from tfmp.errors import TfmpError
from tfmp.rundir.layout import atomic_write

Values = list[tuple[Any, npt.NDArray[Any]]]


def weights_sha256(weights: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 over the bytes of ``model.get_weights()``, array after array (C order, little endian)."""
    digest = hashlib.sha256()
    for array in weights:
        digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def read_state(model: Any, strategy: tf.distribute.Strategy) -> Values:
    """Read all variables of the model and its optimizer. Every worker must call this at the same point."""
    unique = {id(v): v for v in [*model.variables, *model.optimizer.variables]}
    variables = list(unique.values())
    return list(zip(variables, read_together(strategy, variables), strict=True))


def weight_values(model: Any, state: Values) -> list[npt.NDArray[Any]]:
    """The part of ``state`` that ``model.get_weights()`` would return."""
    by_id = {id(variable): value for variable, value in state}
    return [by_id[id(weight)] for weight in model.weights]


def save_model(model: Any, state: Values, path: Path) -> None:
    """Write ``model`` with the values in ``state`` as a Keras file, atomically.

    Keras reads variables while it saves. With several workers such a read can be a collective operation, in which the
    chief alone would wait forever. So Keras is given these values instead.

    Raises:
        TfmpError: It cannot be written.
    """
    try:
        with atomic_write(path) as temporary, reading_values((v, tf.constant(value)) for v, value in state):
            model.save(temporary)
    except OSError as error:
        raise TfmpError(
            f"the model cannot be written: {error.strerror or error}",
            where=str(path),
            hint="free disk space; --resume then continues from the last checkpoint",
        ) from error
