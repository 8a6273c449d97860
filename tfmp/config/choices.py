"""The choices that a configuration offers, one type per key.

Optimizers, activations, losses and metrics have the names that they have in Keras 3.10, the oldest supported release,
and every later one. Importing this module costs next to nothing.
"""

from __future__ import annotations

from typing import Literal, get_args

Activation = Literal[
    "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu", "linear", "mish", "relu", "relu6",
    "selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "swish", "tanh",
]  # fmt: skip

Dataset = Literal["mnist", "idx", "npz", "csv", "images"]

# ``keras.optimizers.get`` does not know "lamb" by name, so the optimizer is looked up as a class: Lamb.
Optimizer = Literal[
    "sgd", "rmsprop", "adagrad", "adadelta", "adam", "adamw", "adamax", "nadam", "adafactor", "ftrl", "lamb", "lion",
]  # fmt: skip

Schedule = Literal["constant", "cosine", "exponential", "linear"]

#: Losses for class numbers, one-hot rows, yes or no, and numbers.
Loss = Literal[
    "sparse_categorical_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy", "kl_divergence",
    "categorical_hinge", "binary_crossentropy", "binary_focal_crossentropy", "hinge", "squared_hinge",
    "mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_logarithmic_error",
    "huber", "log_cosh", "poisson", "cosine_similarity",
]  # fmt: skip
LOSSES: tuple[str, ...] = get_args(Loss)

Metric = Literal[
    "accuracy", "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy", "sparse_categorical_crossentropy",
    "categorical_accuracy", "top_k_categorical_accuracy", "categorical_crossentropy", "binary_accuracy",
    "binary_crossentropy", "auc", "precision", "recall", "mean_squared_error", "mean_absolute_error",
    "mean_absolute_percentage_error", "root_mean_squared_error", "r2_score", "cosine_similarity",
]  # fmt: skip
METRICS: tuple[str, ...] = get_args(Metric)

#: Short names that Keras takes for losses and metrics.
SHORT_NAMES = {
    "bce": "binary_crossentropy",
    "kld": "kl_divergence",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "mse": "mean_squared_error",
    "msle": "mean_squared_logarithmic_error",
    "rmse": "root_mean_squared_error",
}

Precision = Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"]

Strategy = Literal["multi-worker", "mirrored"]
Device = Literal["auto", "cpu", "gpu"]
Collective = Literal["auto", "shm", "hierarchical", "ring", "nccl"]
Switch = Literal["auto", "on", "off"]
