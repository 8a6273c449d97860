"""One step as every replica runs it: forward, backward, sum over replicas, apply, metrics.

Dimensions: R replicas over all workers, P rows per replica (its share of the global batch, padded to a static size if
the feed says so), n_local the real rows among them, n_global the real samples of the global batch.

The loss of the step is the mean over the *global* batch, so a replica's loss is weighted by its number of real
samples: rows are weighted ``mask · R · P / n_global``; Keras divides by P and by R (``loss_scale``), and the sum over
replicas is the mean over the global batch, whatever the shares are. (Keras's own step averages the replicas' means:
wrong as soon as shares differ, and NaN where one is empty.)

Where no sum over shares gives the value (:class:`~tfmp.distribute.keras_hooks.numbers.WholeBatch`), every replica
computes it on the gathered global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfmp.distribute import keras_hooks
from tfmp.distribute.gather import RowGather, sum_with_gradient
from tfmp.distribute.keras_hooks import numbers, optimizers
from tfmp.distribute.reducers import Reducer
from tfmp.distribute.strategy import is_multi_worker
from tfmp.errors import TfmpError


class ReplicaStep:
    """Training and evaluation steps of one model, to be called in a replica context (``strategy.run``)."""

    def __init__(
        self, model: Any, reducer: Reducer, whole_batch: numbers.WholeBatch | None = None, *, jit_compile: bool = False
    ) -> None:
        self._model = model
        self._reducer = reducer
        self._replicas = reducer.replicas
        self._whole = whole_batch or numbers.WholeBatch()
        # XLA compiles no exchange.
        self._jit_compile = jit_compile and not self._whole.loss and not exchanges_inside(model)
        self._reductions = keras_hooks.loss_reductions(model)
        self._assigned: list[Any] = []
        self.replicated: set[int] = set()
        """Metric variables (by ``id``) that saw the whole batch, and so are equal on all replicas."""
        self.refused: TfmpError | None = None
        """Why tracing failed: autograph wraps what a function raises into its own error."""

    def train(self, batch: Any, n_local: tf.Tensor | None, n_global: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one training step.

        Args:
            batch: ``x``, ``(x, y)`` or ``(x, y, sample_weight)`` of P rows each.
            n_local: int32 scalar: how many leading rows are real; the rest is padding. ``None``: all are real.
            n_global: int32 scalar: real samples of the global batch. ``None``: determined here.

        Returns:
            The loss over the global batch (float64 scalar, equal on all replicas) and ``n_global`` (int32 scalar).
        """
        model = self._model
        forward_backward = self._compiled(self.gradients)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        row_weight, n_global = self.row_weight(x, n_local, n_global)
        loss, gradients, y_pred = forward_backward(x, y, sample_weight, row_weight, n_local, n_global)
        variables = self.trained_variables(gradients)
        gradients = [gradient for gradient in gradients if gradient is not None]
        # Moving averages of layers are summed too; otherwise they would drift apart between replicas.
        statistics = self.statistics()
        totals = self._reducer.sum([*gradients, loss, *(v.value for v in statistics)])
        loss = totals[len(variables)]
        self.assign_mean(statistics, totals[len(variables) + 1 :])
        model.optimizer.apply(optimizers.as_one_process_rounds(model, totals[: len(variables)], variables), variables)
        self.update_metrics(x, y, y_pred, sample_weight, n_local)
        return tf.cast(loss, tf.float64), n_global

    def gradients(
        self, x: Any, y: Any, sample_weight: Any, row_weight: Any, n_local: Any, n_global: Any
    ) -> tuple[tf.Tensor, list[Any], Any]:
        """Forward and backward of this replica.

        Returns:
            Its part of the loss (the sum over replicas is the mean over the global batch), the gradient of each
            trainable weight (``None`` where the loss does not depend on it), and the predictions.
        """
        model = self._model
        with numbers.assignments_seen() as self._assigned, tf.GradientTape() as tape:
            y_pred = self._call(x, n_local, n_global, training=True)
            loss = self._loss(x, y, y_pred, sample_weight, row_weight, n_local, training=True)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_weights])
        return tf.reduce_mean(loss), gradients, y_pred

    def _call(self, x: Any, n_local: Any, n_global: Any, *, training: bool) -> Any:
        """Call the model on this replica's rows.

        Raises:
            TfmpError: A layer adds a loss that cannot be weighted.
        """

        def total(values: tf.Tensor) -> tf.Tensor:
            return sum_with_gradient(self._reducer, values)

        share = numbers.Forward(_rows(x), n_local, n_global, self._replicas, total)
        with numbers.assignments_seen() as assigned, numbers.forward(share):
            y_pred = keras_hooks.call_model(self._model, x, training=training)
        self._assigned += assigned
        is_whole = self._replicas == 1 and n_local is None
        if share.added and not is_whole:
            self._refuse(
                f"layer {share.added[0]!r} adds a loss of its own, whose value for the global batch cannot be told "
                "from those of its shares",
                where="add_loss, or an activity_regularizer other than L1, L2 and L1L2",
                hint="return what it depends on from the model, and compute it in the loss or in compute_loss",
            )
        for metric in self._model.metrics:
            is_local = any(numbers.is_assigned(v, assigned) for v in metric.variables)
            if is_local and not is_whole and not numbers.adds_up(metric):
                self._refuse(
                    f"metric {metric.name!r} is updated inside the model's call, and its state need not add up",
                    where=f"class {type(metric).__name__}",
                    hint="pass it to compile(metrics=…), or update it in compute_metrics",
                )
        return y_pred

    def _loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any, row_weight: Any, n_local: Any, *, training: bool
    ) -> tf.Tensor:
        """This replica's part of the loss over the global batch."""
        model = self._model
        masked = any(numbers.mask_of(output) is not None for output in keras.tree.flatten(y_pred))
        if not self._whole.loss and not masked:
            weight = combine_weights(row_weight, sample_weight, y_pred)
            return keras_hooks.compute_loss(model, x, y, y_pred, weight, training=training)
        rows = self._row_gather(x, n_local)
        needed = x if numbers.overrides_compute_loss(model) else None
        all_x, all_y, all_pred, weight = self._gathered(rows, (needed, y, y_pred, sample_weight))
        all_pred = rows.with_gradient(all_pred, y_pred)
        with numbers.unscaled_losses(), numbers.assignments_seen() as assigned:
            loss = keras_hooks.compute_loss(
                model, x if needed is None else all_x, all_y, all_pred, weight, training=training
            )
        self._assigned += assigned
        self._note_replicated(assigned)
        return loss / tf.cast(self._replicas, loss.dtype)

    def _row_gather(self, x: Any, n_local: Any) -> RowGather:
        """The gather of this step.

        Raises:
            TfmpError: Its vectors would change their length inside a loop, which TensorFlow cannot exchange.
        """
        capacity = _static_rows(x)
        if capacity is None and self._model.steps_per_execution > 1 and is_multi_worker(tf.distribute.get_strategy()):
            self._refuse(
                "a loss or metric that needs the whole batch takes steps_per_execution=1, or batches of one size",
                where="model.compile(steps_per_execution=…)",
                hint="set steps_per_execution=1, or drop the last batch: dataset.batch(…, drop_remainder=True)",
            )
        return RowGather(self._reducer, _rows(x) if n_local is None else n_local, capacity)

    def _gathered(self, rows: RowGather, parts: Any) -> Any:
        try:
            return rows.gather(parts)
        except TfmpError as error:
            self.refused = error
            raise

    def _note_replicated(self, assigned: list[Any]) -> None:
        for metric in self._model.metrics:
            self.replicated |= {id(v) for v in metric.variables if numbers.is_assigned(v, assigned)}

    def statistics(self) -> list[Any]:
        """Floating weights that the layers assign while they train: all replicas keep their mean.

        Known after :meth:`gradients`. Frozen weights are not among them. Empty with one replica.
        """
        if self._replicas == 1:
            return []
        weights = [v for v in self._model.non_trainable_weights if numbers.is_assigned(v, self._assigned)]
        return [v for v in weights if tf.as_dtype(v.dtype).is_floating and v.synchronization != "on_read"]

    def assign_mean(self, variables: list[Any], totals: list[Any]) -> None:
        """Set each variable to its mean over replicas (call in a replica context)."""
        for variable, total in zip(variables, totals, strict=True):
            variable.assign(total / tf.cast(self._replicas, total.dtype))

    def trained_variables(self, gradients: list[Any]) -> list[Any]:
        """The trainable weights that have a gradient.

        Raises:
            TfmpError: None has.
        """
        variables = self._model.trainable_weights
        trained = [v for v, gradient in zip(variables, gradients, strict=True) if gradient is not None]
        if not trained:
            self.refused = TfmpError(
                "no trainable weight of the model has a gradient",
                where=f"model {self._model.name!r}",
                hint="check that the loss depends on the model's output, and that its layers are trainable",
            )
            raise self.refused
        return trained

    def evaluate(
        self, batch: Any, n_local: tf.Tensor | None, n_global: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one evaluation step.

        Returns:
            This replica's part of the global batch's loss (float64 scalar; the sum over replicas is the mean over
            the global batch) and ``n_global`` (int32 scalar).
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        row_weight, n_global = self.row_weight(x, n_local, n_global)

        def forward(x: Any, y: Any, sample_weight: Any, row_weight: Any) -> tuple[tf.Tensor, Any]:
            y_pred = self._call(x, n_local, n_global, training=False)
            return self._loss(x, y, y_pred, sample_weight, row_weight, n_local, training=False), y_pred

        loss, y_pred = self._compiled(forward)(x, y, sample_weight, row_weight)
        self.update_metrics(x, y, y_pred, sample_weight, n_local)
        return tf.cast(tf.reduce_mean(loss), tf.float64), n_global

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Each call gets its own tf.function: if two replica threads shared one, it would be traced once, with the
        # first replica's variables, and the second replica would train those.
        return tf.function(function, jit_compile=True) if self._jit_compile else function

    def row_weight(
        self, x: Any, n_local: tf.Tensor | None, n_global: tf.Tensor | None
    ) -> tuple[tf.Tensor | None, tf.Tensor]:
        """The weight of each row (shape [P], or ``None`` where all are 1) and ``n_global``."""
        rows, static_rows = _rows(x), _static_rows(x)
        if n_local is None and static_rows is not None:
            # All replicas hold the same, full number of rows: Keras's mean of means is exact as it is.
            return None, tf.constant(static_rows * self._replicas)
        if n_global is None:
            (total,) = self._reducer.sum([tf.cast(rows, tf.float64)])
            n_global = tf.cast(total, tf.int32)
        dtype = tf.as_dtype(keras.config.floatx())
        weight = tf.cast(tf.range(rows) < (rows if n_local is None else n_local), dtype)
        if self._takes_mean():
            samples = tf.cast(tf.maximum(n_global, 1), dtype)
            weight *= tf.cast(rows, dtype) / (samples * keras_hooks.loss_scale(dtype))
        return weight, n_global

    def _refuse(self, what: str, *, where: str, hint: str) -> None:
        self.refused = TfmpError(what, where=where, hint=hint)
        raise self.refused

    def _takes_mean(self) -> bool:
        """Whether weights need the factor ``P · R / n_global`` (losses that are means) or not (sums)."""
        return self._reductions != {"sum"}

    def update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, n_local: tf.Tensor | None) -> None:
        """Update the model's metrics with the real rows of a batch."""
        model = self._model
        if self._whole.metrics:
            rows = self._row_gather(x, n_local)
            needed = x if numbers.overrides_compute_metrics(model) else None
            _, y, y_pred, sample_weight = gathered = self._gathered(rows, (needed, y, y_pred, sample_weight))
            with numbers.assignments_seen() as assigned:
                model.compute_metrics(x if needed is None else gathered[0], y, y_pred, sample_weight=sample_weight)
            self._note_replicated(assigned)
            return
        if n_local is None:
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            return

        def real_rows(value: Any) -> Any:
            return keras.tree.map_structure(lambda rows: None if rows is None else _first(rows, n_local), value)

        def update() -> tf.Tensor:
            model.compute_metrics(real_rows(x), real_rows(y), real_rows(y_pred), sample_weight=real_rows(sample_weight))
            return tf.constant(0)

        # Metrics see only the real rows, so metrics without sample weights are exact too. A replica may have no rows.
        tf.cond(tf.greater(n_local, 0), update, lambda: tf.constant(0))


def combine_weights(row_weight: tf.Tensor | None, sample_weight: Any, y_pred: Any) -> Any:
    """The ``sample_weight`` for Keras: the user's times the weight of each row.

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


def exchanges_inside(model: Any) -> bool:
    """Whether forward and backward of the model exchange values with other replicas, which XLA cannot compile."""
    return numbers.synchronizes_moments(model) or numbers.hands_on_masks(model)


def _first(rows: Any, count: Any) -> Any:
    """The first rows, with their mask."""
    mask = numbers.mask_of(rows)
    return numbers.with_mask(rows[:count], None if mask is None else mask[:count])


def _first_input(x: Any) -> Any:
    return next(tensor for tensor in keras.tree.flatten(x) if tensor is not None)


def _rows(x: Any) -> tf.Tensor:
    return tf.shape(_first_input(x))[0]


def _static_rows(x: Any) -> int | None:
    shape = _first_input(x).shape
    return None if shape.rank is None else shape[0]
