"""Small Keras programs of the kinds that people write. Each trains the same in one process and on several workers, or
is refused.

A program builds a compiled model and its data: global batches in a fixed order, the last one short and uneven. All
compute in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

L = keras.layers
ROWS, BATCH, EPOCHS = 29, 8, 2
Program = Callable[[], tuple[Any, Any, dict[str, Any]]]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Register a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


def rows(*shape: int, seed: int = 0) -> Any:
    """Normal numbers [ROWS, *shape]."""
    return np.random.default_rng(seed).normal(size=(ROWS, *shape))


def classes(count: int, *shape: int) -> Any:
    """Integers [ROWS, *shape] below count."""
    return np.random.default_rng(1).integers(0, count, (ROWS, *shape)).astype("int32")


def batches(*parts: Any) -> Any:
    """Global batches of ``x, y`` or ``x, y, sample_weight``."""
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


def compiled(model: Any, loss: Any = "mse", optimizer: Any = None, **settings: Any) -> Any:
    """Compile with SGD unless told otherwise."""
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **settings)
    return model


def dense(optimizer: Any = None, *, fit: dict[str, Any] | None = None, layer: Any = None, **settings: Any) -> Any:
    """Regression with two Dense layers: the model where the program is about something else."""
    layers = [layer] if layer is not None else []
    model = keras.Sequential([L.Input((6,)), *layers, L.Dense(9, activation="tanh"), L.Dense(2)])
    return compiled(model, optimizer=optimizer, **settings), batches(rows(6), rows(2, seed=1)), fit or {}


def classifier(*layers: Any, shape: tuple[int, ...] = (8, 8, 1), optimizer: Any = None, **settings: Any) -> Any:
    """Classification of images into three classes."""
    model = keras.Sequential([L.Input(shape), *layers, L.Dense(3, activation="softmax")])
    settings = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **settings}
    return compiled(model, optimizer=optimizer, **settings), batches(rows(*shape), classes(3)), {}


def inputs(shape: tuple[int, ...], **kwargs: Any) -> Any:
    return keras.Input(shape, **kwargs)


# ---- architectures


@program
def regression() -> Any:
    return dense()


@program
def convolutions() -> Any:
    return classifier(L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D(), L.Flatten())


@program
def convolutions_batch_norm_synchronized() -> Any:
    return classifier(L.Conv2D(4, 3), L.BatchNormalization(synchronized=True), L.ReLU(), L.GlobalAveragePooling2D())


@program
def convolutions_batch_norm() -> Any:
    return classifier(L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.GlobalAveragePooling2D())


@program
def separable_and_transposed() -> Any:
    return classifier(
        L.SeparableConv2D(4, 3), L.DepthwiseConv2D(3), L.Conv2DTranspose(2, 3), L.GroupNormalization(2), L.Flatten()
    )


@program
def residual() -> Any:
    x = inputs((8, 8, 2))
    y = L.Conv2D(4, 3, padding="same")(x)
    for _ in range(2):
        inner = L.Conv2D(4, 3, padding="same")(L.LayerNormalization()(L.Activation("gelu")(y)))
        y = L.Add()([y, inner])
    model = keras.Model(x, L.Dense(3, activation="softmax")(L.GlobalMaxPooling2D()(y)))
    data = batches(rows(8, 8, 2), classes(3))
    return compiled(model, "sparse_categorical_crossentropy", metrics=["accuracy"]), data, {}


@program
def unet() -> Any:
    x = inputs((8, 8, 1))
    down = L.Conv2D(3, 3, padding="same", activation="relu")(x)
    middle = L.Conv2D(4, 3, padding="same", activation="relu")(L.MaxPooling2D()(down))
    up = L.Concatenate()([down, L.UpSampling2D()(middle)])
    model = keras.Model(x, L.Conv2D(2, 1, activation="softmax")(up))
    data = batches(rows(8, 8, 1), classes(2, 8, 8))
    return compiled(model, "sparse_categorical_crossentropy", metrics=["accuracy"]), data, {}


@program
def lstm() -> Any:
    return classifier(L.LSTM(5, return_sequences=True), L.GRU(4), shape=(6, 3))


@program
def bidirectional_with_mask() -> Any:
    model = keras.Sequential(
        [L.Input((7,), dtype="int32"), L.Embedding(11, 4, mask_zero=True), L.Bidirectional(L.GRU(3)), L.Dense(1)]
    )
    return compiled(model), batches(classes(11, 7), rows(1)), {}


@program
def sequence_labels_with_mask() -> Any:
    model = keras.Sequential(
        [
            L.Input((7,), dtype="int32"),
            L.Embedding(11, 4, mask_zero=True),
            L.LSTM(4, return_sequences=True),
            L.Dense(3, activation="softmax"),
        ]
    )
    data = batches(classes(11, 7), classes(3, 7))
    return compiled(model, "sparse_categorical_crossentropy", metrics=["accuracy"]), data, {}


@program
def transformer() -> Any:
    tokens = inputs((6,), dtype="int32")
    y = L.Embedding(20, 8)(tokens)
    y = L.LayerNormalization()(y + L.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True))
    y = L.LayerNormalization()(y + L.Dense(8)(L.Dense(16, activation="gelu")(y)))
    model = keras.Model(tokens, L.Dense(20)(y))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(model, loss, keras.optimizers.Adam(0.01)), batches(classes(20, 6), classes(20, 6)), {}


@program
def two_inputs() -> Any:
    a, b = inputs((4,), name="a"), inputs((3,), name="b")
    model = keras.Model({"a": a, "b": b}, L.Dense(1)(L.Concatenate()([L.Dense(3)(a), b])))
    return compiled(model), batches({"a": rows(4), "b": rows(3, seed=2)}, rows(1, seed=3)), {}


@program
def two_outputs() -> Any:
    x = inputs((5,))
    hidden = L.Dense(6, activation="tanh")(x)
    outputs = {"number": L.Dense(1, name="number")(hidden), "kind": L.Dense(3, "softmax", name="kind")(hidden)}
    model = keras.Model(x, outputs)
    model.compile(
        keras.optimizers.SGD(0.1),
        {"number": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"number": 0.3, "kind": 1.0},
        metrics={"kind": "accuracy"},
    )
    return model, batches(rows(5), {"number": rows(1), "kind": classes(3)}), {}


@program
def shared_layers() -> Any:
    a, b, shared = inputs((4,)), inputs((4,)), L.Dense(5, activation="tanh")
    model = keras.Model([a, b], L.Dot(1)([shared(a), shared(b)]))
    return compiled(model), batches((rows(4), rows(4, seed=2)), rows(1)), {}


@program
def autoencoder() -> Any:
    x = rows(6)
    model = keras.Sequential([L.Input((6,)), L.Dense(2, activation="tanh"), L.Dense(6)])
    return compiled(model, "mae", keras.optimizers.Adam(0.01)), batches(x, x), {}


class KLDivergence(keras.layers.Layer):
    """Adds the mean over the batch of a penalty, as variational autoencoders do."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.5 * keras.ops.mean(keras.ops.sum(keras.ops.square(x), axis=-1)))
        return x


@program
def variational_add_loss() -> Any:
    x = rows(6)
    model = keras.Sequential([L.Input((6,)), L.Dense(3), KLDivergence(), L.Dense(6)])
    return compiled(model), batches(x, x), {}


class Adversarial(keras.Model):
    """A generator and a discriminator with a train_step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = L.Dense(4), L.Dense(1)

    def call(self, x: Any) -> Any:
        return self.discriminator(self.generator(x))

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@program
def adversarial() -> Any:
    model = Adversarial()
    model.build((None, 4))
    return compiled(model), batches(rows(4), rows(1)), {}


def pairwise_distance(y_true: Any, y_pred: Any) -> Any:
    """A loss over pairs within the batch: no sum over samples."""
    distances = keras.ops.sum(keras.ops.square(y_pred[:, None] - y_pred[None]), -1)
    same = keras.ops.cast(keras.ops.equal(y_true, keras.ops.transpose(y_true)), distances.dtype)
    return keras.ops.mean(same * distances + (1 - same) * keras.ops.relu(1 - distances))


@program
def metric_learning() -> Any:
    model = keras.Sequential([L.Input((5,)), L.Dense(2)])
    return compiled(model, pairwise_distance), batches(rows(5), classes(3, 1)), {}


@program
def tabular() -> Any:
    normalization = L.Normalization()
    normalization.adapt(rows(6))
    return dense(layer=normalization)


@program
def frozen_base() -> Any:
    base = keras.Sequential([L.Input((6,)), L.Dense(8, activation="relu"), L.BatchNormalization()], name="base")
    base.trainable = False
    model = keras.Sequential([L.Input((6,)), base, L.Dense(2)])
    return compiled(model, optimizer=keras.optimizers.Adam(0.01)), batches(rows(6), rows(2)), {}


@program
def spectral_normalization() -> Any:
    return dense(layer=L.SpectralNormalization(L.Dense(6)))


# ---- losses and weights


@program
def huber() -> Any:
    return dense(loss=keras.losses.Huber())


@program
def sum_of_losses() -> Any:
    return dense(loss=keras.losses.MeanSquaredError(reduction="sum"), optimizer=keras.optimizers.SGD(0.001))


@program
def multi_label() -> Any:
    model = keras.Sequential([L.Input((5,)), L.Dense(4, activation="sigmoid")])
    metrics = [keras.metrics.BinaryAccuracy(), keras.metrics.AUC(num_thresholds=20)]
    return compiled(model, "binary_crossentropy", metrics=metrics), batches(rows(5), classes(2, 4)), {}


@program
def one_hot_focal() -> Any:
    model = keras.Sequential([L.Input((5,)), L.Dense(3, activation="softmax")])
    data = batches(rows(5), np.eye(3)[classes(3)])
    metrics = [keras.metrics.F1Score(), keras.metrics.Precision()]
    return compiled(model, keras.losses.CategoricalFocalCrossentropy(), metrics=metrics), data, {}


@program
def dice() -> Any:
    model = keras.Sequential([L.Input((8, 8, 1)), L.Conv2D(1, 3, padding="same", activation="sigmoid")])
    return compiled(model, keras.losses.Dice()), batches(rows(8, 8, 1), classes(2, 8, 8, 1).astype("float64")), {}


@program
def class_weights() -> Any:
    model, data, _ = classifier(L.Flatten())
    return model, data, {"class_weight": {0: 1.0, 1: 5.0, 2: 0.2}}


@program
def sample_weights() -> Any:
    model, *_ = dense(weighted_metrics=["mae"])
    return model, batches(rows(6), rows(2, seed=1), np.abs(rows(seed=4))), {}


@program
def sample_weights_of_time_steps() -> Any:
    model = keras.Sequential([L.Input((4, 3)), L.LSTM(4, return_sequences=True), L.Dense(1)])
    return compiled(model), batches(rows(4, 3), rows(4, 1, seed=1), np.abs(rows(4, seed=4))), {}


@program
def regression_metrics() -> Any:
    return dense(metrics=["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()])


@program
def regularizers() -> Any:
    penalties = {"kernel_regularizer": "l1l2", "bias_regularizer": "l2"}
    return dense(layer=L.Dense(6, **penalties))


@program
def activity_regularizer() -> Any:
    return dense(layer=L.Dense(6, activity_regularizer="l2"))


@program
def constraints() -> Any:
    return dense(layer=L.Dense(6, kernel_constraint="max_norm", bias_constraint="non_neg"))


# ---- optimizers


def _optimizer(name: str, build: Callable[[], Any]) -> None:
    def train() -> Any:
        return dense(build())

    PROGRAMS[f"optimizer_{name}"] = train


O = keras.optimizers  # noqa: E741
for _name, _build in {
    "nesterov": lambda: O.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: O.RMSprop(0.01, momentum=0.5, centered=True),
    "adam_amsgrad": lambda: O.Adam(0.01, amsgrad=True),
    "adamw": lambda: O.AdamW(0.01, weight_decay=0.1),
    "adadelta": lambda: O.Adadelta(1.0),
    "adagrad": lambda: O.Adagrad(0.1),
    "adamax": lambda: O.Adamax(0.01),
    "nadam": lambda: O.Nadam(0.01),
    "ftrl": lambda: O.Ftrl(0.1),
    "lion": lambda: O.Lion(0.01),
    "lamb": lambda: O.Lamb(0.01),
    "adafactor": lambda: O.Adafactor(0.01),
    "clipnorm": lambda: O.Adam(0.01, clipnorm=0.1),
    "global_clipnorm": lambda: O.SGD(0.1, global_clipnorm=0.1),
    "clipvalue": lambda: O.SGD(0.1, clipvalue=0.01),
    "cosine": lambda: O.Adam(O.schedules.CosineDecay(0.01, 8)),
    "moving_average": lambda: O.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
    "accumulation": lambda: O.SGD(0.1, gradient_accumulation_steps=2),
    "loss_scale": lambda: O.LossScaleOptimizer(O.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3),
}.items():
    _optimizer(_name, _build)


# ---- callbacks


def _callback(name: str, build: Callable[[], Any], **fit: Any) -> None:
    def train() -> Any:
        model, data, _ = dense(optimizer=O.Adam(0.05), metrics=["mae"])
        return model, data, {"callbacks": [build()], "validation_data": data, "epochs": 4, **fit}

    PROGRAMS[f"callback_{name}"] = train


C = keras.callbacks
for _name, _build in {
    "early_stopping": lambda: C.EarlyStopping("val_mae", patience=0, restore_best_weights=True, min_delta=0.5),
    "plateau": lambda: C.ReduceLROnPlateau("loss", patience=0, factor=0.5, min_delta=10.0),
    "schedule": lambda: C.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
    "lambda": lambda: C.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    "terminate_on_nan": lambda: C.TerminateOnNaN(),
}.items():
    _callback(_name, _build)


class SlowDown(keras.callbacks.Callback):
    """Reads and sets the learning rate."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.5


_callback("learning_rate", SlowDown)
