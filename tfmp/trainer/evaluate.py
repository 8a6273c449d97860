"""Evaluation of a saved model in one process with plain Keras; equals the ``val_accuracy`` of its run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfmp.config import load_run_config
from tfmp.data.cache import open_cached
from tfmp.errors import TfmpError
from tfmp.events import EvaluationResult, Ready, UserError
from tfmp.references import load_function
from tfmp.rundir.layout import RunFolder
from tfmp.trainer.batches import in_order
from tfmp.trainer.model import set_precision

if TYPE_CHECKING:
    from tfmp.events import EventChannel


def main(payload: dict[str, Any], channel: EventChannel) -> None:
    """Evaluate ``payload["run_dir"]``'s model on the data set of ``payload["data_header"]``; send a ``result`` event.

    Raises:
        SystemExit: With exit code 1, after reporting an error that the user can fix.
    """
    try:
        channel.send(Ready())
        result = evaluate(RunFolder(Path(payload["run_dir"])), payload["data_header"])
    except TfmpError as error:
        channel.send(UserError(error.what, error.where, error.hint))
        print(error.render(), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
    channel.send(EvaluationResult(result))


def evaluate(folder: RunFolder, data_header: str) -> dict[str, float]:
    """Loss and metrics of the saved model over the run's validation samples.

    Raises:
        TfmpError: The model cannot be loaded, or was saved without a loss.
    """
    config = load_run_config(folder.config)
    set_precision(config.training.precision)
    if config.model.factory is not None:
        load_function(config.model.factory, "model.factory")  # registers the classes of its module with Keras
    try:
        model = keras.models.load_model(folder.model)
    except Exception as error:
        raise TfmpError(
            f"the model cannot be loaded: {type(error).__name__}: {str(error)[:300]}",
            where=str(folder.model),
            hint="custom layers must be importable and registered with keras.saving.register_keras_serializable",
        ) from error
    if not model.compiled:
        raise TfmpError("expected a compiled model", where=str(folder.model))
    arrays = open_cached(data_header)
    split = arrays.validation.first(config.data.limit_validation)
    dataset = in_order(split, config.training.validation_batch_size, scaled=arrays.scaled)
    values = model.evaluate(dataset, verbose=0, return_dict=True)
    plain = {name: np.asarray(value).tolist() for name, value in values.items() if value is not None}
    return plain | {"samples": float(len(split))}
