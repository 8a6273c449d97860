"""The fast step of a worker that has a single replica: forward and backward, sum, apply.

*Forward and backward* gathers a batch, casts it, updates the metrics and makes one flat vector of all gradients, with
the loss at its end; *sum* adds the workers' vectors; *apply* is the optimizer's update. Weights change at the
end of a step, so callbacks and checkpoints see whole steps. XLA compiles *apply*, which then is one pass over memory
instead of ten, or both functions, or neither.

It needs dense gradients of one type and metrics that take sample weights. :func:`unsupported_reason` says what is
missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow as tf

from tfmp.distribute import keras_hooks
from tfmp.distribute.keras_hooks import numbers, optimizers
from tfmp.distribute.reducers import Reducer
from tfmp.distribute.step import ReplicaStep, combine_weights, exchanges_inside

Compiled = Literal["none", "apply", "all"]


def unsupported_reason(model: Any, strategy: tf.distribute.Strategy, whole_batch: numbers.WholeBatch) -> str | None:
    """Why the fast step cannot be used for ``model``, or ``None`` if it can."""
    if len(strategy.extended.worker_devices) != 1:
        return "this process holds several replicas"
    if model.run_eagerly:
        return "the model runs eagerly"
    if keras_hooks.unweighted_metrics(model):
        return "a metric given as metrics= takes no sample weights (weighted_metrics= does)"
    if whole_batch.loss or whole_batch.metrics:
        return "the loss or a metric needs the whole batch"
    if exchanges_inside(model):
        return "forward and backward exchange values"
    statistics = [v for v in model.non_trainable_weights if tf.as_dtype(v.dtype).is_floating]
    if len({v.dtype for v in [*model.trainable_weights, *statistics]}) != 1:
        return "the weights are of several types"
    if any(isinstance(layer, keras.layers.Embedding) for layer in keras_hooks.all_layers(model)):
        return "the gradient of an Embedding is sparse"
    if any(v.synchronization == "on_read" for v in model.non_trainable_weights):
        return "a layer's state is spread over replicas"
    return None


class LocalStep:
    """Training steps of the only replica of this worker.

    Args:
        model: A built and compiled model for which :func:`unsupported_reason` is ``None``.
        strategy: Its strategy, with one local device.
        reducer: How to sum over workers.
        gather: Makes a batch of sample numbers [P].
        compiled: What XLA compiles: ``all``, ``apply`` alone, or ``none``.
        autograph: Rewrite Python's control flow over tensors.
    """

    def __init__(
        self,
        model: Any,
        strategy: tf.distribute.Strategy,
        reducer: Reducer,
        gather: Callable[[tf.Tensor], Any],
        *,
        compiled: Compiled,
        autograph: bool,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._reducer = reducer
        self._gather = gather
        self.replica_step = ReplicaStep(model, reducer)
        self._variables = model.trainable_weights
        self._compiles_all = compiled == "all"
        self._autograph = autograph
        self._forward_backward = tf.function(
            self._run_forward_backward, jit_compile=compiled == "all", autograph=autograph
        )
        self._apply = tf.function(self._run_apply, jit_compile=compiled != "none", autograph=autograph)

    def leave_uncompiled_what_xla_cannot(self, steps_per_execution: int, rows: int) -> None:
        """Try to compile both functions with XLA, and warn if one cannot be. All workers get the same result.

        Args:
            steps_per_execution: K.
            rows: P.
        """
        if not self._compiles_all:
            return
        k = tf.constant(0)
        counts = {name: tf.zeros([steps_per_execution], tf.int32) for name in ("n_local", "n_global")}
        block = {"index": tf.zeros([steps_per_execution, rows], tf.int32), **counts, "steps": k}
        self._forward_backward = self._if_compilable(self._forward_backward, "forward and backward", block, k)
        vector = self._forward_backward.get_concrete_function(block, k).structured_outputs
        self._apply = self._if_compilable(self._apply, "the optimizer", tf.zeros(vector.shape, vector.dtype))

    def _if_compilable(self, function: Any, name: str, *arguments: Any) -> Any:
        """The function, or an uncompiled one if XLA cannot compile it."""
        try:
            # Tried beforehand: a failure in the first step would lose its batch.
            function.experimental_get_compiler_ir(*arguments)(stage="hlo", platform_name="CPU")
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"tfmp: {name} runs uncompiled, as XLA cannot compile it: {reason}", stacklevel=2)
            return tf.function(function.python_function, autograph=self._autograph)
        return function

    def step(self, block: Any, k: tf.Tensor) -> tf.Tensor:
        """Run step ``k`` of a block (call in cross-replica context, inside a ``tf.function``).

        Args:
            block: ``index`` int32 [K, P], ``n_local`` int32 [K], ``n_global`` int32 [K].
            k: int32 scalar.

        Returns:
            The loss over the global batch, float64 scalar, equal on all workers.
        """
        total = self._reducer.sum_flat(self._strategy, self._forward_backward(block, k))
        self._apply(total)
        return tf.cast(total[-1], tf.float64)

    def _run_forward_backward(self, block: Any, k: tf.Tensor) -> tf.Tensor:
        return self._local(self._strategy.run(self._replica_forward_backward, args=(block, k)))

    def _replica_forward_backward(self, block: Any, k: tf.Tensor) -> tf.Tensor:
        batch = self._gather(tf.gather(block["index"], k))
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        n_local = tf.gather(block["n_local"], k)
        row_weight, n_global = self.replica_step.row_weight(x, n_local, tf.gather(block["n_global"], k))
        loss, gradients, y_pred = self.replica_step.gradients(x, y, sample_weight, row_weight, n_local, n_global)
        self._variables = self.replica_step.trained_variables(gradients)
        mask = tf.cast(tf.range(tf.shape(keras.tree.flatten(x)[0])[0]) < n_local, tf.as_dtype(keras.config.floatx()))
        self._model.compute_metrics(x, y, y_pred, sample_weight=combine_weights(mask, sample_weight, y_pred))
        dense = [gradient for gradient in gradients if gradient is not None]
        statistics = [v.value for v in self.replica_step.statistics()]
        flat = [tf.reshape(part, [-1]) for part in (*dense, *statistics)]
        return tf.concat([*flat, [tf.cast(loss, dense[0].dtype)]], 0)

    def _run_apply(self, total: tf.Tensor) -> None:
        self._strategy.run(self._replica_apply, args=(total,))

    def _replica_apply(self, total: tf.Tensor) -> None:
        variables, statistics = self._variables, self.replica_step.statistics()
        everything = [*variables, *statistics]
        parts = tf.split(total[:-1], [v.shape.num_elements() for v in everything])
        parts = [tf.reshape(part, v.shape) for part, v in zip(parts, everything, strict=True)]
        self.replica_step.assign_mean(statistics, parts[len(variables) :])
        gradients = optimizers.as_one_process_rounds(self._model, parts[: len(variables)], variables)
        self._model.optimizer.apply(gradients, variables)

    def _local(self, value: Any) -> Any:
        return self._strategy.experimental_local_results(value)[0]
