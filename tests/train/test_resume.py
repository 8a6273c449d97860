"""Going on in the middle of an epoch: to the bit with the same replicas, to rounding with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.train.conftest import mirrored
from tests.train.small import BATCH, CLASSES, FEATURES, SAMPLES, SEED, samples
from tfmp.checkpoint.callback import CheckpointCallback, CheckpointPolicy, ResumableCallbackList, StopAgreed
from tfmp.checkpoint.format import Checkpoint, load
from tfmp.data.arrays import SplitArrays
from tfmp.distribute import FitControl, bridge
from tfmp.distribute.feed import Feed, FeedPlan
from tfmp.events import CheckpointSaved, WorkerEvent
from tfmp.rundir.layout import RunFolder

STEPS = -(-SAMPLES // BATCH)
EPOCHS = 3


def build() -> Any:
    """With random numbers, batch statistics, Adam and metrics of more than one variable: all that has state."""
    keras.utils.set_random_seed(SEED)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(16, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.3, seed=5),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy", loss])
    return model


class StopAfter(keras.callbacks.Callback):
    """Wishes to stop in the execution after so many."""

    def __init__(self, control: FitControl, executions: int) -> None:
        super().__init__()
        self.control, self.left = control, executions

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        self.control.stop_wanted = self.left == 0


class Fit:
    """One training, stopped after some executions or not, from a checkpoint or not."""

    def __init__(
        self, folder: Path, replicas: int, stop_after: int = 0, resume: Checkpoint | None = None, per_execution: int = 4
    ) -> None:
        split = SplitArrays(*samples())
        keras.config.set_floatx("float64")  # fixtures of a module come before the one that does this
        keras.config.set_dtype_policy("float64")
        strategy = mirrored(replicas)
        control = FitControl()

        def plan(batch: int, shuffle: bool) -> FeedPlan:
            return FeedPlan(batch, replicas, 0, replicas, SEED, shuffle, None, per_execution)

        with strategy.scope():
            self.model = model = build()
            model.steps_per_execution = per_execution
            feed, validation = Feed(split, plan(BATCH, True), scaled=True), Feed(split, plan(50, False), scaled=True)
            bridge(model, feed=feed, validation_feed=validation, control=control)
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").touch()
        policy = CheckpointPolicy(RunFolder(folder), enabled=True, every_s=0, chief=True, facts={})
        self.events: list[WorkerEvent] = []
        self.early = keras.callbacks.EarlyStopping("val_loss", patience=10)
        saving = CheckpointCallback(policy, control, self.events.append, steps_per_epoch=STEPS)
        callbacks = [self.early, StopAfter(control, stop_after), saving]
        self.seen: list[int] = []
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: self.seen.append(batch)))
        loop = ResumableCallbackList(
            callbacks, control, resume, model=model, epochs=EPOCHS, steps_per_epoch=STEPS, history=[]
        )
        start = (resume.epoch, resume.step) if resume else (0, 0)
        self.stopped = False
        try:
            history = model.fit(
                feed.dataset(strategy, start=start),
                initial_epoch=start[0],
                epochs=EPOCHS,
                steps_per_epoch=STEPS,
                verbose=0,
                shuffle=False,
                callbacks=loop,
                validation_data=validation.dataset(strategy, repeat_epoch=True),
                validation_steps=-(-SAMPLES // 50),
            )
            self.epochs = history.history
            self.logs = {name: values[-1] for name, values in self.epochs.items()}
        except StopAgreed:
            self.stopped = True
        saving.finish()
        paths = [event.path for event in self.events if isinstance(event, CheckpointSaved)]
        self.checkpoint = load(Path(paths[-1]))

    @property
    def state(self) -> list[bytes]:
        variables = [*self.model.get_weights(), *(v.numpy() for v in self.model.optimizer.variables)]
        return [value.tobytes() for value in variables]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    return Fit(tmp_path_factory.mktemp("whole"), 2)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """Stopped in the middle of the second epoch."""
    return Fit(tmp_path_factory.mktemp("cut"), 2, 5)


@pytest.mark.parametrize(("stop_after", "place"), [(5, (1, 8)), (6, (1, 10))], ids=["middle", "before validation"])
def test_stopped_and_resumed_is_the_same_to_the_bit(
    tmp_path: Path, whole: Fit, cut: Fit, stop_after: int, place: tuple[int, int]
) -> None:
    if stop_after != 5:
        cut = Fit(tmp_path, 2, stop_after)
    assert cut.stopped
    assert (cut.checkpoint.epoch, cut.checkpoint.step) == place
    resumed = Fit(tmp_path, 2, resume=cut.checkpoint)
    assert resumed.state == whole.state
    from_second = {name: values[1:] for name, values in whole.epochs.items()}
    assert resumed.epochs == from_second, "the epoch that was cut counts whole"
    assert len(resumed.seen) == len(whole.seen) - stop_after, "callbacks see no step twice"
    assert (resumed.early.best, resumed.early.wait) == (whole.early.best, whole.early.wait)


def test_the_steps_of_an_execution_may_change_on_the_way(whole: Fit, cut: Fit) -> None:
    resumed = Fit(cut.folder, 2, resume=cut.checkpoint, per_execution=3)
    assert resumed.state == whole.state
    assert resumed.logs["accuracy"] == whole.logs["accuracy"]


def test_a_checkpoint_holds_a_row_for_each_replica_where_they_differ(cut: Fit) -> None:
    checkpoint = cut.checkpoint
    by_name = dict(zip(checkpoint.facts["variables"], checkpoint.arrays, strict=True))
    seeds = [array for name, array in by_name.items() if "seed" in name]
    assert len(seeds) == 1
    assert seeds[0].shape == (2, 2)
    assert seeds[0][0, 0] != seeds[0][1, 0]
    totals = next(array for name, array in by_name.items() if name.endswith("accuracy/count"))
    assert totals.sum() == 2 * 4 * BATCH, "the samples of both replicas in this epoch"
    assert checkpoint.facts["running"]["samples"] == 2 * 4 * BATCH


def test_another_number_of_replicas_goes_on_with_the_same_samples(tmp_path: Path) -> None:
    """Without layers that are not the same for other numbers of replicas anyway."""
    import tests.train.test_resume as module

    def plain() -> Any:
        keras.utils.set_random_seed(SEED)
        model = keras.Sequential([keras.layers.Input((FEATURES,)), keras.layers.Dense(CLASSES, activation="softmax")])
        model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "build", plain)
        alone = Fit(tmp_path / "1", 1)
        resumed = Fit(tmp_path / "3", 3, resume=Fit(tmp_path / "2", 2, 4).checkpoint)
    for one, other in zip(alone.model.get_weights(), resumed.model.get_weights(), strict=True):
        assert np.abs(one - other).max() <= 1e-8
    assert resumed.logs["accuracy"] == alone.logs["accuracy"]
    assert resumed.logs["loss"] == pytest.approx(alone.logs["loss"], abs=1e-8)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, cut: Fit) -> None:
    arrays = [np.zeros((3, 3)), *cut.checkpoint.arrays[1:]]
    wrong = Checkpoint(0, 4, STEPS, cut.checkpoint.facts, arrays=arrays)
    with pytest.raises(Exception, match=r"another model: .*expected shape"):
        Fit(tmp_path, 2, resume=wrong)
