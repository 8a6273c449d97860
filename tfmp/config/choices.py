"""The words that a configuration may choose from, one type a key.

Names of optimizers, activations, losses and metrics are those of Keras 3.10, the oldest that tfmp supports, and of every
later release. Light to import: the command line offers these words in ``--help`` and shell completion.
"""

from __future__ import annotations

from typing import Literal

Activation = Literal[
    "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu", "linear", "mish", "relu", "relu6",
    "selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "swish", "tanh",
]  # fmt: skip

Dataset = Literal["mnist", "idx", "npz"]

# ``keras.optimizers.get`` does not know "lamb" by name, so the optimizer is looked up as a class: Lamb.
Optimizer = Literal[
    "sgd", "rmsprop", "adagrad", "adadelta", "adam", "adamw", "adamax", "nadam", "adafactor", "ftrl", "lamb", "lion",
]  # fmt: skip

Schedule = Literal["constant", "cosine", "exponential", "linear"]

# Labels are integers, so losses and metrics that need one-hot labels are not offered.
Loss = Literal[
    "sparse_categorical_crossentropy", "binary_crossentropy", "hinge", "squared_hinge", "mean_squared_error",
    "mean_absolute_error", "huber", "log_cosh", "poisson",
]  # fmt: skip

Metric = Literal[
    "accuracy", "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy", "sparse_categorical_crossentropy",
    "binary_accuracy", "binary_crossentropy", "auc", "precision", "recall", "mean_squared_error",
    "mean_absolute_error", "root_mean_squared_error",
]  # fmt: skip

Precision = Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"]

Strategy = Literal["multi-worker", "mirrored"]
Device = Literal["auto", "cpu", "gpu"]
Collective = Literal["auto", "shm", "hierarchical", "ring", "nccl"]
Switch = Literal["auto", "on", "off"]
