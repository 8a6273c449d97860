"""One execution: up to ``steps_per_execution`` steps and the exchange between all replicas at their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfmp.distribute import keras_hooks
from tfmp.distribute.control import WISHES
from tfmp.distribute.keras_hooks import numbers
from tfmp.distribute.local_step import Compiled, LocalStep, unsupported_reason
from tfmp.distribute.reducers import Reducer
from tfmp.distribute.share import add_checksum, batch_of
from tfmp.distribute.state import split_state, summed_state
from tfmp.distribute.step import ReplicaStep
from tfmp.distribute.strategy import first_local
from tfmp.errors import TfmpError

__all__ = ["Compiled", "Execution", "IndexedFeed"]

Run = Callable[[Any, tf.Tensor], Any]


class IndexedFeed(Protocol):
    """A source of batches that are gathered inside the step (see :class:`tfmp.distribute.feed.Feed`).

    Its data set yields, for each local replica in turn, one block for an execution of up to K steps: ``index``
    int32 [K, P], ``n_local`` int32 [K], ``n_global`` int32 [K] and ``steps`` int32 [].
    """

    @property
    def rows(self) -> int:
        """Rows per replica (P)."""

    def batch_spec(self) -> Any:
        """Specs of one replica's ``(x, y)`` or ``(x, y, sample_weight)``, as the model sees them."""

    def gather(self, index: tf.Tensor) -> Any:
        """The batch of the sample numbers ``index`` [P]."""


class Execution:
    """Builds the executions of one model.

    Args:
        model: A compiled Keras model, built under ``strategy``.
        strategy: Its strategy.
        reducer: How to sum over replicas.
        metric_variables: The variables whose values all replicas exchange.
        whole_batch: What needs the global batch on every replica.
        training: Whether the steps train or evaluate.
        compiled: Which parts of a step XLA compiles.
        autograph: Whether to rewrite Python's ``if`` and ``while`` over tensors, which user code may need. Rewriting
            tfmp's own functions takes about a second.
    """

    def __init__(
        self,
        model: Any,
        strategy: tf.distribute.Strategy,
        reducer: Reducer,
        metric_variables: list[Any],
        whole_batch: numbers.WholeBatch,
        *,
        training: bool,
        compiled: Compiled,
        autograph: bool,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._reducer = reducer
        self._metric_variables = metric_variables
        self._training = training
        self._compiled = compiled
        self._autograph = autograph
        # An evaluation has too few steps to repay its compilation.
        self._whole_batch = whole_batch
        self._replica_step = ReplicaStep(model, reducer, whole_batch, jit_compile=training and compiled == "all")
        self._step = self._replica_step.train if training else self._replica_step.evaluate
        self._local_step: LocalStep | None = None
        self._rows = 0

    def build(self, feed: IndexedFeed | None) -> Callable[[Any, list[float]], Any]:
        """Return a function of the iterator and this worker's wishes.

        It returns the checksum of each replica's batches (float64 [R]; empty without checksums), the number of steps
        done, each step's loss (float64 [K]; training: over the global batch), each
        step's samples (float64 [K]), as one float64 vector the sums of all workers' wishes and the sum of loss times
        samples, and the results of the metrics over all replicas so far in the epoch, by name.
        """
        run = self._of_batches() if feed is None else self._of_blocks(feed)
        autograph = self._autograph or feed is None
        compiled = run if self._model.run_eagerly else tf.function(run, reduce_retracing=True, autograph=autograph)

        held = self._model.steps_per_execution

        def execute(iterator: Any, wishes: list[float]) -> Any:
            if self._model.steps_per_execution != held:
                raise TfmpError(
                    f"steps_per_execution was changed from {held} to {self._model.steps_per_execution} while fitting",
                    where=f"model {self._model.name!r}",
                    hint="set it before fit",
                )
            try:
                self._before_the_first()
                return compiled(iterator, tf.constant(wishes, tf.float64))
            except Exception:
                if self._replica_step.refused is not None:
                    raise self._replica_step.refused from None
                raise

        return execute

    def _of_batches(self) -> Run:
        steps_per_execution = self._model.steps_per_execution

        def step(element: Any) -> Any:
            return self._step(batch_of(element), None, None)

        def run(iterator: Any, wishes: tf.Tensor) -> Any:
            k, finite, losses, samples, loss_sums = self._start()
            checksum = tf.constant(0, tf.int64)
            while k < steps_per_execution and finite:
                batch = iterator.get_next_as_optional()
                if not batch.has_value():
                    break
                element = batch.get_value()
                checksum = add_checksum(checksum, element, self._strategy)
                outcome = self._strategy.run(step, args=(element,))
                k, finite, losses, samples, loss_sums = self._count(k, losses, samples, loss_sums, outcome)
            return self._end(k, losses, samples, loss_sums, wishes, checksum)

        return run

    def _of_blocks(self, feed: IndexedFeed) -> Run:
        strategy = self._strategy
        if self._training and unsupported_reason(self._model, strategy, self._whole_batch) is None:
            return self._of_local_blocks(feed)

        def step(block: Any, k: tf.Tensor) -> Any:
            batch = feed.gather(tf.gather(block["index"], k))
            return self._step(batch, tf.gather(block["n_local"], k), tf.gather(block["n_global"], k))

        def run(iterator: Any, wishes: tf.Tensor) -> Any:
            block = iterator.get_next()
            steps = first_local(strategy, block["steps"])

            def goes_on(k: tf.Tensor, finite: tf.Tensor, *_: Any) -> tf.Tensor:
                return (k < steps) & finite

            def body(k: tf.Tensor, _: tf.Tensor, losses: Any, samples: Any, loss_sums: Any) -> Any:
                return self._count(k, losses, samples, loss_sums, strategy.run(step, args=(block, k)))

            k, _, losses, samples, loss_sums = tf.while_loop(goes_on, body, self._start(), parallel_iterations=1)
            return self._end(k, losses, samples, loss_sums, wishes)

        return run

    def _of_local_blocks(self, feed: IndexedFeed) -> Run:
        step = LocalStep(
            self._model,
            self._strategy,
            self._reducer,
            feed.gather,
            compiled=self._compiled,
            autograph=self._autograph,
        )
        self._replica_step = step.replica_step
        self._local_step, self._rows = step, feed.rows

        def run(iterator: Any, wishes: tf.Tensor) -> Any:
            block = first_local(self._strategy, iterator.get_next())
            loss_sums = self._start()[-1]

            def goes_on(k: tf.Tensor, finite: tf.Tensor, _: Any) -> tf.Tensor:
                return (k < block["steps"]) & finite

            def body(k: tf.Tensor, _: tf.Tensor, losses: tf.Tensor) -> Any:
                loss = step.step(block, k)
                return k + 1, tf.math.is_finite(loss), _write(losses, k, loss)

            none = tf.zeros([self._model.steps_per_execution], tf.float64)
            start = (tf.constant(0), tf.constant(True), none)
            k, _, losses = tf.while_loop(goes_on, body, start, parallel_iterations=1)
            return self._end(k, losses, tf.cast(block["n_global"], tf.float64), loss_sums, wishes)

        return run

    def _before_the_first(self) -> None:
        step, self._local_step = self._local_step, None
        if step is not None and not self._model.run_eagerly:
            step.leave_uncompiled_what_xla_cannot(self._model.steps_per_execution, self._rows)

    def _start(self) -> Any:
        none = tf.zeros([self._model.steps_per_execution], tf.float64)
        zero = self._strategy.run(lambda: tf.zeros([], tf.float64))
        return tf.constant(0), tf.constant(True), none, none, zero

    def _count(self, k: Any, losses: Any, samples: Any, loss_sums: Any, outcome: Any) -> Any:
        strategy = self._strategy
        loss, n_global = outcome
        first_loss = first_local(strategy, loss)
        loss_sums = strategy.run(_add_weighted, args=(loss_sums, loss, n_global))
        samples = _write(samples, k, first_local(strategy, n_global))
        finite = tf.math.is_finite(first_loss) if self._training else tf.constant(True)
        return k + 1, finite, _write(losses, k, first_loss), samples, loss_sums

    def _end(
        self, k: Any, losses: Any, samples: Any, loss_sums: Any, wishes: tf.Tensor, checksum: tf.Tensor | None = None
    ) -> Any:
        replicas = self._strategy.num_replicas_in_sync if checksum is not None else 0

        def exchange(local_loss_sum: tf.Tensor, wishes: tf.Tensor) -> tf.Tensor:
            extra = [wishes, [local_loss_sum]]
            if checksum is not None:
                rank = tf.distribute.get_replica_context().replica_id_in_sync_group
                extra.insert(0, tf.one_hot(rank, replicas, dtype=tf.float64) * tf.cast(checksum, tf.float64))
            return summed_state(
                self._metric_variables, tf.concat(extra, 0), self._reducer, self._replica_step.replicated
            )

        state = first_local(self._strategy, self._strategy.run(exchange, args=(loss_sums, wishes)))
        tail = state[-1 - WISHES - replicas :]
        return tail[:replicas], k, losses, samples, tail[replicas:], self._results(state)

    def _results(self, state: tf.Tensor) -> dict[str, Any]:
        """The metrics' results from their exchanged state. Inside the function they cost microseconds."""
        tracker = keras_hooks.loss_tracker(self._model)
        results: dict[str, Any] = {}
        with keras.StatelessScope(state_mapping=split_state(self._metric_variables, state)):
            for metric in self._model.metrics:
                if metric is not tracker:
                    results.update(_flat_results(metric.name, metric.result()))
        return results


def _flat_results(name: str, value: Any) -> dict[str, Any]:
    """A metric's result as Keras logs it: nested dicts are flattened."""
    if isinstance(value, dict):
        return {key: part for name, inner in value.items() for key, part in _flat_results(name, inner).items()}
    # A variable itself would be read after the exchange, when its value is no longer this one.
    return {name: value.value if isinstance(value, keras.Variable) else value}


def _add_weighted(total: tf.Tensor, loss: tf.Tensor, n_global: tf.Tensor) -> tf.Tensor:
    return total + loss * tf.cast(n_global, tf.float64)


def _write(vector: tf.Tensor, k: tf.Tensor, value: Any) -> tf.Tensor:
    return tf.tensor_scatter_nd_update(vector, [[k]], [tf.cast(value, tf.float64)])
