"""From the configuration to Keras objects: precision, optimizer, learning-rate schedule, compiled model, callbacks.

A model or a callback may be the user's: a function named as ``package.module:function``. tfmp itself puts only classes
that Keras ships into the model, so that ``model.keras`` loads where tfmp is not installed.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import keras

from tfmp.checkpoint.callback_state import flat
from tfmp.errors import TfmpError
from tfmp.planning.mlp import mlp_head
from tfmp.references import load_function

if TYPE_CHECKING:
    from tfmp.config.schema import ModelConfig, RunConfig, TrainingConfig
    from tfmp.data.arrays import DatasetArrays
    from tfmp.planning.mlp import Head


def set_precision(precision: str) -> None:
    """Set Keras's float type and dtype policy for this process, before any model is built."""
    if precision in ("float32", "float64"):
        keras.config.set_floatx(precision)
    keras.config.set_dtype_policy(precision)
    # Keras also reads these from ~/.keras/keras.json, which does not belong to the run's configuration.
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


def build_model(config: RunConfig, dataset: DatasetArrays, total_steps: int) -> Any:
    """Build and compile the model. Call inside ``strategy.scope()``.

    A factory may return a compiled model, which keeps its optimizer, loss and metrics.

    Args:
        config: The run.
        dataset: The samples.
        total_steps: Optimizer steps of the whole run, for the schedule.
    """
    training = config.training
    if config.model.factory is None:
        head = mlp_head(training.loss, dataset.classes, dataset.target_shape)
        model = build_mlp(config.model, dataset.input_shape, head)
    else:
        model = build_from_factory(config.model.factory, dataset)
        _check_it_can_be_saved(model, config.model.factory)
    if model.compiled:
        _check_nothing_is_ignored(config)
    else:
        model.compile(
            optimizer=build_optimizer(training, total_steps),
            loss=_named(training.loss, "training.loss", keras.losses.Loss),
            # weighted, so that padding gets weight zero inside the compiled step
            weighted_metrics=[_named(name, "training.metrics", keras.metrics.Metric) for name in training.metric_names],
            jit_compile=False,  # the bridge compiles forward and backward itself (training.jit_compile)
        )
    if not model.built:
        model.build(keras.tree.map_shape_structure(lambda shape: (None, *shape), dataset.input_shape))
    return model


def _named(name: str, key: str, base: type) -> Any:
    """A loss or metric of Keras by its name, or the user's: a function of ``y_true`` and ``y_pred``, or a class."""
    if ":" not in name:
        return name
    found = load_function(name, key)
    return found() if isinstance(found, type) and issubclass(found, base) else found


def build_mlp(config: ModelConfig, input_shape: tuple[int, ...], head: Head) -> Any:
    """Build the MLP: flatten, hidden Dense layers, and an output layer that fits the loss.

    Input shape:
        [batch, *input_shape].

    Output shape:
        [batch, outputs], float32 or float64 (never half precision: a softmax in float16 loses small values).

    Args:
        config: Units, activation, dropout, batch normalisation and L2 penalty of the hidden layers.
        input_shape: Shape of one sample.
        head: The output layer.
    """
    # Fixed names, so that weights can be found by name whatever the process built before.
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
    layers.append(keras.layers.Dense(head.units, kernel_regularizer=penalty, name="logits"))
    output_dtype = "float64" if keras.config.floatx() == "float64" else "float32"
    name = "values" if head.activation == "linear" else "probabilities"
    layers.append(keras.layers.Activation(head.activation, dtype=output_dtype, name=name))
    return keras.Sequential(layers, name="mlp")


def build_from_factory(reference: str, dataset: DatasetArrays) -> Any:
    """Build the user's model. Call inside ``strategy.scope()``.

    Args:
        reference: ``package.module:function``. The function receives ``input_shape``, ``target_shape`` and ``classes``
            if it has parameters of these names.
        dataset: The samples.

    Returns:
        A Keras model, compiled or not.

    Raises:
        TfmpError: The function cannot be imported or does not return a Keras model.
    """
    function = load_function(reference, "model.factory")
    known = {
        "input_shape": dataset.input_shape,
        "target_shape": dataset.target_shape,
        "classes": dataset.classes,
    }
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters}
    model = function(**{name: value for name, value in known.items() if takes_all or name in named})
    if not isinstance(model, keras.Model):
        raise TfmpError(
            f"expected a keras.Model, received {type(model).__name__}",
            where=f"model.factory: {reference}",
            hint="return the model from the function",
        )
    return model


def _check_it_can_be_saved(model: Any, factory: str) -> None:
    """Refuse a model that cannot be saved at the end of the run.

    Raises:
        TfmpError: A layer or the model has no configuration.
    """
    try:
        keras.saving.serialize_keras_object(model)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise TfmpError(
            f"the model could not be saved after the training: {reason[:300]}",
            where=f"model.factory: {factory}",
            hint="give its class a get_config(), and register it with keras.saving.register_keras_serializable()",
        ) from error


#: Settings of ``compile``, without effect on a model that is already compiled.
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
    """The Keras callbacks in the configuration. They act on logs, which are equal on all workers."""
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
        where = f"training.callbacks: {reference}"
        for callback in flat(load_function(reference, "training.callbacks")()):
            if not isinstance(callback, keras.callbacks.Callback):
                raise TfmpError(
                    f"expected a keras.callbacks.Callback, received {type(callback).__name__}",
                    where=where,
                    hint="return the callback from the function, or a list of them",
                )
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                raise TfmpError(
                    "BackupAndRestore is not supported: one worker would go on from another epoch than the others",
                    where=where,
                    hint="leave it out: tfmp restarts from its own checkpoints, and --resume goes on with a run",
                )
            callbacks.append(callback)
    return callbacks
