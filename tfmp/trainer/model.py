"""From the configuration to Keras objects: precision, optimizer, learning-rate schedule, compiled model.

Only classes that Keras itself ships go into the model, so that ``model.keras`` loads where tfmp is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from tfmp.errors import TfmpError
from tfmp.trainer.factory import build_from_factory
from tfmp.trainer.mlp import build_mlp

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig, TrainingConfig


def set_precision(precision: str) -> None:
    """Set Keras's float type and dtype policy for this process, before any model is built."""
    if precision in ("float32", "float64"):
        keras.config.set_floatx(precision)
    keras.config.set_dtype_policy(precision)
    # Also read from ~/.keras/keras.json, which is no part of the run's configuration.
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")


def build_learning_rate(training: TrainingConfig, total_steps: int) -> Any:
    """The learning rate: a number, or a Keras schedule over the ``total_steps`` steps of the run."""
    peak, warmup = training.learning_rate, training.warmup_steps
    schedules = keras.optimizers.schedules
    last = training.final_learning_rate_fraction
    steps = max(total_steps - warmup, 1)
    if training.schedule == "cosine":
        if warmup:
            return schedules.CosineDecay(0.0, steps, alpha=last, warmup_target=peak, warmup_steps=warmup)
        return schedules.CosineDecay(peak, steps, alpha=last)
    if training.schedule == "linear":
        return schedules.PolynomialDecay(peak, steps, end_learning_rate=peak * last)
    if training.schedule == "exponential":
        return schedules.ExponentialDecay(peak, steps, decay_rate=last)
    return peak


def build_optimizer(training: TrainingConfig, total_steps: int) -> Any:
    """The optimizer the configuration names, with its schedule, clipping and decay."""
    settings: dict[str, Any] = {"learning_rate": build_learning_rate(training, total_steps)}
    if training.momentum:
        settings["momentum"] = training.momentum
    for name in ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue"):
        if (value := getattr(training, name)) is not None:
            settings[name] = value
    # keras.optimizers.get does not know every class by its name ("lamb"), so the class itself is looked up.
    classes = {name.lower(): value for name, value in vars(keras.optimizers).items() if isinstance(value, type)}
    return classes[training.optimizer](**settings)


def build_model(config: RunConfig, input_shape: tuple[int, ...], classes: int, total_steps: int) -> Any:
    """Build and compile the model. Call inside ``strategy.scope()``.

    A factory may return a compiled model; then its own optimizer, loss and metrics are used.

    Args:
        config: The run.
        input_shape: Shape of one sample.
        classes: Number of classes.
        total_steps: Optimizer steps of the whole run, for the schedule.
    """
    if config.model.factory is None:
        model = build_mlp(config.model, input_shape, classes)
    else:
        model = build_from_factory(config.model.factory, input_shape, classes)
        _check_it_can_be_saved(model, config.model.factory)
    if model.compiled:
        _check_nothing_is_ignored(config)
    else:
        model.compile(
            optimizer=build_optimizer(config.training, total_steps),
            loss=config.training.loss,
            # weighted, so that padding can be weighed out inside the compiled step
            weighted_metrics=list(config.training.metrics),
            jit_compile=False,  # the bridge compiles forward and backward itself (training.jit_compile)
        )
    if not model.built:
        model.build((None, *input_shape))
    return model


def _check_it_can_be_saved(model: Any, factory: str) -> None:
    """Refuse at once a model that cannot be written at the end of the run.

    Raises:
        TfmpError: A layer or the model has no configuration of its own.
    """
    try:
        keras.saving.serialize_keras_object(model)
    except Exception as error:
        words = " ".join(str(error).split())
        raise TfmpError(
            f"the model could not be saved after the training: {words[:300]}",
            where=f"model.factory: {factory}",
            hint="give its class a get_config(), and register it with keras.saving.register_keras_serializable()",
        ) from error


#: What ``compile`` decides: without effect on a model that comes compiled.
_COMPILED_KEYS = (
    "optimizer", "learning_rate", "schedule", "warmup_steps", "final_learning_rate_fraction", "momentum",
    "weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "loss", "metrics",
)  # fmt: skip


def _check_nothing_is_ignored(config: RunConfig) -> None:
    training = config.training
    fields = type(training).model_fields
    ignored = [name for name in _COMPILED_KEYS if getattr(training, name) != fields[name].default]
    if ignored:
        raise TfmpError(
            f"the model comes compiled: {', '.join(f'training.{name}' for name in ignored)} would have no effect",
            where=f"model.factory: {config.model.factory}",
            hint="remove these keys, or return the model without compiling it",
        )


def build_callbacks(training: TrainingConfig) -> list[Any]:
    """Keras callbacks that the configuration asks for (they act on logs that are equal on all workers)."""
    from tfmp.trainer.factory import load_function

    callbacks: list[Any] = []
    if training.plateau_patience is not None:
        callbacks.append(
            keras.callbacks.ReduceLROnPlateau(
                "val_loss", factor=training.plateau_factor, patience=training.plateau_patience
            )
        )
    if training.early_stopping_patience is not None:
        callbacks.append(keras.callbacks.EarlyStopping("val_loss", patience=training.early_stopping_patience))
    for reference in training.callbacks:
        callback = load_function(reference, "training.callbacks")()
        if not isinstance(callback, keras.callbacks.Callback):
            raise TfmpError(
                f"expected a keras.callbacks.Callback, received {type(callback).__name__}",
                where=f"training.callbacks: {reference}",
                hint="return the callback from the function",
            )
        callbacks.append(callback)
    return callbacks
