"""`tfmp train` with real worker processes: the numbers, the run folder, and one worker as good as another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from tests.conftest import Run
from tfmp.checkpoint.export import weights_sha256
from tfmp.config import load_run_config
from tfmp.data.cache import prepare

#: 15 steps of 100 and one of 4 samples, so that with 7 workers three have nothing to do in the last.
_EXACT = ("--epochs", 1, "--batch-size", 100, "--seed", 7, "--set", "training.precision=float64",
          "--set", "data.limit_train=1504", "--set", "data.limit_validation=1000",
          "--set", "model.l2=0.001")  # fmt: skip
_OPTIMIZERS = {
    "sgd": ("--set", "training.optimizer=sgd", "--set", "training.schedule=constant", "--learning-rate", "0.05"),
    "adam": ("--set", "training.optimizer=adam", "--set", "training.global_clipnorm=0.5"),
}
_MIRRORED = ("--strategy", "mirrored", "--devices", 2)


def model_of(run: Run) -> Any:
    return keras.models.load_model(run.folder / "model.keras")


def mnist() -> Any:
    return prepare(load_run_config_default().data).open()


def load_run_config_default() -> Any:
    from tfmp.config import RunConfig

    return RunConfig()


def difference(one: Run, other: Run) -> float:
    pairs = zip(model_of(one).get_weights(), model_of(other).get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("optimizer", "cluster"),
    [("sgd", ("--workers", 2)), ("sgd", ("--workers", 7)), ("adam", ("--workers", 3)), ("sgd", _MIRRORED)],
    ids=["sgd-2", "sgd-7", "adam-3", "sgd-mirrored-2"],
)
def test_n_workers_compute_what_one_does(trained: Callable[..., Run], optimizer: str, cluster: Any) -> None:
    alone = trained("--workers", 1, *_EXACT, *_OPTIMIZERS[optimizer])
    together = trained(*cluster, *_EXACT, *_OPTIMIZERS[optimizer])
    assert difference(alone, together) <= 1e-8
    for name in ("val_accuracy", "accuracy"):
        assert together.summary[name] == alone.summary[name]


def test_one_worker_computes_what_plain_keras_does(trained: Callable[..., Run]) -> None:
    run = trained("--workers", 1, *_EXACT, *_OPTIMIZERS["sgd"])
    arrays = mnist()
    order = np.random.default_rng((7, 0)).permutation(1504)
    keras.utils.set_random_seed(7)
    penalty = keras.regularizers.L2(0.001)
    plain = keras.Sequential(
        [
            keras.layers.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu", kernel_regularizer=penalty),
            keras.layers.Dense(10, activation="softmax", kernel_regularizer=penalty),
        ]
    )
    plain.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    images, labels = np.asarray(arrays.train.x)[:1504][order] / 255.0, np.asarray(arrays.train.y)[:1504]
    plain.fit(images, labels[order], batch_size=100, shuffle=False, verbose=0)
    pairs = zip(plain.get_weights(), model_of(run).get_weights(), strict=True)
    assert max(float(np.abs(a - b).max()) for a, b in pairs) <= 1e-8


@pytest.mark.parametrize("workers", [1, 3])
def test_val_accuracy_is_what_plain_keras_measures(trained: Callable[..., Run], workers: int) -> None:
    optimizer = "adam" if workers == 3 else "sgd"
    run = trained("--workers", workers, *_EXACT, *_OPTIMIZERS[optimizer])
    arrays = mnist()
    images, labels = np.asarray(arrays.validation.x)[:1000] / 255.0, np.asarray(arrays.validation.y)[:1000]
    loss, accuracy = model_of(run).evaluate(images, labels, batch_size=1000, verbose=0)
    assert run.summary["val_accuracy"] == accuracy
    assert run.summary["val_loss"] == pytest.approx(loss, abs=1e-7)


def test_float32_agrees_as_far_as_float32_can(trained: Callable[..., Run]) -> None:
    adam = ("--epochs", 1, "--steps-per-epoch", 20, "--seed", 7)
    assert difference(trained("--workers", 1, *adam), trained("--workers", 2, *adam)) <= 1e-5


SMOKE = ("configs/smoke.yaml",)


def test_the_smoke_run_leaves_every_file(trained: Callable[..., Run]) -> None:
    run = trained(*SMOKE)
    found = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    events = {name for name in found if name.startswith("tensorboard/")}
    assert found - events == {
        "config.yaml", "metrics.jsonl", "events.jsonl", "summary.json", "model.keras",
        "checkpoints/step-0000000008.npz", "logs/attempt-0/worker-0.log", "logs/attempt-0/worker-1.log",
    }  # fmt: skip
    assert sorted(name.split("/")[1] for name in events) == ["train", "validation"], "one event file in each"
    assert list(run.metrics[0]) == [
        "epoch", "loss", "accuracy", "val_loss", "val_accuracy", "seconds", "samples_per_second", "step",
    ]  # fmt: skip
    assert [(line["epoch"], line["step"]) for line in run.metrics] == [(1, 8)]
    summary = run.summary
    assert summary["status"] == "done"
    assert (summary["workers"], summary["replicas"], summary["epochs"], summary["restarts"]) == (2, 2, 1, 0)
    assert (summary["strategy"], summary["collective"]) == ("multi-worker", "shm")
    assert summary["val_accuracy"] > 0.7
    assert summary["weights_sha256"] == weights_sha256(model_of(run).get_weights())
    assert load_run_config(run.folder).training.epochs == 1


def test_every_worker_has_all_replicas_the_same_weights_and_the_same_numbers(trained: Callable[..., Run]) -> None:
    run = trained(*SMOKE)
    for rank in range(2):
        log = run.log(rank)
        assert "replicas: 2" in log
        assert "PerReplica" not in log
        assert f"weights_sha256 {run.summary['weights_sha256']}" in log
    epochs = [re.findall(r"^tfmp: (epoch .*)$", run.log(rank), re.M) for rank in range(2)]
    assert len(epochs[0]) == 1
    assert epochs[0] == epochs[1]


def test_output_in_a_pipe_is_plain_lines(trained: Callable[..., Run]) -> None:
    run = trained(*SMOKE)
    out = run.done.out
    assert "\x1b" not in out + run.done.err
    assert "\r" not in out
    assert "global batch 256 (128 per replica)" in out
    assert re.search(r"^epoch 1/1  loss \d\.\d{4}  accuracy 0\.\d{4}  val_loss", out, re.M)
    assert str(run.folder) in out


def test_the_same_command_gives_the_same_weights_and_another_seed_others(trained: Callable[..., Run]) -> None:
    digest = trained(*SMOKE).summary["weights_sha256"]
    assert trained(*SMOKE, again=1).summary["weights_sha256"] == digest
    assert trained(*SMOKE, "--set", "training.steps_per_execution=3").summary["weights_sha256"] == digest
    assert trained(*SMOKE, "--seed", 8).summary["weights_sha256"] != digest


def test_evaluate_says_what_the_run_said(trained: Callable[..., Run], tfmp: Callable[..., Any]) -> None:
    run = trained(*SMOKE)
    done = tfmp("evaluate", run.folder, "--json")
    assert done.code == 0, done.text
    found = json.loads(done.out)
    assert found["samples"] == 1000
    assert found["accuracy"] == pytest.approx(run.summary["val_accuracy"], abs=1e-6)
    assert found["loss"] == pytest.approx(run.summary["val_loss"], abs=1e-5)


def test_shared_memory_and_the_ring_sum_the_same(trained: Callable[..., Run]) -> None:
    shared, ring = trained(*SMOKE), trained(*SMOKE, "--collective", "ring")
    assert ring.summary["collective"] == "ring"
    assert difference(shared, ring) <= 1e-5
    assert ring.summary["val_accuracy"] == pytest.approx(shared.summary["val_accuracy"], abs=0.005)


def test_two_hundred_steps_on_two_replicas_stay_finite(trained: Callable[..., Run]) -> None:
    run = trained("--strategy", "mirrored", "--devices", 2, "--steps-per-epoch", 200, "--epochs", 1,
                  "--set", "data.limit_validation=1000")  # fmt: skip
    assert (run.metrics[0]["step"], run.summary["replicas"]) == (200, 2)
    assert 0.0 < run.metrics[0]["loss"] < 1.0
    assert run.summary["val_accuracy"] > 0.85
