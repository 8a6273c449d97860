"""Private parts of Keras that decide about the numbers: what losses and metrics return, penalties, moments, masks.

The patches are made once, on the classes, and do nothing outside the contexts of this module. A context belongs to a
thread: a MirroredStrategy runs each replica in one of its own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

_MEAN_REDUCTIONS = {"sum_over_batch_size", "mean"}
_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
_here = threading.local()


@dataclass
class WholeBatch:
    """What needs the global batch on every replica, as no sum over the replicas' shares gives its value.

    Attributes:
        loss: The loss: it returns one number for the batch, or the model has a ``compute_loss`` of its own.
        metrics: A metric: its state does not add up, or it returns one number for the batch.
    """

    loss: bool = False
    metrics: bool = False
    seen: bool = False


@dataclass
class Forward:
    """The rows in one call of the model on a replica.

    Attributes:
        rows: Rows of the batch on this replica, int32 scalar.
        n_local: The real ones, which come first; ``None``: all.
        n_global: The real rows of the global batch.
        replicas: R.
        sum: Sums a float vector over all replicas, with a gradient.
        added: Names of layers that added a loss which is no sum over rows.
    """

    rows: tf.Tensor
    n_local: tf.Tensor | None
    n_global: tf.Tensor
    replicas: int
    sum: Callable[[tf.Tensor], tf.Tensor]
    added: list[str] = field(default_factory=list)
    penalty_of: Any = None

    def real(self, tensor: tf.Tensor) -> tf.Tensor:
        """Which of the leading entries of a layer's tensor belong to real rows: bool vector."""
        size = tf.shape(tensor)[0]
        real = self.rows if self.n_local is None else self.n_local
        # A layer may fold other dimensions into the rows.
        return tf.range(size) < real * (size // tf.maximum(self.rows, 1))


def _current(name: str) -> Any:
    return getattr(_here, name, None)


@contextlib.contextmanager
def _set(name: str, value: Any) -> Iterator[Any]:
    before = _current(name)
    setattr(_here, name, value)
    try:
        yield value
    finally:
        setattr(_here, name, before)


def forward(rows: Forward) -> Any:
    """While active, activity regularisers and batch normalisation know the real rows and the other replicas."""
    _patch()
    return _set("forward", rows)


def unscaled_losses() -> Any:
    """While active, Keras does not divide losses and penalties by the number of replicas."""
    _patch()
    return _set("unscaled", True)


def losses_are_scaled() -> bool:
    """Whether Keras divides losses by the number of replicas here."""
    return not _current("unscaled")


def assignments_seen() -> Any:
    """While active, the list that it yields takes each ``tf.Variable`` of a strategy that is assigned."""
    _patch()
    return _set("assigned", [])


def is_assigned(variable: Any, assigned: list[Any]) -> bool:
    """Whether a Keras variable is in the list of :func:`assignments_seen`."""
    return any(variable.value is each for each in assigned)


def watch_build(model: Any) -> WholeBatch:
    """Note while Keras builds ``model`` from shapes what needs the whole batch; see the result after that."""
    _patch()
    found = WholeBatch()
    own = model._symbolic_build

    def symbolic_build(iterator: Any = None, data_batch: Any = None) -> None:
        containers = [model._compile_loss, model._compile_metrics]
        is_built = all(container is None or container.built for container in containers)
        with _set("whole", found):
            own(iterator=iterator, data_batch=data_batch)
            if is_built and not found.seen and data_batch is not None:
                _call_from_shapes(model, data_batch)
        found.seen = True
        found.loss = found.loss or _loss_is_unknown(model)
        found.metrics = found.metrics or _metrics_are_unknown(model)

    model._symbolic_build = symbolic_build
    return found


def _call_from_shapes(model: Any, data_batch: Any) -> None:
    """Call loss and metrics of a model that was built before, as Keras does to build them."""
    from keras.src import backend

    def symbolic(spec: Any) -> Any:
        return None if spec is None else keras.KerasTensor(spec.shape, backend.standardize_dtype(spec.dtype))

    x, y, weight = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(symbolic, data_batch))
    y_pred = backend.compute_output_spec(model, x)
    backend.compute_output_spec(model.compute_metrics, x, y, y_pred, sample_weight=weight)
    backend.compute_output_spec(model._compute_loss, x, y, y_pred, sample_weight=weight, training=False)


def _overrides(model: Any, name: str) -> bool:
    return name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)


def overrides_compute_loss(model: Any) -> bool:
    """Whether the user's class has a ``compute_loss`` of its own."""
    return _overrides(model, "compute_loss")


def overrides_compute_metrics(model: Any) -> bool:
    """Whether the user's class has a ``compute_metrics`` of its own."""
    return _overrides(model, "compute_metrics")


def _loss_is_unknown(model: Any) -> bool:
    if overrides_compute_loss(model):
        return True
    container = model._compile_loss
    if container is None:
        return False
    losses = [entry.loss for entry in container._flat_losses or []]
    reductions = {loss.reduction for loss in losses}
    if not (reductions <= _MEAN_REDUCTIONS or reductions == {"sum"}):
        return True
    return any(type(loss).__call__ is not keras.losses.Loss.__call__ for loss in losses)


def _metrics_are_unknown(model: Any) -> bool:
    if overrides_compute_metrics(model):
        return True
    container = model._compile_metrics
    return container is not None and not all(adds_up(metric) for metric in container.metrics)


def adds_up(metric: Any) -> bool:
    """Whether the states of a metric for parts of a batch sum to that for the batch.

    All of Keras's own metrics are made like that, except correlations along the batch.
    """
    if not type(metric).__module__.startswith("keras.src.metrics"):
        return False
    return getattr(metric, "axis", -1) == -1 or not isinstance(
        metric, keras.metrics.PearsonCorrelation | keras.metrics.ConcordanceCorrelation
    )


def mask_of(tensor: Any) -> Any:
    """The mask that Keras's layers handed on with a tensor, or ``None``."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, mask: Any) -> Any:
    """The tensor with a mask that Keras's losses and metrics see."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def hands_on_masks(model: Any) -> bool:
    """Whether a layer of the model makes a mask."""
    layers = model._flatten_layers(include_self=False)
    return any(isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False) for layer in layers)


def synchronizes_moments(model: Any) -> bool:
    """Whether a layer of the model normalises with moments over all replicas."""
    return any(getattr(layer, "synchronized", False) for layer in model._flatten_layers(include_self=False))


# ---- the patches


@functools.cache
def _patch() -> None:
    from keras.src.losses import loss as loss_module
    from keras.src.metrics import reduction_metrics
    from tensorflow.python.distribute import values

    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        setattr(loss_module, name, _unless_unscaled(getattr(loss_module, name)))
    loss_module.reduce_weighted_values = _noting("loss", loss_module.reduce_weighted_values)
    keras.losses.Loss.__call__ = _knowing_rows("loss", keras.losses.Loss.__call__)
    reduction_metrics.reduce_to_samplewise_values = _noting("metrics", reduction_metrics.reduce_to_samplewise_values)
    wrapper = keras.metrics.MeanMetricWrapper
    wrapper.update_state = _knowing_rows("metrics", wrapper.update_state)
    for name in ("assign", "assign_add", "assign_sub"):
        setattr(values.DistributedVariable, name, _seen(getattr(values.DistributedVariable, name)))
    for regularizer in _SUMS:
        regularizer.__call__ = _over_real_rows(regularizer.__call__)
    keras.layers.Layer.add_loss = _noting_foreign(keras.layers.Layer.add_loss)
    normalization = keras.layers.BatchNormalization
    normalization._moments = _moments_of_real_rows(normalization._moments)


def _unless_unscaled(stock: Any) -> Any:
    @functools.wraps(stock)
    def scale(value: Any) -> Any:
        return stock(value) if losses_are_scaled() else value

    return scale


def _knowing_rows(kind: str, stock: Any) -> Any:
    @functools.wraps(stock)
    def call(self: Any, y_true: Any, y_pred: Any, *args: Any, **named: Any) -> Any:
        if _current("whole") is None:
            return stock(self, y_true, y_pred, *args, **named)
        with _set(f"rows of {kind}", keras.tree.flatten(y_pred)[0].shape[:1]):
            return stock(self, y_true, y_pred, *args, **named)

    return call


def _noting(kind: str, stock: Any) -> Any:
    @functools.wraps(stock)
    def reduce(values: Any, *args: Any, **named: Any) -> Any:
        whole, rows = _current("whole"), _current(f"rows of {kind}")
        if whole is not None and rows is not None:
            whole.seen = True
            if tuple(values.shape[:1]) != tuple(rows):
                setattr(whole, kind, True)
        return stock(values, *args, **named)

    return reduce


def _seen(stock: Any) -> Any:
    @functools.wraps(stock)
    def assign(self: Any, *args: Any, **named: Any) -> Any:
        assigned = _current("assigned")
        if assigned is not None:
            assigned.append(self)
        return stock(self, *args, **named)

    return assign


def _over_real_rows(stock: Any) -> Any:
    @functools.wraps(stock)
    def penalty(self: Any, x: Any) -> Any:
        rows: Forward | None = _current("forward")
        if rows is None:
            return stock(self, x)
        rows.penalty_of = self
        if rows.n_local is not None and len(x.shape):
            real = tf.reshape(rows.real(x), [-1] + [1] * (len(x.shape) - 1))
            x = tf.where(real, x, tf.zeros_like(x))
        value = stock(self, x)
        # Keras divides by R, and newer ones by this replica's rows.
        value *= tf.cast(rows.replicas, value.dtype)
        if not _divides_penalties_by_rows():
            return value
        return value * tf.cast(rows.rows, value.dtype) / tf.cast(tf.maximum(rows.n_global, 1), value.dtype)

    return penalty


def _divides_penalties_by_rows() -> bool:
    return "batch_size" in inspect.unwrap(keras.layers.Layer.__call__).__code__.co_varnames


def _noting_foreign(stock: Any) -> Any:
    @functools.wraps(stock)
    def add_loss(self: Any, loss: Any) -> Any:
        rows: Forward | None = _current("forward")
        if rows is not None:
            if rows.penalty_of is None or rows.penalty_of is not self.activity_regularizer:
                rows.added.append(self.name)
            rows.penalty_of = None
        return stock(self, loss)

    return add_loss


def _moments_of_real_rows(stock: Any) -> Any:
    @functools.wraps(stock)
    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        rows: Forward | None = _current("forward")
        if rows is None or (rows.n_local is None and not self.synchronized):
            return stock(self, inputs, mask)
        axes, epsilon = self._reduction_axes, 0.0 if mask is None else keras.config.epsilon()
        real = rows.real(inputs)
        if not self.synchronized:
            # A replica without real rows normalises its padding.
            real |= tf.logical_not(tf.reduce_any(real))
        real = tf.reshape(real, [-1] + [1] * (len(inputs.shape) - 1))
        if mask is not None:
            real &= tf.cast(mask, tf.bool)[..., tf.newaxis]
        real = tf.broadcast_to(real, tf.shape(inputs))

        def total(values: tf.Tensor) -> tf.Tensor:
            local = tf.reduce_sum(tf.where(real, values, tf.zeros_like(values)), axes)
            return rows.sum(local) if self.synchronized else local

        count = total(tf.ones_like(inputs))
        mean = tf.math.divide_no_nan(total(inputs), count + epsilon)
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        variance = tf.math.divide_no_nan(total(tf.square(inputs - tf.reshape(mean, shape))), count + epsilon)
        return mean, variance

    return moments
