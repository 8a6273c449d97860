"""One step as every replica runs it: forward, backward, sum over replicas, apply, metrics.

Dimension letters: R replicas over all workers, P rows a replica holds (its share of the global batch, padded to a
static size where the feed says so), n_local the real ones among them, n_global the real samples of the global batch.

The loss of the step is the mean over the *global* batch, so a replica's loss is weighted by its number of real
samples: rows are weighted ``mask · R · P / n_global``; Keras divides by P and by R (see ``loss_scale``), and the sum over
replicas is the mean over the global batch, whatever the shares are. (Keras's own step averages the replicas' means:
wrong as soon as shares differ, and NaN where one is empty.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfmp.distribute import keras_hooks
from tfmp.errors import TfmpError

_MEAN_REDUCTIONS = {"sum_over_batch_size", "mean"}


class ReplicaStep:
    """Training and evaluation steps of one model, to be called in a replica context (``strategy.run``)."""

    def __init__(self, model: Any, replicas: int, *, jit_compile: bool = False) -> None:
        self._model = model
        self._replicas = replicas
        self._jit_compile = jit_compile
        self._reductions = keras_hooks.loss_reductions(model)
        self.refused: TfmpError | None = None
        """Why tracing was given up: autograph wraps what is raised inside a function into an error of its own."""

    def train(self, batch: Any, n_local: tf.Tensor | None, n_global: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one training step.

        Args:
            batch: ``x``, ``(x, y)`` or ``(x, y, sample_weight)`` of P rows each.
            n_local: int32 scalar: how many leading rows are real; the rest is padding. ``None``: all of them.
            n_global: int32 scalar: real samples of the global batch. ``None``: to be found out.

        Returns:
            The loss over the global batch (float64 scalar, equal on all replicas) and ``n_global`` (int32 scalar).
        """
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        row_weight, n_global = self._row_weight(x, n_local, n_global)
        variables = model.trainable_weights

        def forward_backward(x: Any, y: Any, sample_weight: Any, row_weight: Any) -> tuple[Any, list[Any], Any]:
            with tf.GradientTape() as tape:
                y_pred = keras_hooks.call_model(model, x, training=True)
                weight = _combine_weights(row_weight, sample_weight, y_pred)
                loss = keras_hooks.compute_loss(model, x, y, y_pred, weight, training=True)
                scaled = model.optimizer.scale_loss(loss)
            return loss, tape.gradient(scaled, [v.value for v in variables]), y_pred

        loss, gradients, y_pred = self._compiled(forward_backward)(x, y, sample_weight, row_weight)
        trained = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if not trained:
            self.refused = TfmpError(
                "no trainable weight of the model has a gradient",
                where=f"model {model.name!r}",
                hint="check that the loss depends on the model's output, and that its layers are trainable",
            )
            raise self.refused
        *summed, loss = sum_over_replicas([*(gradients[i] for i in trained), loss], self._replicas)
        model.optimizer.apply(summed, [variables[i] for i in trained])
        self._update_metrics(x, y, y_pred, sample_weight, n_local)
        return tf.cast(loss, tf.float64), n_global

    def evaluate(
        self, batch: Any, n_local: tf.Tensor | None, n_global: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one evaluation step.

        Returns:
            This replica's part of the global batch's loss (float64 scalar; the sum over replicas is the mean over
            the global batch) and ``n_global`` (int32 scalar).
        """
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        row_weight, n_global = self._row_weight(x, n_local, n_global)

        def forward(x: Any, y: Any, sample_weight: Any, row_weight: Any) -> tuple[tf.Tensor, Any]:
            y_pred = keras_hooks.call_model(model, x, training=False)
            weight = _combine_weights(row_weight, sample_weight, y_pred)
            return keras_hooks.compute_loss(model, x, y, y_pred, weight, training=False), y_pred

        loss, y_pred = self._compiled(forward)(x, y, sample_weight, row_weight)
        self._update_metrics(x, y, y_pred, sample_weight, n_local)
        return tf.cast(loss, tf.float64), n_global

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # A tf.function of its own for each call: one shared by two replica threads would be traced once, with the
        # first replica's variables, and the second would then train those.
        return tf.function(function, jit_compile=True) if self._jit_compile else function

    def _row_weight(
        self, x: Any, n_local: tf.Tensor | None, n_global: tf.Tensor | None
    ) -> tuple[tf.Tensor | None, tf.Tensor]:
        """The weight of each row (shape [P], or ``None`` where all are 1) and ``n_global``."""
        rows, static_rows = _rows(x), _static_rows(x)
        if n_local is None and static_rows is not None:
            # All replicas hold the same, full number of rows: Keras's mean of means is exact as it is.
            return None, tf.constant(static_rows * self._replicas)
        if n_global is None:
            (total,) = sum_over_replicas([tf.cast(rows, tf.float64)], self._replicas)
            n_global = tf.cast(total, tf.int32)
        dtype = tf.as_dtype(keras.config.floatx())
        weight = tf.cast(tf.range(rows) < (rows if n_local is None else n_local), dtype)
        if self._takes_mean():
            samples = tf.cast(tf.maximum(n_global, 1), dtype)
            weight *= tf.cast(rows, dtype) / (samples * keras_hooks.loss_scale(dtype))
        return weight, n_global

    def _takes_mean(self) -> bool:
        """Whether weights must carry the ``P · R / n_global`` factor (losses that are means) or not (sums).

        Raises:
            TfmpError: The losses' reductions do not allow an exact global batch of uneven shares.
        """
        if self._reductions <= _MEAN_REDUCTIONS:
            return True
        if self._reductions == {"sum"}:
            return False
        self.refused = TfmpError(
            "expected losses that all take the mean over samples (reduction 'sum_over_batch_size') or all the sum, "
            f"received reductions {sorted(map(str, self._reductions))}",
            where="model.compile(loss=…)",
            hint="with other reductions, batches must divide evenly: dataset.batch(global_batch, drop_remainder=True)",
        )
        raise self.refused

    def _update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, n_local: tf.Tensor | None) -> None:
        model = self._model
        if n_local is None:
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            return

        def real_rows(value: Any) -> Any:
            return keras.tree.map_structure(lambda one: None if one is None else one[:n_local], value)

        # Metrics see the real rows only, so that those without sample weights are exact too. A replica may have none.
        if tf.greater(n_local, 0):
            model.compute_metrics(real_rows(x), real_rows(y), real_rows(y_pred), sample_weight=real_rows(sample_weight))


def sum_over_replicas(tensors: Sequence[Any], replicas: int) -> list[Any]:
    """Sum each tensor over all replicas: dense ones of one dtype travel as one flat vector.

    Args:
        tensors: Tensors or ``tf.IndexedSlices`` of this replica (call in a replica context).
        replicas: Replicas over all workers; with 1 nothing is sent.
    """
    if replicas == 1:
        return list(tensors)
    groups: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault(i if isinstance(tensor, tf.IndexedSlices) else tensor.dtype, []).append(i)
    packed = []
    for indices in groups.values():
        if isinstance(tensors[indices[0]], tf.IndexedSlices):
            packed.append(tensors[indices[0]])
        else:
            packed.append(tf.concat([tf.reshape(tensors[i], [-1]) for i in indices], 0))
    context = tf.distribute.get_replica_context()
    reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, packed)
    result: list[Any] = [None] * len(tensors)
    for indices, total in zip(groups.values(), reduced, strict=True):
        if isinstance(total, tf.IndexedSlices):
            result[indices[0]] = total
            continue
        sizes = [tf.size(tensors[i]) for i in indices]
        for i, part in zip(indices, tf.split(total, sizes, num=len(indices)), strict=True):
            result[i] = tf.reshape(part, tf.shape(tensors[i]))
            result[i].set_shape(tensors[i].shape)
    return result


def _combine_weights(row_weight: tf.Tensor | None, sample_weight: Any, y_pred: Any) -> Any:
    """The ``sample_weight`` for Keras: the user's own times the weight of each row.

    A loss has one value per row and position ([P], [P, time], [P, height, width]), and Keras stretches a weight by one
    dimension only, so it is shaped to the loss values here.
    """
    if row_weight is None:
        return sample_weight

    def weigh(output: Any, user_weight: Any) -> tf.Tensor:
        if user_weight is not None:
            rank = user_weight.shape.rank or 1
            return tf.cast(user_weight, row_weight.dtype) * tf.reshape(row_weight, [-1] + [1] * (rank - 1))
        rank = max((output.shape.rank or 2) - 1, 1)
        return tf.reshape(row_weight, [-1] + [1] * (rank - 1))

    if not keras.tree.is_nested(y_pred):
        return weigh(y_pred, sample_weight)
    if sample_weight is None or not keras.tree.is_nested(sample_weight):
        return keras.tree.map_structure(lambda output: weigh(output, sample_weight), y_pred)
    return keras.tree.map_structure(weigh, y_pred, sample_weight)


def _first_input(x: Any) -> Any:
    return next(one for one in keras.tree.flatten(x) if one is not None)


def _rows(x: Any) -> tf.Tensor:
    return tf.shape(_first_input(x))[0]


def _static_rows(x: Any) -> int | None:
    shape = _first_input(x).shape
    return None if shape.rank is None else shape[0]
