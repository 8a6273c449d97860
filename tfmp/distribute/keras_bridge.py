"""The Keras 3 bridge: ``model.fit`` and ``model.evaluate`` of any compiled Keras model under ``tf.distribute``.

>>> strategy = tf.distribute.MultiWorkerMirroredStrategy()
>>> with strategy.scope():
...     model = build_and_compile()
>>> bridge(model)
>>> model.fit(dataset, epochs=3)

Only public hooks of Keras are replaced (``make_train_function``, ``make_test_function``, ``reset_metrics``,
``get_metrics_result``), on the instance: the model's class, its configuration and its saved file do not change.
Private hooks are in :mod:`tfmp.distribute.keras_hooks`.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfmp.distribute import keras_hooks
from tfmp.distribute.agreement import check_batches, check_weights
from tfmp.distribute.control import WISHES, FitControl
from tfmp.distribute.execution import Compiled, Execution, IndexedFeed
from tfmp.distribute.keras_hooks import numbers, optimizers
from tfmp.distribute.reducers import Reducer
from tfmp.distribute.seed import share_seed
from tfmp.distribute.share import batch_of, share
from tfmp.distribute.state import decorrelate_seeds, first_local_replica, gather_flags, values_kept
from tfmp.distribute.strategy import data_sets_distributed, is_multi_worker
from tfmp.errors import EXIT_TERMINATED, TfmpError

# Before the program makes its data sets: what they draw depends on the seed from then on.
share_seed()

#: For the launcher to stop this worker after another one has failed.
_LAUNCHER_S = 10.0


class NonFiniteLossError(TfmpError):
    """The loss over the global batch became NaN or infinite; all workers raise it at the same step."""


def bridge(
    model: Any,
    *,
    feed: IndexedFeed | None = None,
    validation_feed: IndexedFeed | None = None,
    jit_compile: bool | Compiled = False,
    autograph: bool = True,
    reducer: Reducer | None = None,
    control: FitControl | None = None,
) -> Any:
    """Make ``fit`` and ``evaluate`` of a compiled Keras model correct under a ``tf.distribute`` strategy.

    N replicas then compute what one process would with the same global batches. Gradients are weighted by samples (also
    in short and uneven batches), summed over all replicas before they are clipped, and applied once. Loss and metrics
    in logs and callbacks are those of all replicas, equal on every worker.

    A plain ``tf.data.Dataset`` passed to ``fit`` must hold *global* batches: ``tf.distribute`` splits each over the
    replicas. Pass a data set that holds only one worker's share through
    ``strategy.distribute_datasets_from_function`` first.

    Args:
        model: A compiled Keras model, built under ``strategy.scope()``.
        feed: Source of batches that are gathered inside the step, as in ``tfmp train``. ``None``: the data set holds
            batches.
        validation_feed: The same for ``evaluate``.
        jit_compile: What XLA compiles: forward, backward and apply (``True`` or ``"all"``), apply alone (``"apply"``,
            if the fast step can be used), or nothing. Never the exchange.
        autograph: Rewrite Python's ``if`` and ``while`` over tensors. A model of Keras's own layers, losses and metrics
            does not need it, which saves about a second at the start.
        reducer: How to sum over replicas. ``None``: with TensorFlow's collectives.
        control: What the workers agree on between executions, and the progress of the epoch.

    Returns:
        The same model.

    Raises:
        TfmpError: The model is not compiled, was built outside a strategy or has its own ``train_step``, or tfmp does
            not know the hooks of this version of TensorFlow or Keras.
    """
    keras_hooks.check_versions()
    keras_hooks.check_model_hooks(model)
    if not model.compiled:
        raise TfmpError("expected a compiled model", where=f"model {model.name!r}", hint="call model.compile(…) first")
    strategy = keras_hooks.strategy_of(model)
    if strategy is None:
        raise TfmpError(
            "the model was built outside the strategy",
            where=f"model {model.name!r}",
            hint="build and compile it inside `with strategy.scope():`",
        )
    if keras_hooks.has_own_train_step(model):
        raise TfmpError(
            "a model with a train_step or test_step of its own is not supported: tfmp replaces both",
            where=f"class {type(model).__name__}",
            hint="override compute_loss or compute_metrics instead",
        )
    reducer = reducer or Reducer(strategy.num_replicas_in_sync)
    compiled = jit_compile if isinstance(jit_compile, str) else "all" if jit_compile else "none"
    _Bridge(model, feed, validation_feed, compiled, autograph, reducer, control or FitControl()).install()
    return model


class _Bridge:
    """The state of one bridged model, kept outside Keras's attribute tracking."""

    def __init__(
        self,
        model: Any,
        feed: IndexedFeed | None,
        validation_feed: IndexedFeed | None,
        compiled: Compiled,
        autograph: bool,
        reducer: Reducer,
        control: FitControl,
    ) -> None:
        self.model = model
        self.strategy: tf.distribute.Strategy = keras_hooks.strategy_of(model)
        self.feed = feed
        self.validation_feed = validation_feed
        self.compiled = compiled
        self.autograph = autograph
        self.reducer = reducer
        self.control = control
        self.steps_done = 0
        self._seeded = False
        self._whole_batch = numbers.WholeBatch()
        self._train_execution: Any = None
        self._iterator: Any = None

    def install(self) -> None:
        model = self.model
        optimizers.let_variables_be_numbers()
        self._whole_batch = numbers.watch_build(model)
        keras_hooks.scale_penalties_exactly(model, self.strategy.num_replicas_in_sync)
        keras_hooks.replace_symbolic_build(model, self.strategy, self._batch_spec)
        model.make_train_function = self._make_train_function
        model.make_test_function = self._make_test_function
        model.fit = self._with_shares(model.fit)
        model.evaluate = self._with_shares(model.evaluate)
        model.predict = self._without_shares(model.predict)
        model.reset_metrics = self._reset_metrics
        model.get_metrics_result = lambda: dict(self.control.logs)
        model.train_function = model.test_function = None
        self.control.confirm_stop = self._confirm_stop

    def _with_shares(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method in which every replica takes its rows of the data given to it."""

        @functools.wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            given = args[0] if args else named.get("x")
            if named.get("class_weight") is not None and isinstance(given, tf.distribute.DistributedDataset):
                raise TfmpError(
                    "class_weight needs the labels, which a distributed data set does not show",
                    where="model.fit(…, class_weight=…)",
                    hint="pass the data set of global batches itself: tfmp distributes it",
                )
            with data_sets_distributed(self.strategy, functools.partial(share, strategy=self.strategy)):
                return method(*args, **named)

        return call

    def _without_shares(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            with data_sets_distributed(self.strategy, None):
                return method(*args, **named)

        return call

    # ---- the hooks of Keras

    def _make_train_function(self, force: bool = False) -> Any:
        model = self.model
        if is_multi_worker(self.strategy):
            check_weights(self.strategy, model.variables)
        if model.train_function is not None and not force:
            return model.train_function
        if not self._seeded:
            decorrelate_seeds(self.strategy, model)
            self._seeded = True
        optimizers.take_summed_gradients(model.optimizer)
        execution = self._train_execution = self._execution(self.feed, training=True)

        control = self.control

        def train_function(iterator: Any) -> dict[str, float]:
            if control.skip():
                return dict(control.logs)
            _check_iterator(iterator)
            self._iterator = iterator
            *counts, results = execution(iterator, control.wishes())
            checksums, steps, losses, samples, sums = (value.numpy() for value in counts)
            devices = len(self.strategy.extended.worker_devices)
            check_batches(checksums, devices, self.steps_done + int(steps), "fit")
            if control.stopped_replicas(sums[0]):
                self._leave_to_those_who_stopped()
            if steps == 0:
                if self.steps_done == 0:
                    model.train_function = None  # traced for a data set without samples
                raise StopIteration
            losses, samples = losses[:steps], samples[:steps]
            self.steps_done += int(steps)
            if not math.isfinite(losses[-1]):
                raise NonFiniteLossError(
                    f"the loss became {losses[-1]} at step {self.steps_done}: expected a finite number",
                    where=f"model {model.name!r}, the same step on every worker",
                    hint="lower the learning rate, clip gradients (global_clipnorm), or check the data for NaN",
                )
            control.agree(sums[:WISHES])
            control.count(losses, samples)
            return self._logs(results)

        model.train_function = train_function
        return train_function

    def _make_test_function(self, force: bool = False) -> Any:
        model = self.model
        if model.test_function is not None and not force:
            return model.test_function
        execution = self._execution(self.validation_feed, training=False)
        has_steps = False

        def test_function(iterator: Any) -> dict[str, float]:
            _check_iterator(iterator)
            *counts, results = execution(iterator, self.control.wishes())
            checksums, steps, _, samples, sums = (value.numpy() for value in counts)
            check_batches(checksums, len(self.strategy.extended.worker_devices), int(steps), "evaluate")
            nonlocal has_steps
            if steps == 0:
                if not has_steps:
                    model.test_function = None
                raise StopIteration
            has_steps = True
            self.control.agree_to_stop(sums[0])
            self.control.loss_sum += float(sums[-1])
            self.control.samples += int(samples[:steps].sum())
            return self._logs(results)

        model.test_function = test_function
        return test_function

    def _reset_metrics(self) -> None:
        type(self.model).reset_metrics(self.model)
        self.control.new_epoch()

    # ---- a callback has stopped the training

    def _confirm_stop(self, step: int, epoch_ended: bool) -> None:
        """Take part in the next execution of workers that go on; undo it if there are none.

        Raises:
            TfmpError: There are some.
        """
        if not is_multi_worker(self.strategy) or self._iterator is None:
            return
        model = self.model
        metric_variables = [v for metric in model.metrics for v in metric.variables]
        unique = {id(v): v for v in [*model.variables, *model.optimizer.variables, *metric_variables]}
        with values_kept(self.strategy, unique.values()):
            if epoch_ended:
                # As the others do: assigning a variable that is synchronised on read also reads it, with all workers.
                type(model).reset_metrics(model)
            *counts, _ = self._train_execution(self._iterator, self.control.wishes(has_stopped=True))
        stops = float(counts[-1].numpy()[0])
        if self.control.stopped_replicas(stops) < self.strategy.num_replicas_in_sync:
            raise self._lone_stop(has_stopped=True, after=f" after step {step:,}")

    def _leave_to_those_who_stopped(self) -> None:
        """Wait for the launcher to stop this worker: the failure is that of the workers that stopped.

        Raises:
            SystemExit: The launcher has asked this worker to stop.
            TfmpError: There is no launcher.
        """
        error = self._lone_stop(has_stopped=False)
        print(f"tfmp: {error.what}", flush=True)
        deadline_s = time.monotonic() + _LAUNCHER_S
        while time.monotonic() < deadline_s:
            if self.control.stop_wanted:
                raise SystemExit(EXIT_TERMINATED)
            time.sleep(0.01)
        raise error

    def _lone_stop(self, *, has_stopped: bool, after: str = "") -> TfmpError:
        """The error of workers that part; all of them must call this."""
        devices = len(self.strategy.extended.worker_devices)
        flags = gather_flags(self.strategy, has_stopped)[::devices]
        stopped = [worker for worker, flag in enumerate(flags) if flag]
        others = [worker for worker, flag in enumerate(flags) if not flag]
        # A worker that stopped names itself: each of them reports its own failure.
        culprits = [first_local_replica(self.strategy) // devices] if has_stopped else stopped
        return TfmpError(
            f"a callback of {_workers(culprits)} stopped the training{after}, "
            f"{_workers(others)} {'goes' if len(others) == 1 else 'go'} on",
            where="training.callbacks",
            hint="decide alike on all workers: by `logs`, which are equal on all, not by the clock or the rank",
        )

    # ---- parts

    def _batch_spec(self, element_spec: Any) -> Any:
        """Specs of one replica's batch, from those of the distributed data set, without taking an element."""
        for feed in (self.feed, self.validation_feed):
            if feed is not None:
                return feed.batch_spec()
        spec = batch_of(keras.tree.map_structure(keras_hooks.first_replica_spec, element_spec))
        if self.strategy.num_replicas_in_sync > 1:
            keras_hooks.check_states_fit(self.model, self.strategy.num_replicas_in_sync)
        return spec

    def _metric_variables(self) -> list[Any]:
        tracker = keras_hooks.loss_tracker(self.model)
        return [v for metric in self.model.metrics if metric is not tracker for v in metric.variables]

    def _execution(self, feed: IndexedFeed | None, *, training: bool) -> Any:
        execution = Execution(
            self.model,
            self.strategy,
            self.reducer,
            self._metric_variables(),
            self._whole_batch,
            training=training,
            compiled=self.compiled,
            autograph=self.autograph,
        )
        return execution.build(feed)

    def _logs(self, results: dict[str, Any]) -> dict[str, Any]:
        """The running loss and metrics over all replicas, as Keras's callbacks expect them."""
        logs: dict[str, Any] = {"loss": self.control.loss_sum / max(self.control.samples, 1)}
        for name, value in results.items():
            if value is None:
                continue
            array = keras.ops.convert_to_numpy(value)
            logs[name] = float(array) if array.ndim == 0 else array
        self.control.logs = logs
        return dict(logs)


def _workers(workers: Iterable[int]) -> str:
    numbers = [str(worker) for worker in workers]
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _check_iterator(iterator: Any) -> None:
    if not hasattr(iterator, "get_next"):
        raise TfmpError(
            "train_on_batch and test_on_batch are not supported by the bridge",
            where="model.train_on_batch(…)",
            hint="use fit and evaluate with a data set",
        )
