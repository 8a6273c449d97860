"""Checkpoints while training, leaving together when asked to stop, and going on where a checkpoint was taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from tfmp.checkpoint.format import Checkpoint
from tfmp.checkpoint.snapshot import Snapshots
from tfmp.checkpoint.writer import CheckpointWriter, Send
from tfmp.distribute.control import FitControl
from tfmp.distribute.keras_hooks import strategy_of
from tfmp.events import Saving
from tfmp.rundir.layout import RunFolder

#: What Keras's own callbacks remember from epoch to epoch, by class name.
_REMEMBERED = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
}


class StopAgreed(Exception):
    """All workers have ended the same step, and what is to be saved is being saved: leave now."""


@dataclass(frozen=True)
class CheckpointPolicy:
    """When and where to save.

    Attributes:
        folder: The run folder.
        enabled: Whether any are written.
        every_s: Seconds between two inside an epoch. 0: only at its end.
        chief: Whether this worker writes; its clock decides for all.
        facts: What identifies the run, saved along.
    """

    folder: RunFolder
    enabled: bool
    every_s: float
    chief: bool
    facts: Mapping[str, Any]


class Checkpoints(keras.callbacks.Callback):
    """Saves after every epoch, every so many seconds, and when the workers have agreed to. The last of the callbacks.

    Every worker reads its replicas' state, the chief writes, while the training goes on.
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
        self.loop: TrainingLoop | None = None
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
        """Start the clock."""
        self._saved_s = self._clock()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Ask for a checkpoint after the execution that begins, if it is time."""
        policy = self._policy
        if policy.enabled and policy.chief and policy.every_s and self._clock() - self._saved_s >= policy.every_s:
            self._control.save_wanted = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save, and stop, if that was agreed."""
        control = self._control
        if control.save_agreed or control.stop_agreed:
            self._save(self._epoch, control.steps)
        if control.stop_agreed:
            self.finish()
            raise StopAgreed
        if control.steps < self._steps_per_epoch:
            self._confirm_stop(self._epoch, control.steps)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save, and stop, if that was agreed: the epoch's steps are done, its validation is still to come."""
        if self._control.stop_agreed:
            self._save(self._epoch, self._steps_per_epoch)
            self.finish()
            raise StopAgreed

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save what the epoch came to."""
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
        began = time.perf_counter()
        arrays = loop.snapshots.take()
        self._saved_s = self._clock()
        if not policy.chief:
            return
        policy.folder.require()
        checkpoint = Checkpoint(epoch, step, self._steps_per_epoch, arrays, {**policy.facts, **loop.facts(step)})
        self._send(Saving(epoch, step, checkpoint.global_step))
        self._writer.write(checkpoint, began)

    def finish(self) -> None:
        """Wait until all that was saved is on the disk."""
        self._writer.finish()


class TrainingLoop(keras.callbacks.CallbackList):
    """The callbacks of a ``fit`` that can go on in the middle of an epoch.

    Keras asks for an epoch's executions from the first on. Those that lie before the checkpoint are skipped, unseen by
    the callbacks.

    Args:
        callbacks: The callbacks; among them one :class:`Checkpoints`.
        control: The bridge's.
        resume: Where to go on; ``None``: from the start.
        model: The model.
        epochs: Epochs of the run.
        steps_per_epoch: Steps of an epoch.
        history: The epochs so far, as they are reported; grows while training.
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
        self._history_so_far = history
        self._trained: dict[str, Any] = {}
        for callback in callbacks:
            if isinstance(callback, Checkpoints):
                callback.loop = self

    def facts(self, step: int) -> dict[str, Any]:
        """What a checkpoint holds beside variables. ``step`` is 0 at an epoch's end."""
        return {
            "stopped": bool(self.model.stop_training),
            "history": self._history_so_far,
            "running": {**self._trained, "logs": _plain(self._trained["logs"])} if step else None,
            "callbacks": [{"class": type(one).__name__, "state": _remembered(one)} for one in self.callbacks],
            "variables": self.snapshots.names(),
        }

    def on_train_begin(self, logs: Any = None) -> None:
        """Put back weights, optimizer, random numbers and what callbacks remember."""
        self.snapshots = Snapshots(self.model, strategy_of(self.model))
        super().on_train_begin(logs)
        if self._resume is not None:
            self.snapshots.restore(self._resume.arrays, metrics=False)
            for callback, saved in zip(self.callbacks, self._resume.facts["callbacks"], strict=False):
                if type(callback).__name__ == saved["class"]:
                    _remind(callback, saved["state"])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """In the first epoch, put back what it had come to (Keras has just reset it)."""
        resume, self._resume = self._resume, None
        if resume is not None and resume.step:
            self.snapshots.restore(resume.arrays, metrics=True)
            running = resume.facts["running"]
            k = self.model.steps_per_execution
            left = -(-(self._steps_per_epoch - resume.step) // k)
            self._control.resume_from(steps=resume.step, skip=-(-self._steps_per_epoch // k) - left, **running)
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Tell the callbacks, unless it was done before."""
        if not self._control.skipping:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell the callbacks, unless it was done before."""
        control = self._control
        # A validation starts to count anew: what the steps came to is kept for a checkpoint in the middle of it.
        self._trained = {"loss_sum": control.loss_sum, "samples": control.samples, "logs": control.logs}
        if not control.skipped:
            super().on_train_batch_end(batch, logs)


def _remembered(callback: Any) -> Any:
    """What a callback remembers, as JSON values: Keras's own by name, others by ``state_dict()``."""
    if type(callback).__name__ in _REMEMBERED:
        return _plain({name: getattr(callback, name, None) for name in _REMEMBERED[type(callback).__name__]})
    if hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict"):
        return callback.state_dict()
    return None


def _remind(callback: Any, state: Any) -> None:
    if state is None:
        return
    if type(callback).__name__ in _REMEMBERED:
        for name, value in state.items():
            setattr(callback, name, value)
    else:
        callback.load_state_dict(state)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """NumPy numbers and arrays as what JSON has; a float keeps every bit."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}
