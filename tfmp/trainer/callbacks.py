"""Callbacks of tfmp itself: progress for the launcher, TensorBoard files, recorded steps.

Logs are equal on all workers (see :mod:`tfmp.distribute`), so decisions based on them are the same everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from tfmp.distribute.control import FitControl
from tfmp.events import EpochEnd, FirstStep, Progress, Validating, WorkerEvent, encode
from tfmp.rundir.layout import RunFolder
from tfmp.trainer.recording import Recording

Send = Callable[[WorkerEvent], None]

#: Minimum time between two progress events. It does not influence the training.
_PROGRESS_EVERY_S = 0.1


class ProgressReporter(keras.callbacks.Callback):
    """Sends ``progress`` and ``epoch`` events and prints one line per epoch to the worker's log.

    The results of epochs also go to ``history``, which checkpoints keep.

    ``seconds`` of an epoch counts training steps only, without evaluation and saving. ``samples_per_second`` also
    leaves out the first execution of the run, in which TensorFlow traces and compiles, unless it is the whole epoch.
    """

    def __init__(
        self,
        send: Send,
        control: FitControl,
        history: list[dict[str, Any]],
        *,
        epochs: int,
        steps_per_epoch: int,
        samples_per_epoch: int,
    ) -> None:
        super().__init__()
        self._send = send
        self._control = control
        self._history = history
        self._epochs = epochs
        self._steps = steps_per_epoch
        self._samples = samples_per_epoch
        self._epoch = self._step = 0
        self._warm_from: tuple[float, int] | None = None
        self._first_execution_done = False
        self._epoch_began = self._trained_s = self._before_s = 0.0
        self._last_sent = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the epoch's clock."""
        self._epoch = epoch + 1
        self._step = self._control.steps  # not 0 if a run resumes in the middle of an epoch
        self._epoch_began = time.perf_counter()
        self._trained_s = self._before_s
        self._warm_from = (self._epoch_began, 0) if self._first_execution_done else None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the progress of the epoch."""
        now = time.perf_counter()
        step = self._step = self._control.steps
        self._trained_s = self._before_s + now - self._epoch_began
        if not self._first_execution_done:
            self._first_execution_done = True
            self._warm_from = (now, step)
            self._send(FirstStep(self._epoch, step))
        if now - self._last_sent >= _PROGRESS_EVERY_S or step == self._steps:
            self._last_sent = now
            self._send(Progress(self._epoch, step, self._rate(now, step), _numbers(logs)))

    def on_test_begin(self, logs: Any = None) -> None:
        """Report that validation runs."""
        self._send(Validating(self._epoch))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report from time to time that validation still runs."""
        now = time.perf_counter()
        if now - self._last_sent >= _PROGRESS_EVERY_S:
            self._last_sent = now
            self._send(Validating(self._epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Send the results of the epoch and print them to the log."""
        # Fewer than the epoch's steps if a callback ended it.
        rate = self._rate(self._epoch_began + self._trained_s - self._before_s, self._step)
        if rate is None and self._trained_s > 0:
            rate = self._step / self._steps * self._samples / self._trained_s
        numbers = _numbers(logs)
        text = " ".join(f"{name} {value:.6f}" for name, value in numbers.items())
        print(f"tfmp: epoch {self._epoch}/{self._epochs} {text}", flush=True)
        result = EpochEnd(
            self._epoch,
            numbers,
            seconds=self._trained_s,
            samples_per_second=rate,
            step=(self._epoch - 1) * self._steps + self._step,
        )
        values = encode(result)
        del values["event"]
        self._history.append(values)
        self._trained_s = self._before_s = 0.0
        self._send(result)

    def state_dict(self) -> dict[str, Any]:
        """Seconds of training in the current epoch."""
        return {"trained_s": self._trained_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue counting from there."""
        self._before_s = float(state["trained_s"])

    def _rate(self, now: float, step: int) -> float | None:
        """Samples per second of all workers since the epoch began, without the first execution of the run."""
        if self._warm_from is None:
            return None
        since, from_step = self._warm_from
        if step <= from_step or now <= since:
            return None
        return (step - from_step) / self._steps * self._samples / (now - since)


#: What tf.summary.scalar would attach; that function needs the tensorboard package, which TensorFlow stopped requiring.
_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class=1,  # DATA_CLASS_SCALAR of tensorflow/core/framework/summary.proto
)


class TensorBoardFiles(keras.callbacks.Callback):
    """One event file for training and one for validation, written only by the chief.

    With several writers in one folder, curves jump (tensorboard #1011).
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self._run_folder = folder
        self._folder = folder.tensorboard
        self._writers: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the epoch's scalars at step ``epoch + 1``."""
        self._run_folder.require()
        for name, value in _numbers(logs).items():
            run, tag = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
            if run not in self._writers:
                self._writers[run] = tf.summary.create_file_writer(os.fsencode(self._folder / run))
            with self._writers[run].as_default():
                tf.summary.write(f"epoch_{tag}", tf.constant(value, tf.float32), epoch + 1, _SCALAR)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


class StepRecorder(keras.callbacks.Callback):
    """Keeps all variables after each step, and the logs of each epoch, for ``tfmp verify``.

    Args:
        recording: Where to; ``None``: this worker takes part in reading, another one writes.
        read: Returns the values of Keras variables. All workers call it together.
    """

    def __init__(
        self, recording: Recording | None, read: Callable[[Sequence[Any]], Sequence[npt.NDArray[Any]]]
    ) -> None:
        super().__init__()
        self._recording = recording
        self._read = read
        self._step = 0
        self._epochs: list[dict[str, float]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Keep the initial weights."""
        self._keep(self.model.variables)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep what the step made of weights and optimizer."""
        self._step += 1
        self._keep([*self.model.variables, *self.model.optimizer.variables])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keep what the epoch measured."""
        self._epochs.append(_numbers(logs))
        if self._recording is not None:
            self._recording.write_logs(self._epochs)

    def _keep(self, variables: Sequence[Any]) -> None:
        unique = list({id(variable): variable for variable in variables}.values())
        values = self._read(unique)
        if self._recording is not None:
            self._recording.write_step(self._step, [variable.path for variable in unique], values)


def _numbers(logs: Any) -> dict[str, float]:
    return {name: float(value) for name, value in (logs or {}).items() if getattr(value, "ndim", 0) == 0}
