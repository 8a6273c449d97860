"""The same training as one process of plain Keras, without strategy or bridge: what ``tfmp verify`` compares with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt

from tfmp.data.cache import open_cached
from tfmp.data.order import epoch_plan
from tfmp.errors import TfmpError
from tfmp.events import EvaluationResult, Ready, UserError
from tfmp.planning.task import WorkerTask
from tfmp.trainer.batches import batches, in_order
from tfmp.trainer.callbacks import StepRecorder
from tfmp.trainer.model import build_callbacks, build_model, set_precision
from tfmp.trainer.recording import Recording, compare, worst_of_each_step

if TYPE_CHECKING:
    from tfmp.data.arrays import DatasetArrays
    from tfmp.events import EventChannel


def main(payload: dict[str, Any], channel: EventChannel) -> None:
    """Train twice, compare with what the workers recorded, and send a ``result`` event.

    The second training takes the rows of every batch in another order. Both compute the same but for rounding and
    random layers, so their difference is the natural spread.

    Raises:
        SystemExit: With exit code 1, after reporting an error that the user can fix.
    """
    try:
        channel.send(Ready())
        task = WorkerTask.from_json(payload)
        if task.record is None:
            raise ValueError("expected a task with a folder of recorded steps")
        one, permuted = (Recording(task.record.with_name(name)) for name in ("one", "permuted"))
        _train(task, one, permuted=False)
        _train(task, permuted, permuted=True)
        found = compare(Recording(task.record), one, permuted, task.config.training.precision)
    except TfmpError as error:
        channel.send(UserError(error.what, error.where, error.hint))
        print(error.render(), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
    first = next((asdict(difference) for difference in found if difference.is_too_large), None)
    channel.send(EvaluationResult({"first": first, "steps": [asdict(worst) for worst in worst_of_each_step(found)]}))


def _train(task: WorkerTask, recording: Recording, *, permuted: bool) -> None:
    config = task.config
    set_precision(config.training.precision)
    keras.utils.clear_session()
    keras.utils.set_random_seed(config.training.seed)
    arrays = open_cached(str(task.data_header))
    epochs, steps = config.training.epochs, task.steps_per_epoch
    model = build_model(config, arrays, epochs * steps)
    model.fit(
        _training(task, arrays, permuted),
        epochs=epochs,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=[
            *build_callbacks(config.training),
            StepRecorder(recording, lambda variables: [keras.ops.convert_to_numpy(v) for v in variables]),
        ],
        validation_data=_validation(task, arrays),
        validation_freq=config.training.validation_every or [epochs],
    )


def _values(variables: Sequence[Any]) -> list[npt.NDArray[Any]]:
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def _training(task: WorkerTask, arrays: DatasetArrays, permuted: bool) -> Any:
    """The global batches of all epochs."""
    training, data = task.config.training, task.config.data
    split = arrays.train.first(data.limit_train).class_weighted(training.class_weight)

    def numbers() -> Iterator[npt.NDArray[np.int32]]:
        for epoch in range(training.epochs):
            plan = epoch_plan(
                len(split), training.batch_size, 0, 1, training.seed, epoch, data.shuffle, training.steps_per_epoch
            )
            for row, rows in zip(plan.index, plan.n_local, strict=True):
                yield row[:rows][::-1] if permuted else row[:rows]

    return batches(split, numbers, scaled=arrays.scaled)


def _validation(task: WorkerTask, arrays: DatasetArrays) -> Any:
    split = arrays.validation.first(task.config.data.limit_validation)
    return in_order(split, task.config.training.validation_batch_size, scaled=arrays.scaled)
