"""Models, callbacks and metrics of a user's own: what is refused at once, and what is taken as it is."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.train.conftest import mirrored
from tests.train.small import build, dataset
from tfmp.checkpoint.export import save_model
from tfmp.commands.evaluate import _shown
from tfmp.config import resolve
from tfmp.data.arrays import DatasetArrays, SplitArrays
from tfmp.distribute import bridge
from tfmp.errors import TfmpError
from tfmp.trainer.model import build_callbacks, build_model


def test_a_model_that_could_not_be_saved_is_refused_before_it_is_trained() -> None:
    config = resolve(None, ["model.factory=tests.train.programs.models:unsaveable"]).config
    split = SplitArrays(np.zeros((1, 5)), np.zeros(1, np.int32))
    with mirrored(1).scope(), pytest.raises(TfmpError, match="could not be saved after the training") as caught:
        build_model(config, DatasetArrays("made up", split, split, classes=3), total_steps=10)
    assert "get_config" in str(caught.value.hint)


def test_what_is_no_callback_is_refused_by_name() -> None:
    config = resolve(None, ["training.callbacks=[os:getcwd]"]).config
    with pytest.raises(TfmpError, match=r"expected a keras\.callbacks\.Callback, received str") as caught:
        build_callbacks(config.training)
    assert caught.value.where == "training.callbacks: os:getcwd"


def test_a_model_that_finds_no_room_is_told_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()

    def save(path: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model, "save", save)
    with pytest.raises(TfmpError, match="the model cannot be written: No space left on device") as caught:
        save_model(model, [], tmp_path / "model.keras")
    assert "--resume" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


class Nothing(keras.metrics.Metric):
    """A metric that has no result."""

    def update_state(self, *_: Any, **__: Any) -> None: ...

    def result(self) -> None: ...


def test_metrics_without_a_result_are_left_out_and_those_with_several_are_kept() -> None:
    with mirrored(2).scope():
        metrics = [Nothing(name="nothing"), keras.metrics.F1Score(name="f1")]
        model = bridge(build(loss="categorical_crossentropy", metrics=metrics))
    data = dataset(40).map(lambda x, y: (x, keras.ops.one_hot(y, 5, dtype="float64")))
    history = model.fit(data, epochs=1, verbose=0).history
    assert "nothing" not in history
    assert history["f1"][0].shape == (5,)


def test_evaluate_shows_a_result_for_each_class() -> None:
    assert _shown([0.5, [1.0, 0.25]]) == "[0.500000, [1.000000, 0.250000]]"
    assert _shown(0.125) == "0.125000"
