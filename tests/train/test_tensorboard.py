"""TensorBoard files, in whatever folder the user chose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorflow as tf

from tfmp.rundir.layout import RunFolder
from tfmp.trainer.callbacks import TensorBoardFiles


@pytest.mark.parametrize("name", [b"r\xc3\xbcn", b"r\xfcn"])
def test_a_folder_whose_name_is_no_text_in_this_locale(tmp_path: Path, name: bytes) -> None:
    """A name in UTF-8 looks like the second one does here where the locale is C."""
    folder = RunFolder(tmp_path / os.fsdecode(name))
    folder.path.mkdir()
    folder.config.touch()
    files = TensorBoardFiles(folder)
    files.on_epoch_end(0, {"loss": 0.5, "val_loss": 0.25})
    files.on_train_end()
    written = {}
    for part in ("train", "validation"):
        (path,) = (folder.tensorboard / part).iterdir()
        events = [tf.compat.v1.Event.FromString(one.numpy()) for one in tf.data.TFRecordDataset(os.fsencode(path))]
        written[part] = [
            (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
            for event in events
            for value in event.summary.value
        ]
    assert written == {"train": [(1, "epoch_loss", 0.5)], "validation": [(1, "epoch_loss", 0.25)]}
