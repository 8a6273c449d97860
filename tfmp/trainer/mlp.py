"""The Dense MLP that the configuration describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from tfmp.config.schema import ModelConfig


def build_mlp(config: ModelConfig, input_shape: tuple[int, ...], classes: int) -> Any:
    """Build the MLP: flatten, hidden Dense layers, softmax over the classes.

    Input shape:
        [batch, *input_shape], floating, scaled to 0..1.

    Output shape:
        [batch, classes], float32 or float64 probabilities (never half precision: a softmax in float16 loses the
        small ones).

    Args:
        config: Units, activation, dropout, batch normalisation and L2 penalty of the hidden layers.
        input_shape: Shape of one sample.
        classes: Number of classes.
    """
    # Names are fixed, so that weights are found by name whatever was built before in the same process.
    layers: list[Any] = [keras.layers.Input(input_shape, name="image")]
    if len(input_shape) != 1:
        layers.append(keras.layers.Flatten(name="flatten"))
    for i, units in enumerate(config.units, start=1):
        penalty = keras.regularizers.L2(config.l2) if config.l2 else None
        layers.append(keras.layers.Dense(units, kernel_regularizer=penalty, name=f"hidden_{i}"))
        if config.batch_normalization:
            layers.append(keras.layers.BatchNormalization(name=f"normalization_{i}"))
        layers.append(keras.layers.Activation(config.activation, name=f"activation_{i}"))
        if config.dropout:
            layers.append(keras.layers.Dropout(config.dropout, name=f"dropout_{i}"))
    penalty = keras.regularizers.L2(config.l2) if config.l2 else None
    layers.append(keras.layers.Dense(classes, kernel_regularizer=penalty, name="logits"))
    output_dtype = "float64" if keras.config.floatx() == "float64" else "float32"
    layers.append(keras.layers.Activation("softmax", dtype=output_dtype, name="probabilities"))
    return keras.Sequential(layers, name="mlp")
