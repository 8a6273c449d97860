"""Private parts of Keras's optimizers: gradients arrive summed, and nothing inside a condition leaves the replica."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute import values

from tfmp.errors import TfmpError


def parts_of(optimizer: Any) -> Iterator[Any]:
    """An optimizer and those that it wraps (``LossScaleOptimizer``, ``MultiOptimizer``)."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for part in [inner] if inner is not None else getattr(optimizer, "optimizers", []):
        yield from parts_of(part)


def take_summed_gradients(optimizer: Any) -> None:
    """Make ``optimizer.apply`` expect gradients that are already summed over all replicas.

    Keras sums gradients inside ``apply``, after it has clipped or accumulated them. That is wrong with ``clipnorm``,
    ``clipvalue`` and ``global_clipnorm``, which must see the sum. The bridge sums first, so Keras must not sum again.

    Gradient accumulation and ``ema_overwrite_frequency`` update variables inside a condition, from where TensorFlow
    cannot leave the replica as Keras does: there each replica updates its own copies, with the same numbers.

    Raises:
        TfmpError: The optimizer has no such step: tfmp does not know this version of Keras.
    """
    for part in parts_of(optimizer):
        if not hasattr(part, "_all_reduce_sum_gradients"):
            raise TfmpError(
                f"Keras {keras.__version__}'s {type(part).__name__} has no _all_reduce_sum_gradients",
                where="tfmp.distribute.keras_hooks",
                hint="use a Keras that this tfmp was tested on (see README), or a newer tfmp",
            )
        part._all_reduce_sum_gradients = list
        if getattr(part, "ema_overwrite_frequency", None):
            part._overwrite_model_variables_with_average_value = types.MethodType(_overwrite_with_average, part)
        if getattr(part, "gradient_accumulation_steps", None):
            part._backend_update_step = types.MethodType(_update_step, part)
            part._apply_weight_decay = types.MethodType(_apply_weight_decay, part)
            part._backend_increment_gradient_accumulators = types.MethodType(_increment_accumulators, part)


def _overwrite_with_average(self: Any, trainable_variables: Any) -> None:
    if tf.distribute.in_cross_replica_context():
        type(self)._overwrite_model_variables_with_average_value(self, trainable_variables)
        return
    for variable, average in zip(trainable_variables, self._model_variables_moving_average, strict=True):
        if average is not None:
            self.assign(variable, average.value)


def _update_step(self: Any, gradients: Any, variables: Any, learning_rate: Any) -> None:
    for gradient, variable in zip(gradients, variables, strict=True):
        self.update_step(gradient, variable.value, learning_rate)


def _apply_weight_decay(self: Any, variables: Any) -> None:
    for variable in variables if self.weight_decay is not None else ():
        value = variable.value
        if self._use_weight_decay(value):
            rate, decay = (tf.cast(each, value.dtype) for each in (self.learning_rate, self.weight_decay))
            self.assign_sub(value, value * decay * rate)


def _increment_accumulators(_optimizer: Any, gradients: Any, accumulators: Any) -> None:
    for gradient, accumulator in zip(gradients, accumulators, strict=True):
        accumulator.assign(accumulator + gradient)


def as_one_process_rounds(model: Any, totals: list[Any], variables: list[Any]) -> list[Any]:
    """Summed gradients as one process has them where the loss is scaled: float16 where the layer computes in it.

    A replica's gradient of its few rows may be finite where that of the global batch overflows, and the loss scale is
    chosen by that overflow.
    """
    if not any(isinstance(part, keras.optimizers.LossScaleOptimizer) for part in parts_of(model.optimizer)):
        return totals
    half = {
        id(variable)
        for layer in [*model._flatten_layers()]
        if layer.compute_dtype == "float16"
        for variable in layer._trainable_variables
        if variable._autocast
    }

    def rounded(total: Any) -> Any:
        if isinstance(total, tf.IndexedSlices):
            return tf.IndexedSlices(rounded(total.values), total.indices, total.dense_shape)
        return tf.cast(tf.cast(total, tf.float16), total.dtype)

    return [
        rounded(total) if id(variable) in half else total for total, variable in zip(totals, variables, strict=True)
    ]


def let_variables_be_numbers() -> None:
    """Make ``float()`` and ``int()`` of a Keras variable work under a strategy, as they do without one.

    Keras asks the variable of the strategy, which has neither (``tests/train/test_upstream.py`` notices when it has).
    """
    for name, convert in (("__float__", float), ("__int__", int)):
        if not hasattr(values.DistributedVariable, name):
            setattr(values.DistributedVariable, name, lambda self, convert=convert: convert(self.numpy()))
