"""The bridge with what people bring along: their data sets, losses, metrics, layers and callbacks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.train.conftest import mirrored
from tests.train.small import BATCH, CLASSES, FEATURES, SAMPLES, build, dataset, difference, samples, train_bridged
from tfmp.distribute import NonFiniteLossError, bridge
from tfmp.distribute.keras_hooks import check_model_hooks
from tfmp.errors import TfmpError


def fit_bridged(make: Any, replicas: int, data: Any, **fit: Any) -> tuple[Any, dict[str, list[float]]]:
    strategy = mirrored(replicas)
    with strategy.scope():
        model = bridge(make())
    return model, model.fit(data, verbose=0, **fit).history


@pytest.mark.parametrize("steps_per_execution", [1, 4])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_users_data_set_of_global_batches_gives_plain_keras_numbers(
    steps_per_execution: int, drop_remainder: bool
) -> None:
    # 334 samples in global batches of 36 over 3 replicas; without drop_remainder a last batch of 10: 4, 4 and 2.
    data = dataset(36, drop_remainder)
    reference = build()
    expected = reference.fit(data, epochs=2, verbose=0, validation_data=data).history
    model, history = fit_bridged(
        lambda: build(steps_per_execution=steps_per_execution), 3, data, epochs=2, validation_data=data
    )
    assert difference(reference, model) <= 1e-8
    assert history["accuracy"] == expected["accuracy"]
    assert history["val_accuracy"] == expected["val_accuracy"]
    assert history["val_loss"] == pytest.approx(expected["val_loss"], abs=1e-7)


def test_arrays_with_sample_weights_give_plain_keras_numbers() -> None:
    images, labels = samples()
    weights = np.random.default_rng(1).uniform(0.2, 2.0, SAMPLES)
    arguments = {"y": labels, "sample_weight": weights, "batch_size": 40, "shuffle": False, "epochs": 1}
    reference = build(weighted_metrics=["accuracy"])
    expected = reference.fit(images / 255.0, verbose=0, **arguments).history
    model, history = fit_bridged(lambda: build(weighted_metrics=["accuracy"]), 2, images / 255.0, **arguments)
    assert difference(reference, model) <= 1e-8
    assert history["weighted_accuracy" if "weighted_accuracy" in history else "accuracy"] == pytest.approx(
        expected["weighted_accuracy" if "weighted_accuracy" in expected else "accuracy"], abs=1e-12
    )


def test_a_sum_loss_gives_plain_keras_numbers() -> None:
    def make() -> Any:
        return build(keras.optimizers.SGD(0.01), loss=keras.losses.SparseCategoricalCrossentropy(reduction="sum"))

    reference = make()
    reference.fit(dataset(40), verbose=0)
    model, _ = fit_bridged(make, 3, dataset(40))
    assert difference(reference, model) <= 1e-8


def test_a_mean_over_sample_weights_gives_plain_keras_numbers() -> None:
    def make() -> Any:
        reduction = "mean_with_sample_weight"
        return build(loss=keras.losses.SparseCategoricalCrossentropy(reduction=reduction))

    images, labels = samples()
    weights = np.random.default_rng(2).random(len(labels))
    data = tf.data.Dataset.from_tensor_slices((images / 255.0, labels, weights)).batch(40)
    reference = make()
    reference.fit(data, verbose=0)
    model, _ = fit_bridged(make, 3, data)
    assert difference(reference, model) <= 1e-8


def test_a_large_penalty_is_exact_too() -> None:
    reference = build(l2=0.5)
    reference.fit(dataset(36), epochs=3, verbose=0)
    model, _ = fit_bridged(lambda: build(l2=0.5), 3, dataset(36), epochs=3)
    assert difference(reference, model) <= 1e-12


def test_a_data_set_without_samples_does_no_harm() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = bridge(build())
    model.fit(dataset(40).take(0), verbose=0)
    history = model.fit(dataset(40), verbose=0).history
    reference = build()
    reference.fit(dataset(40), verbose=0)
    assert set(history) == {"loss", "accuracy"}
    assert difference(reference, model) <= 1e-8


def test_single_batches_are_refused() -> None:
    images, labels = samples()
    strategy = mirrored(2)
    with strategy.scope():
        model = bridge(build())
    with pytest.raises(TfmpError, match="train_on_batch"):
        model.train_on_batch(images[:8] / 255.0, labels[:8])


def _two_outputs() -> Any:
    keras.utils.set_random_seed(1)
    x = keras.layers.Input((FEATURES,))
    hidden = keras.layers.Dense(8, activation="tanh")(x)
    model = keras.Model(x, {"kind": keras.layers.Dense(CLASSES)(hidden), "size": keras.layers.Dense(1)(hidden)})
    losses = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
    model.compile(keras.optimizers.SGD(0.1), loss=losses, loss_weights={"kind": 1.0, "size": 0.3})
    return model


def test_several_outputs_give_plain_keras_numbers() -> None:
    images, labels = samples()
    targets = {"kind": labels, "size": images.mean(1, keepdims=True) / 255.0}
    data = tf.data.Dataset.from_tensor_slices((images / 255.0, targets)).batch(40)
    reference = _two_outputs()
    reference.fit(data, verbose=0)
    model, _ = fit_bridged(_two_outputs, 3, data)
    assert difference(reference, model) <= 1e-8


def _per_position(*shape: int) -> Any:
    def make() -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input((*shape, 3)), keras.layers.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return make


@pytest.mark.parametrize("shape", [(7,), (4, 6)], ids=["sequence", "image"])
def test_a_loss_for_each_position_gives_plain_keras_numbers(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, *shape, 3)), rng.integers(0, CLASSES, (50, *shape))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(17)
    reference = _per_position(*shape)()
    reference.fit(data, verbose=0)
    model, _ = fit_bridged(_per_position(*shape), 3, data)
    assert difference(reference, model) <= 1e-8


def _embedding() -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((6,), dtype="int32"), keras.layers.Embedding(30, 4), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_sparse_gradients_of_an_embedding_give_plain_keras_numbers() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 30, (50, 6)).astype(np.int32), rng.integers(0, CLASSES, 50)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
    reference = _embedding()
    reference.fit(data, verbose=0)
    model, _ = fit_bridged(_embedding, 2, data)
    assert difference(reference, model) <= 1e-8


def test_metrics_with_state_of_their_own_are_exact() -> None:
    def make() -> Any:
        x = keras.layers.Input((FEATURES,))
        keras.utils.set_random_seed(1)
        model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(x))
        model.compile(
            keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), "precision"]
        )
        return model

    images, labels = samples()
    data = tf.data.Dataset.from_tensor_slices((images / 255.0, (labels > 1).astype("float64")[:, None])).batch(50)
    reference = make()
    expected = reference.evaluate(data, verbose=0, return_dict=True)
    strategy = mirrored(3)
    with strategy.scope():
        model = bridge(make())
    found = model.evaluate(data, verbose=0, return_dict=True)
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-9)
    assert found["precision"] == pytest.approx(expected["precision"], abs=1e-9)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-9)


def test_dropout_and_batch_normalisation_train_and_replicas_drop_different_units() -> None:
    class Drops(keras.layers.Layer):
        """Dropout on a row of ones, whose sum shows how many units were kept."""

        def __init__(self) -> None:
            super().__init__()
            self.dropout = keras.layers.Dropout(0.5, seed=1)

        def call(self, x: Any, training: bool = False) -> Any:
            kept = self.dropout(tf.ones([64], x.dtype), training=training)
            return x + 0 * tf.reduce_sum(kept) if not training else x * 0 + kept[:CLASSES]

    def make() -> Any:
        layers = [keras.layers.Input((FEATURES,)), keras.layers.Dense(CLASSES), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, Drops()])
        model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
        return model

    images, _ = samples()
    strategy = mirrored(2)
    with strategy.scope():
        model = bridge(make())
    history = model.fit(images / 255.0, np.zeros((SAMPLES, CLASSES)), batch_size=40, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    (seed,) = [v for v in model.variables if v.name == "seed_generator_state"]
    first, second = (component.numpy() for component in strategy.experimental_local_results(seed.value))
    assert first[0] != second[0]
    assert first[1] == second[1] > 0


def test_moving_averages_are_the_same_on_all_replicas() -> None:
    def make() -> Any:
        layers = [keras.layers.Input((FEATURES,)), keras.layers.Dense(CLASSES), keras.layers.BatchNormalization()]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
        return model

    images, _ = samples()
    targets = np.zeros((SAMPLES, CLASSES))
    strategy = mirrored(2)
    with strategy.scope():
        model = bridge(make())
    model.fit(images / 255.0, targets, batch_size=SAMPLES, shuffle=False, verbose=0)
    means = [v.numpy() for v in strategy.experimental_local_results(model.layers[-1].moving_mean.value)]
    assert np.array_equal(means[0], means[1])
    assert np.abs(means[0]).max() > 0


def test_mixed_precision_with_loss_scaling_trains() -> None:
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("mixed_float16")
    model, history = fit_bridged(lambda: build(keras.optimizers.SGD(0.5), l2=0.0), 2, dataset(40, True), epochs=4)
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"
    assert history["loss"][-1] < 0.9 * history["loss"][0]


def test_callbacks_see_the_numbers_of_all_replicas_and_act_on_them() -> None:
    seen: list[dict[str, float]] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(dict(logs))

    callbacks = [
        Look(),
        keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=10.0),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
    ]
    model, history = train_bridged(2, lambda: build(keras.optimizers.SGD(0.5)), epochs=6, callbacks=callbacks)
    assert len(history["loss"]) == 2  # stopped by EarlyStopping
    assert float(model.optimizer.learning_rate.numpy()) == 0.25
    assert [set(logs) for logs in seen] == [{"loss", "accuracy"}] * 6  # 10 steps in executions of 4, 4 and 2
    assert seen[2]["loss"] == pytest.approx(history["loss"][0], abs=1e-12)


def test_run_eagerly_gives_the_same_numbers() -> None:
    reference = build()
    reference.fit(dataset(40), verbose=0)
    model, _ = fit_bridged(lambda: build(run_eagerly=True), 2, dataset(40))
    assert difference(reference, model) <= 1e-8


def test_a_loss_that_is_no_number_stops_at_its_step() -> None:
    with pytest.raises(NonFiniteLossError, match=r"nan|inf") as caught:
        train_bridged(2, lambda: build(keras.optimizers.SGD(1e300)))
    assert "at step " in caught.value.what
    assert caught.value.exit_code == 1


def test_what_cannot_work_is_refused_with_a_reason() -> None:
    class OwnStep(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            return {}

    with pytest.raises(TfmpError, match="outside the strategy"):
        bridge(build())
    with mirrored(2).scope():
        x = keras.layers.Input((2,))
        own = OwnStep(x, keras.layers.Dense(1)(x))
        own.compile("sgd", "mse")
        plain = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(TfmpError, match="train_step"):
        bridge(own)
    with pytest.raises(TfmpError, match="compiled"):
        bridge(plain)
    with pytest.raises(TfmpError, match=r"Model\._symbolic_build"):
        check_model_hooks(type("FutureModel", (), {})())


def test_a_bridged_model_saves_as_the_class_it_is(tmp_path: Any) -> None:
    model, _ = train_bridged(2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is keras.Sequential
    assert difference(loaded, model) == 0.0
    assert BATCH > 0


def test_a_model_that_xla_cannot_compile_runs_without_and_says_why() -> None:
    class Odd(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * tf.ensure_shape(tf.numpy_function(lambda v: np.ones_like(v), [x], x.dtype), x.shape)

    def odd() -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(8), Odd(), keras.layers.Dense(CLASSES, "softmax")]
        model = keras.Sequential([keras.layers.Input((FEATURES,)), *layers])
        model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        return model

    plain, _ = train_bridged(1, odd, epochs=1)
    with pytest.warns(UserWarning, match=r"forward and backward runs uncompiled, as XLA cannot compile it: .*PyFunc"):
        tried, _ = train_bridged(1, odd, epochs=1, jit_compile=True)
    assert difference(plain, tried) <= 1e-8
