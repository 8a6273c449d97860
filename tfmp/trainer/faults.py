"""The worker's side of ``--inject-fault``: does the damage."""

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
_MOUTHFUL_BYTES = 32 * 1024 * 1024
_MOST_MEALS = 4096
_SMALL_FILE_BYTES = 4096


class FaultInjector(keras.callbacks.Callback):
    """Strikes this worker as ordered.

    Args:
        orders: Those of :class:`tfmp.agent.failures.injection.Fault` that are for this worker, as JSON values.
        control: Says how far the epoch is.
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
        self._meals: list[Any] = []
        self.finish_saving: Callable[[], None] = lambda: None
        """Waits until all before is on the disk, so that a fault hits the checkpoint that it is meant for."""

    def strike(self, moment: str) -> None:
        """Do what is ordered for this moment."""
        for order in list(self._orders):
            if order["moment"] == moment and (moment == "start" or self._step >= order["step"]):
                if order["kind"] != "slow":
                    self._orders.remove(order)
                    print(f"tfmp: drill {order['kind']} at {moment}, step {self._step}", flush=True)
                self._do(order)

    def watching(self, send: Send) -> Send:
        """A ``send`` that strikes while a checkpoint is saved."""

        def send_and_strike(event: WorkerEvent) -> None:
            send(event)
            if isinstance(event, Saving):
                self.strike("saving")
            elif self._size_limit is not None and isinstance(event, (CheckpointSaved, CheckpointFailed)):
                resource.setrlimit(resource.RLIMIT_FSIZE, self._size_limit)
                self._size_limit = None

        return send_and_strike

    def on_train_begin(self, logs: Any = None) -> None:
        """The last moment before the first step."""
        self.strike("start")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note when the step began."""
        self._step_began_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After a step."""
        self._step = self._epoch * self._steps_per_epoch + self._control.steps
        self.strike("step")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """In a validation."""
        self.strike("validation")

    def _do(self, order: Mapping[str, Any]) -> None:
        kind = order["kind"]
        if kind in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[kind])
        elif kind == "exit":
            os._exit(int(order["value"]))
        elif kind == "raise":
            raise RuntimeError("a drill")
        elif kind == "slow":
            time.sleep((order["value"] - 1.0) * (time.perf_counter() - self._step_began_s))
        elif kind == "oom":
            while len(self._meals) < _MOST_MEALS:
                self._meals.append(np.ones(_MOUTHFUL_BYTES, np.uint8))
        elif kind == "corrupt-checkpoint":
            self.finish_saving()
            for path in sorted(self._checkpoints.glob("step-*.npz"))[-1:]:
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        else:  # disk-full: the next checkpoint cannot be written to its end
            self.finish_saving()
            self._size_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (_SMALL_FILE_BYTES, self._size_limit[1]))
