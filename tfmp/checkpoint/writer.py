"""Writes checkpoints in a thread, while the training continues."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfmp.checkpoint.format import Checkpoint, save
from tfmp.events import CheckpointFailed, CheckpointSaved, WorkerEvent

Send = Callable[[WorkerEvent], None]


class CheckpointWriter:
    """Writes one checkpoint at a time: the next waits until the last is on the disk.

    Args:
        folder: Where to write.
        send: Takes the events ``checkpoint`` and ``checkpoint_failed``, called in the thread. A full disk costs the
            checkpoint, not the run.
    """

    def __init__(self, folder: Path, send: Send) -> None:
        self._folder = folder
        self._send = send
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def write(self, checkpoint: Checkpoint, began_s: float) -> None:
        """Start to write a copy, once the last one is written.

        Args:
            checkpoint: The state.
            began_s: When the snapshot began, on the clock of ``time.perf_counter``.
        """
        self.finish()
        # Copied: an array may lie in a variable's own memory, and the history grows.
        arrays = [np.array(array) for array in checkpoint.arrays]
        copied = replace(checkpoint, arrays=arrays, facts=copy.deepcopy(dict(checkpoint.facts)))
        self._thread = threading.Thread(target=self._run, args=(copied, began_s), name="checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait until the last one is written. May be called at any time, and again.

        Raises:
            BaseException: Any error of the thread, except those of the disk.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, checkpoint: Checkpoint, began_s: float) -> None:
        position = (checkpoint.epoch, checkpoint.step, checkpoint.global_step)
        try:
            path = save(self._folder, checkpoint)
        except OSError as error:
            self._send(CheckpointFailed(*position, error.strerror or str(error)))
        except BaseException as error:
            self._error = error
        else:
            self._send(CheckpointSaved(*position, str(path), time.perf_counter() - began_s))
