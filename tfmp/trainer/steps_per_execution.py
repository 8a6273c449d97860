"""Steps per execution for user code, which the plan does not know."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import keras

from tfmp.distribute import keras_hooks
from tfmp.planning.batches import most_steps_per_execution

_BATCH_HOOKS = (
    "on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end",
    "on_test_batch_begin", "on_test_batch_end",
)  # fmt: skip


def acts_on_batches(callback: Any) -> bool:
    """Whether a user callback does something at every batch. Keras's own callbacks work with executions."""
    if any(name in vars(callback) for name in _BATCH_HOOKS):  # as LambdaCallback has them
        return True
    bases = type(callback).__mro__
    owners = (next(base for base in bases if name in vars(base)) for name in _BATCH_HOOKS)
    return not all(owner.__module__.startswith("keras.") for owner in owners)


def work_per_row(model: Any) -> int | None:
    """Parameters of a model, each counted as often as a sample uses it; ``None`` if the shapes of layers are unknown.

    Args:
        model: A built Keras model. A convolution uses its kernel at every position, a recurrent layer at every step.
    """
    work = 0
    for layer in keras_hooks.all_layers(model):
        own = keras_hooks.own_variables(layer)
        if not own:
            continue
        try:
            shapes = [tensor.shape for tensor in keras.tree.flatten([layer.input, layer.output])]
        except (AttributeError, ValueError):  # not called with symbolic tensors: a subclassed model
            return None
        if any(size is None for shape in shapes for size in shape[1:]):
            return None
        positions = max(math.prod(shape[1:-1]) for shape in shapes)
        work += positions * sum(math.prod(variable.shape) for variable in own)
    return work


def steps_for_user_code(model: Any | None, callbacks: Iterable[Any], planned: int, rows: int) -> int:
    """Return the steps of an execution for a user's model or callbacks.

    It depends only on the code, so it is the same on every worker.

    Args:
        model: The user's model, built; ``None`` for the built-in one.
        callbacks: The user's callbacks.
        planned: The steps that the plan chose: the maximum.
        rows: Rows per replica and step.
    """
    if any(map(acts_on_batches, callbacks)):
        return 1
    if model is None:
        return planned
    work = work_per_row(model)
    return 1 if work is None else min(planned, most_steps_per_execution(6, rows, work))
