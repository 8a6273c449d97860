"""One worker of a training: join, build, fit, save, leave.

:func:`main` runs in the forked worker process, with the launcher's payload and an event channel. Only the chief (rank
0) writes to the run folder. State that workers must read together is read by all of them at the same point.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfmp.checkpoint.callback import CheckpointCallback, CheckpointPolicy, ResumableCallbackList, StopAgreed
from tfmp.checkpoint.callback_state import only_writes
from tfmp.checkpoint.export import read_state, save_model, weight_values, weights_sha256
from tfmp.checkpoint.format import Checkpoint, load
from tfmp.config import RunConfig
from tfmp.config.identity import identity
from tfmp.data.cache import open_cached
from tfmp.distribute import StrategySpec, bridge, build_strategy, read_together
from tfmp.distribute.control import FitControl
from tfmp.distribute.feed import Feed, FeedPlan
from tfmp.distribute.keras_hooks import compute_in_order, peers_may_be_silent_for
from tfmp.distribute.reducers import HostsReducer, LeaderRing, Reducer, SharedMemoryReducer
from tfmp.distribute.shm import SharedMemoryGroup
from tfmp.errors import EXIT_TERMINATED, TfmpError
from tfmp.events import FailedAfter, LeftOnRequest, ModelSaved, Ready, UserError, WeightsDigest
from tfmp.planning.host import available_cores
from tfmp.planning.task import ShmJoin, WorkerTask
from tfmp.rundir.layout import RunFolder
from tfmp.trainer.callbacks import ProgressReporter, Send, StepRecorder, TensorBoardFiles
from tfmp.trainer.faults import FaultInjector
from tfmp.trainer.model import build_callbacks, build_model, set_precision
from tfmp.trainer.recording import Recording
from tfmp.trainer.steps_per_execution import steps_for_user_code

if TYPE_CHECKING:
    from tfmp.data.arrays import DatasetArrays
    from tfmp.events import EventChannel

_LAUNCHERS_FIRST_S = 10.0


def main(payload: dict[str, Any], channel: EventChannel) -> None:
    """Train as one worker of the cluster that ``TF_CONFIG`` describes.

    Raises:
        SystemExit: With exit code 1, after reporting an error that the user can fix; with 143 if this or another worker
            was asked to stop.
    """
    tempfile.tempdir = None  # the fork server has its own; this worker's folder is removed with the attempt
    control = FitControl()
    try:
        train(WorkerTask.from_json(payload), channel, control)
    except TfmpError as error:
        channel.send(UserError(error.what, error.where, error.hint))
        print(error.render(), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
    except Exception:
        # Progress events are sparse, but the launcher must know whether two attempts failed at the same step.
        channel.send(FailedAfter(control.steps))
        raise


def train(task: WorkerTask, channel: EventChannel, control: FitControl) -> None:
    """Run one training, from its start or a checkpoint, as one of its workers."""
    folder, config = RunFolder(task.run_dir), task.config
    resume = load(task.resume.path, verified=task.resume.digest) if task.resume else None
    strategy = _build_strategy(task, config)
    # After the strategy, which replaces any SIGTERM handler with one in C++ that ignores the signal.
    signal.signal(signal.SIGTERM, lambda *_: setattr(control, "stop_wanted", True))
    print(f"tfmp: worker {task.rank} pid {os.getpid()} replicas: {strategy.num_replicas_in_sync}", flush=True)
    channel.send(Ready(strategy.num_replicas_in_sync))

    setup = _build(task, config, strategy, control)
    history = list(resume.facts["history"]) if resume else []
    checkpoints = _add_callbacks(setup, task, config, strategy, folder, control, history, channel.send)
    try:
        _fit(setup, task, config, strategy, control, resume, history)
    except StopAgreed:
        channel.send(LeftOnRequest(control.stop_wanted))
        _leave_together(strategy)
        raise SystemExit(EXIT_TERMINATED) from None
    finally:
        checkpoints.finish()
    _save(setup.model, task, strategy, folder, channel)
    _leave_together(strategy)


@dataclass(frozen=True)
class _Setup:
    """What a training works with.

    Attributes:
        model: The bridged model.
        callbacks: The callbacks of ``fit``.
        data_sha256: What the samples are.
        feed: The training data.
        validation_feed: The validation data.
        validation_steps: Steps of one validation.
    """

    model: Any
    callbacks: list[Any]
    data_sha256: str
    feed: Feed
    validation_feed: Feed
    validation_steps: int


def _build_strategy(task: WorkerTask, config: RunConfig) -> tf.distribute.Strategy:
    """Join the other workers. Call before anything else that starts TensorFlow's runtime."""
    on_gpus = task.device == "gpu"
    spec = StrategySpec(
        kind=task.layout.kind,
        replicas=task.layout.replicas,
        local_devices=task.layout.devices_per_worker,
        gpus=on_gpus,
        collective=task.collective.communication,
    )
    if task.compiled != "none" and not on_gpus:
        compute_in_order()
    # The launchers detect silence first: they know the silent worker.
    with peers_may_be_silent_for(config.cluster.heartbeat_timeout_s + _LAUNCHERS_FIRST_S):
        strategy = build_strategy(spec)
    if on_gpus:
        # CPU results are deterministic; GPU results only with deterministic kernels.
        tf.config.experimental.enable_op_determinism()
    return strategy


def _build(task: WorkerTask, config: RunConfig, strategy: tf.distribute.Strategy, control: FitControl) -> _Setup:
    """Build the model, its data and the configured callbacks, and bridge the model."""
    set_precision(config.training.precision)
    keras.utils.set_random_seed(config.training.seed)
    arrays = open_cached(str(task.data_header))
    with strategy.scope():
        total_steps = config.training.epochs * task.steps_per_epoch
        model = build_model(config, arrays, total_steps)
        callbacks = build_callbacks(config.training)
        model.steps_per_execution = _steps_per_execution(config, task, model, callbacks)
        if task.rank != 0:  # after the steps of an execution, which must be the same on all workers
            callbacks = [callback for callback in callbacks if not only_writes(callback)]
        feed, validation_feed, validation_steps = _feeds(config, task, arrays, model.steps_per_execution)
        reducer = _shared_memory(task, task.shm, model, strategy) if task.shm else None
        bridge(
            model,
            feed=feed,
            validation_feed=validation_feed,
            jit_compile=task.compiled,
            autograph=config.model.factory is not None,
            reducer=reducer,
            control=control,
        )
    return _Setup(model, callbacks, arrays.sha256, feed, validation_feed, validation_steps)


def _add_callbacks(
    setup: _Setup,
    task: WorkerTask,
    config: RunConfig,
    strategy: tf.distribute.Strategy,
    folder: RunFolder,
    control: FitControl,
    history: list[dict[str, Any]],
    send: Send,
) -> CheckpointCallback:
    """Add tfmp's callbacks to the user's. Return the last one, which saves after all others have acted."""
    chief, steps = task.rank == 0, task.steps_per_epoch
    if chief and config.run.tensorboard:
        setup.callbacks.append(TensorBoardFiles(folder))
    setup.callbacks.append(
        ProgressReporter(
            send,
            control,
            history,
            epochs=config.training.epochs,
            steps_per_epoch=steps,
            samples_per_epoch=setup.feed.samples_per_epoch,
        )
    )
    policy = CheckpointPolicy(
        folder=folder,
        enabled=config.run.checkpoints,
        every_s=config.run.checkpoint_every_s,
        chief=chief,
        facts={
            "settings": identity(config),
            "data_sha256": setup.data_sha256,
            "collective": task.collective.name,
            "replicas": task.layout.replicas,
        },
    )
    if task.record is not None:
        recording = Recording(task.record) if chief else None
        setup.callbacks.append(StepRecorder(recording, partial(read_together, strategy)))
    injector = None
    if task.faults:
        injector = FaultInjector(list(task.faults), control, steps, folder.checkpoints)
        send = injector.watching(send)
        setup.callbacks.append(injector)
    checkpoints = CheckpointCallback(policy, control, send, steps_per_epoch=steps)
    if injector is not None:
        injector.finish_saving = checkpoints.finish
    setup.callbacks.append(checkpoints)
    return checkpoints


def _fit(
    setup: _Setup,
    task: WorkerTask,
    config: RunConfig,
    strategy: tf.distribute.Strategy,
    control: FitControl,
    resume: Checkpoint | None,
    history: list[dict[str, Any]],
) -> None:
    """Train until the last epoch is done or a callback stops the training."""
    epochs, steps = config.training.epochs, task.steps_per_epoch
    first_epoch, first_step = 0, 0
    if resume is not None:
        print(f"tfmp: worker {task.rank} resumes at {resume.describe()}", flush=True)
        # If the run stopped early, nothing is left to train.
        first_epoch, first_step = (epochs, 0) if resume.facts["stopped"] else (resume.epoch, resume.step)
    setup.model.fit(
        setup.feed.dataset(strategy, start=(first_epoch, first_step)),
        initial_epoch=first_epoch,
        epochs=epochs,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=ResumableCallbackList(
            setup.callbacks, control, resume, model=setup.model, epochs=epochs, steps_per_epoch=steps, history=history
        ),
        validation_data=setup.validation_feed.dataset(strategy, repeat_epoch=True),
        validation_steps=setup.validation_steps,
        validation_freq=config.training.validation_every or [epochs],
    )


def _save(
    model: Any, task: WorkerTask, strategy: tf.distribute.Strategy, folder: RunFolder, channel: EventChannel
) -> None:
    """Read the model's state on all workers together; the chief writes it."""
    state = read_state(model, strategy)
    digest = weights_sha256(weight_values(model, state))
    print(f"tfmp: worker {task.rank} weights_sha256 {digest}", flush=True)
    if task.rank == 0:
        began = time.perf_counter()
        folder.require()
        save_model(model, state, folder.model)
        channel.send(ModelSaved(str(folder.model), time.perf_counter() - began))
    channel.send(WeightsDigest(digest))


def _steps_per_execution(config: RunConfig, task: WorkerTask, model: Any, callbacks: list[Any]) -> int:
    """Steps as configured or planned; fewer if user code needs it."""
    if config.training.steps_per_execution is not None:
        return task.steps_per_execution
    rows = -(-config.training.batch_size // task.layout.replicas)
    own_model = model if config.model.factory else None
    steps = steps_for_user_code(own_model, callbacks, task.steps_per_execution, rows)
    if steps != task.steps_per_execution:
        print(f"tfmp: steps per execution: {steps}, because of user code", flush=True)
    return steps


def _feeds(
    config: RunConfig, task: WorkerTask, arrays: DatasetArrays, steps_per_execution: int
) -> tuple[Feed, Feed, int]:
    """The training feed, the validation feed and the number of validation steps."""
    data, training, layout = config.data, config.training, task.layout
    train = arrays.train.first(data.limit_train).class_weighted(training.class_weight)
    validation = arrays.validation.first(data.limit_validation)
    validation_batch = max(min(training.validation_batch_size, len(validation)), layout.replicas)

    def plan(batch_size: int, shuffle: bool, steps: int | None) -> FeedPlan:
        return FeedPlan(
            batch_size=batch_size,
            replicas=layout.replicas,
            first_replica=layout.first_replica(task.rank),
            local_replicas=layout.replicas_per_worker,
            seed=training.seed,
            shuffle=shuffle,
            steps_per_epoch=steps,
            steps_per_execution=steps_per_execution,
        )

    return (
        Feed(train, plan(training.batch_size, data.shuffle, training.steps_per_epoch), scaled=arrays.scaled),
        Feed(validation, plan(validation_batch, False, None), scaled=arrays.scaled),
        -(-len(validation) // validation_batch),
    )


def _shared_memory(task: WorkerTask, shm: ShmJoin, model: Any, strategy: Any) -> Reducer:
    """Join the other workers of this host in memory that holds the model's whole gradient."""
    gradient_bytes = sum(v.shape.num_elements() * v.value.dtype.size for v in model.trainable_weights)
    group = SharedMemoryGroup.join(
        shm.directory,
        shm.rank,
        shm.size,
        capacity_bytes=gradient_bytes + 4096,
        token=bytes.fromhex(shm.token),
        timeout_s=task.config.cluster.start_timeout_s,
        spin=available_cores() >= shm.size,
    )
    if not task.collective.crosses_hosts:
        return SharedMemoryReducer(group)
    return HostsReducer(group, task.layout.replicas, LeaderRing(shm.hosts, strategy.extended.worker_devices[0]))


def _leave_together(strategy: Any) -> None:
    """Wait until every worker is here, so that no worker mistakes a leaving peer for a dead one.

    A peer may leave the barrier and exit while this worker's last exchange with it is under way. Then it has passed the
    barrier, or it died and its launcher notices. Either way there is nothing left to wait for.
    """

    @tf.function(autograph=False)
    def meet() -> Any:
        def all_reduce() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

        return strategy.run(all_reduce)

    with suppress(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError):
        strategy.experimental_local_results(meet())[0].numpy()
