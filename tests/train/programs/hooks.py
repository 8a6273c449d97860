"""Callbacks that tests name in ``training.callbacks``: ways for one worker to misbehave."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import keras
import psutil


def _rank() -> int:
    return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])


class _OnBatch(keras.callbacks.Callback):
    def __init__(self, rank: int, act: Any) -> None:
        super().__init__()
        self._rank, self._act = rank, act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if _rank() == self._rank:
            self._act()


def worker_1_is_killed() -> keras.callbacks.Callback:
    return _OnBatch(1, lambda: os.kill(os.getpid(), signal.SIGKILL))


def worker_0_is_killed() -> keras.callbacks.Callback:
    return _OnBatch(0, lambda: os.kill(os.getpid(), signal.SIGKILL))


def worker_1_raises() -> keras.callbacks.Callback:
    def act() -> None:
        raise RuntimeError("the disk of worker 1 is on fire")

    return _OnBatch(1, act)


def worker_1_falls_asleep() -> keras.callbacks.Callback:
    def act() -> None:
        print("asleep", flush=True)
        time.sleep(600)

    return _OnBatch(1, act)


def chief_is_slow_to_save() -> keras.callbacks.Callback:
    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if _rank() == 0:
                time.sleep(9)

        def on_train_end(self, logs: Any = None) -> None:
            if _rank() == 0:
                time.sleep(6)

    return Slow()


def shows_environment() -> keras.callbacks.Callback:
    class Show(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "no_proxy")
            print("environment", json.dumps({name: os.environ.get(name) for name in names}), file=sys.stderr)

    return Show()


def worker_1_stops_alone() -> keras.callbacks.Callback:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if _rank() == 1:
                self.model.stop_training = True

    return Stop()


def worker_1_stops_alone_at_an_epochs_end() -> keras.callbacks.Callback:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if _rank() == 1:
                self.model.stop_training = True

    return Stop()


def all_stop_at_the_third_batch() -> keras.callbacks.Callback:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                self.model.stop_training = True

    return Stop()


def needs_what_is_not_there() -> keras.callbacks.Callback:
    import no_such_module  # type: ignore[import-not-found]

    made: keras.callbacks.Callback = no_such_module.make()
    return made


def listens_nowhere() -> keras.callbacks.Callback:
    """Fail if this process listens on a port."""

    class Listens(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            found = [c.laddr for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
            assert not found, f"listens on {found}"

    return Listens()


def has_a_private_network() -> keras.callbacks.Callback:
    """Fail if this process sees more than its own loopback."""

    class Sees(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            assert list(psutil.net_if_addrs()) == ["lo"], psutil.net_if_addrs()

    return Sees()
