"""Saves checkpoints while training, stops all workers after the same step, and resumes where a checkpoint was taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from tfmp.checkpoint import callback_state
from tfmp.checkpoint.format import Checkpoint
from tfmp.checkpoint.snapshot import Snapshots
from tfmp.checkpoint.writer import CheckpointWriter, Send
from tfmp.distribute.control import FitControl
from tfmp.distribute.keras_hooks import strategy_of
from tfmp.events import Saving
from tfmp.rundir.layout import RunFolder


class StopAgreed(Exception):
    """All workers have stopped after the same step, as agreed, and the last checkpoint is on the disk."""


@dataclass(frozen=True)
class CheckpointPolicy:
    """When and where to save.

    Attributes:
        folder: The run folder.
        enabled: Whether to save at all.
        every_s: Seconds between two checkpoints inside an epoch. 0: only at its end.
        chief: Whether this worker writes; its clock decides for all.
        facts: What identifies the run, saved with the state.
    """

    folder: RunFolder
    enabled: bool
    every_s: float
    chief: bool
    facts: Mapping[str, Any]


class CheckpointCallback(keras.callbacks.Callback):
    """Saves after every epoch, at intervals inside it, and before an agreed stop. Must be the last of the callbacks.

    Every worker reads the state of its replicas. The chief writes it in a thread, while the training continues.
    """

    def __init__(
        self,
        policy: CheckpointPolicy,
        control: FitControl,
        send: Send,
        *,
        steps_per_epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.loop: ResumableCallbackList | None = None
        self._policy = policy
        self._control = control
        self._send = send
        self._writer = CheckpointWriter(policy.folder.checkpoints, send)
        self._steps_per_epoch = steps_per_epoch
        self._clock = clock
        self._saved_s = clock()
        self._epoch = 0
        self._stop_confirmed = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Start the clock of the interval."""
        self._saved_s = self._clock()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Request a checkpoint after this execution if one is due."""
        policy = self._policy
        if policy.enabled and policy.chief and policy.every_s and self._clock() - self._saved_s >= policy.every_s:
            self._control.save_wanted = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save or stop if the workers have agreed to."""
        control = self._control
        if control.save_agreed or control.stop_agreed:
            self._save(self._epoch, control.steps)
        if control.stop_agreed:
            self.finish()
            raise StopAgreed
        if control.steps < self._steps_per_epoch:
            self._confirm_stop(self._epoch, control.steps)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop if the workers have agreed to, with a checkpoint from which the epoch's validation starts again."""
        if self._control.stop_agreed:
            self._save(self._epoch, self._steps_per_epoch)
            self.finish()
            raise StopAgreed

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the state after the epoch."""
        self._save(epoch + 1, 0)
        if epoch + 1 < self.params["epochs"]:
            self._confirm_stop(epoch + 1, 0)

    def _confirm_stop(self, epoch: int, step: int) -> None:
        """If a callback has stopped the training, make sure that it has on all workers; once is enough."""
        if self.model.stop_training and not self._stop_confirmed:
            self._stop_confirmed = True
            self._control.confirm_stop(epoch * self._steps_per_epoch + step, step == 0)

    def _save(self, epoch: int, step: int) -> None:
        loop, policy = self.loop, self._policy
        if not policy.enabled or loop is None:
            return
        began_s = time.perf_counter()
        arrays = [*loop.snapshots.take(), *callback_state.arrays(loop.callbacks)]
        self._saved_s = self._clock()
        if not policy.chief:
            return
        policy.folder.require()
        checkpoint = Checkpoint(epoch, step, self._steps_per_epoch, {**policy.facts, **loop.facts(step)}, arrays=arrays)
        self._send(Saving(epoch, step, checkpoint.global_step))
        self._writer.write(checkpoint, began_s)

    def finish(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self._writer.finish()


class ResumableCallbackList(keras.callbacks.CallbackList):
    """The callbacks of a ``fit`` that can resume in the middle of an epoch.

    Keras runs an epoch from its first execution. Those before the checkpoint are skipped, and the callbacks do not see
    them.

    Args:
        callbacks: The callbacks; among them one :class:`CheckpointCallback`.
        control: The one that the bridge was given.
        resume: Where to resume; ``None``: from the start.
        model: The model.
        epochs: Number of epochs of the run.
        steps_per_epoch: Steps of an epoch.
        history: The reports of the epochs so far; grows while training.
    """

    def __init__(
        self,
        callbacks: list[Any],
        control: FitControl,
        resume: Checkpoint | None,
        *,
        model: Any,
        epochs: int,
        steps_per_epoch: int,
        history: list[dict[str, Any]],
    ) -> None:
        super().__init__(callbacks, add_history=True, model=model, epochs=epochs, steps=steps_per_epoch, verbose=0)
        self.snapshots: Snapshots
        self._control = control
        self._resume = resume
        self._steps_per_epoch = steps_per_epoch
        self._epochs_so_far = history
        self._trained: dict[str, Any] = {}
        for callback in callbacks:
            if isinstance(callback, CheckpointCallback):
                callback.loop = self

    def facts(self, step: int) -> dict[str, Any]:
        """What a checkpoint holds besides the variables. ``step`` is 0 at the end of an epoch."""
        return {
            "stopped": bool(self.model.stop_training),
            "history": self._epochs_so_far,
            "running": {**self._trained, "logs": callback_state.plain(self._trained["logs"])} if step else None,
            "callbacks": callback_state.states(self.callbacks),
            "variables": self.snapshots.names(),
        }

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore weights, optimizer, random numbers and the state of the callbacks."""
        self.snapshots = Snapshots(self.model, strategy_of(self.model))
        resume = self._resume
        if resume is None:
            super().on_train_begin(logs)
            return
        callback_state.rewind_logs(self.callbacks, resume.epoch)
        super().on_train_begin(logs)
        variables, of_callbacks = self._parts(resume)
        self.snapshots.restore(variables, metrics=False)
        callback_state.restore(self.callbacks, resume.facts["callbacks"], of_callbacks)

    @staticmethod
    def _parts(resume: Checkpoint) -> tuple[list[Any], list[Any]]:
        """The arrays of the variables, and those of the callbacks."""
        count = sum(saved.get("arrays", 0) for saved in resume.facts["callbacks"])
        arrays = list(resume.arrays)
        return arrays[: len(arrays) - count], arrays[len(arrays) - count :]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """In the first epoch, restore the metrics and sums so far, which Keras has just reset."""
        resume, self._resume = self._resume, None
        if resume is not None and resume.step:
            self.snapshots.restore(self._parts(resume)[0], metrics=True)
            running = resume.facts["running"]
            k = self.model.steps_per_execution
            left = -(-(self._steps_per_epoch - resume.step) // k)
            self._control.resume_from(steps=resume.step, skip=-(-self._steps_per_epoch // k) - left, **running)
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Tell the callbacks, unless this execution is skipped."""
        if not self._control.skipping:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell the callbacks, unless this execution is skipped."""
        control = self._control
        # A validation resets these counts: they are kept for a checkpoint in the middle of it.
        self._trained = {"loss_sum": control.loss_sum, "samples": control.samples, "logs": control.logs}
        if not control.skipped:
            super().on_train_batch_end(batch, logs)
