"""Fault injection (``--inject-fault``) in a worker."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfmp.distribute.control import FitControl
from tfmp.events import CheckpointFailed, CheckpointSaved, Saving, WorkerEvent

Send = Callable[[WorkerEvent], None]

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
_CHUNK_BYTES = 32 * 1024 * 1024
_MAX_CHUNKS = 4096
_SMALL_FILE_BYTES = 4096


class FaultInjector(keras.callbacks.Callback):
    """Injects the requested faults into this worker.

    Args:
        orders: The :class:`tfmp.agent.failures.injection.Fault` objects for this worker, as JSON values.
        control: Knows the progress of the epoch.
        steps_per_epoch: Steps of an epoch.
        checkpoints: Folder of the checkpoints.
    """

    def __init__(
        self, orders: list[dict[str, Any]], control: FitControl, steps_per_epoch: int, checkpoints: Path
    ) -> None:
        super().__init__()
        self._orders = list(orders)
        self._control = control
        self._steps_per_epoch = steps_per_epoch
        self._checkpoints = checkpoints
        self._epoch = self._step = 0
        self._step_began_s = 0.0
        self._size_limit: tuple[int, int] | None = None
        self._chunks: list[Any] = []
        self.finish_saving: Callable[[], None] = lambda: None
        """Waits until earlier checkpoints are on disk, so that the fault hits the intended one."""

    def inject(self, moment: str) -> None:
        """Inject the faults for this moment."""
        for order in list(self._orders):
            if order["moment"] == moment and (moment == "start" or self._step >= order["step"]):
                if order["kind"] != "slow":
                    self._orders.remove(order)
                    print(f"tfmp: injected fault {order['kind']} at {moment}, step {self._step}", flush=True)
                self._do(order)

    def watching(self, send: Send) -> Send:
        """A ``send`` that injects faults while a checkpoint is saved."""

        def send_and_inject(event: WorkerEvent) -> None:
            send(event)
            if isinstance(event, Saving):
                self.inject("saving")
            elif self._size_limit is not None and isinstance(event, (CheckpointSaved, CheckpointFailed)):
                resource.setrlimit(resource.RLIMIT_FSIZE, self._size_limit)
                self._size_limit = None

        return send_and_inject

    def on_train_begin(self, logs: Any = None) -> None:
        """Inject faults before the first step."""
        self.inject("start")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note when the step began."""
        self._step_began_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Inject faults after a step."""
        self._step = self._epoch * self._steps_per_epoch + self._control.steps
        self.inject("step")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Inject faults during a validation."""
        self.inject("validation")

    def _do(self, order: Mapping[str, Any]) -> None:
        kind = order["kind"]
        if kind in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[kind])
        elif kind == "exit":
            os._exit(int(order["value"]))
        elif kind == "raise":
            raise RuntimeError("an injected fault")
        elif kind == "slow":
            time.sleep((order["value"] - 1.0) * (time.perf_counter() - self._step_began_s))
        elif kind == "oom":
            while len(self._chunks) < _MAX_CHUNKS:
                self._chunks.append(np.ones(_CHUNK_BYTES, np.uint8))
        elif kind == "corrupt-checkpoint":
            self.finish_saving()
            for path in sorted(self._checkpoints.glob("step-*.npz"))[-1:]:
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        else:  # disk-full: the next checkpoint cannot be written to its end
            self.finish_saving()
            self._size_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (_SMALL_FILE_BYTES, self._size_limit[1]))
