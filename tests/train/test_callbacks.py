"""Keras's own callbacks in `tfmp train`: one worker writes, and a restart or `--resume` forgets nothing."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
import pytest

from tests.conftest import Run
from tfmp.checkpoint import callback_state
from tfmp.config import resolve
from tfmp.errors import TfmpError
from tfmp.trainer.model import build_callbacks

_RUN = (
    "--workers", 2, "--epochs", 4, "--seed", 3, "--set", "data.limit_train=2560", "--set", "data.limit_validation=100",
    "--set", "training.callbacks=[tests.train.programs.recorders:recorders]",
)  # fmt: skip


def test_a_restart_forgets_no_weights_no_best_value_and_no_line(trained: Callable[..., Run], tmp_path: Path) -> None:
    found: list[Any] = []
    for name, fault in (("whole", ()), ("disturbed", ("--inject-fault", "kill:1@step=25"))):
        folder = tmp_path / name
        folder.mkdir()
        run = trained(*_RUN, *fault, env={"RECORDS": str(folder)})
        with (folder / "log.csv").open() as file, h5py.File(folder / "best.weights.h5") as weights:
            rows = list(csv.DictReader(file))
            saved = [np.asarray(weights["layers"]["dense"]["vars"][key]) for key in ("0", "1")]
        found.append((run.summary["weights_sha256"], [row["epoch"] for row in rows], rows[1], saved))
    assert trained(*_RUN, *fault, env={"RECORDS": str(folder)}).summary["restarts"] == 1
    whole, disturbed = found
    assert whole[0] == disturbed[0]
    assert whole[1] == disturbed[1] == ["0", "1", "2", "3"]
    assert whole[2] == disturbed[2]
    for one, other in zip(whole[3], disturbed[3], strict=True):
        assert one.tobytes() == other.tobytes()


def test_states_return_to_the_callbacks_of_their_class_on_every_worker() -> None:
    def made() -> list[Any]:
        stop = keras.callbacks.EarlyStopping
        return [stop(patience=1), keras.callbacks.ModelCheckpoint("a.keras"), stop(patience=2)]

    chief = made()
    for number, callback in enumerate(chief):
        callback.best = float(number)
    chief[2].best_weights = [np.arange(3.0), np.ones((2, 2))]
    saved, arrays = callback_state.states(chief), callback_state.arrays(chief)
    other = [callback for callback in made() if not callback_state.only_writes(callback)]
    callback_state.restore(other, saved, arrays)
    assert [callback.best for callback in other] == [0.0, 2.0]
    assert getattr(other[0], "best_weights", None) is None
    assert [weights.tolist() for weights in other[1].best_weights] == [[0.0, 1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]]]


def test_backup_and_restore_is_refused() -> None:
    config = resolve(None, ["training.callbacks=[tests.train.test_callbacks:backup]"]).config
    with pytest.raises(TfmpError, match="BackupAndRestore is not supported"):
        build_callbacks(config.training)


def backup() -> Any:
    return keras.callbacks.BackupAndRestore("folder")
