"""All private parts of TensorFlow and Keras that tfmp uses, guarded by a version check.

Why they are needed: since Keras 3 (TensorFlow 2.16), ``fit`` under ``MultiWorkerMirroredStrategy`` with more than one
worker fails. ``Trainer._maybe_symbolic_build`` reduces a whole batch of ``PerReplica`` values across the workers just
to learn its shapes, and ``reduce_per_replica("auto")`` then calls ``strategy.reduce(MEAN, axis=0)`` on scalars
(keras-team/keras #20585, tensorflow/tensorflow #72388). ``tests/train/test_upstream.py`` will fail when stock Keras
works, and this module can go.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context as tf_context

from tfmp.distribute.keras_hooks.numbers import losses_are_scaled
from tfmp.distribute.strategy import is_multi_worker
from tfmp.errors import TfmpError

#: Oldest versions whose source was read.
OLDEST_TENSORFLOW = (2, 18)
OLDEST_KERAS = (3, 10)


def _version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:  # pragma: no cover - no released version looks like this
        return (0, 0)
    return int(match[1]), int(match[2])


def check_versions() -> None:
    """Check that tfmp knows the private hooks of the installed TensorFlow and Keras.

    Raises:
        TfmpError: A version is too old, Keras runs on another backend, or legacy Keras 2 is active.
    """
    if _version(tf.__version__) < OLDEST_TENSORFLOW:
        raise TfmpError(
            f"expected TensorFlow {_dotted(OLDEST_TENSORFLOW)} or newer, found {tf.__version__}",
            hint=f"pip install 'tensorflow>={_dotted(OLDEST_TENSORFLOW)}'",
        )
    if _version(keras.__version__) < OLDEST_KERAS or _version(keras.__version__)[0] != 3:
        raise TfmpError(
            f"expected Keras 3 from version {_dotted(OLDEST_KERAS)} on, found {keras.__version__}",
            hint=f"pip install 'keras>={_dotted(OLDEST_KERAS)},<4'",
        )
    if keras.backend.backend() != "tensorflow":
        raise TfmpError(
            f"expected Keras on the tensorflow backend, found {keras.backend.backend()}",
            where="KERAS_BACKEND or ~/.keras/keras.json",
            hint="export KERAS_BACKEND=tensorflow",
        )


def check_model_hooks(model: Any) -> None:
    """Check that ``model`` has the private members the bridge replaces or calls.

    Raises:
        TfmpError: A member is missing: tfmp does not know this version of Keras.
    """
    expected = (
        "_maybe_symbolic_build",
        "_symbolic_build",
        "_compute_loss",
        "_compile_loss",
        "_loss_tracker",
        "_aggregate_additional_loss",
    )
    missing = [name for name in expected if not hasattr(model, name)]
    if missing:
        raise TfmpError(
            f"Keras {keras.__version__} has no {', '.join(f'Model.{name}' for name in missing)}",
            where="tfmp.distribute.keras_hooks",
            hint="use a Keras that this tfmp was tested on (see README), or a newer tfmp",
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def strategy_of(model: Any) -> Any:
    """The strategy that ``model`` was built under; ``None`` if it was built under none."""
    return model._distribute_strategy


def all_layers(model: Any) -> list[Any]:
    """All layers of ``model``, also those inside other layers; the model itself is not among them."""
    return list(model._flatten_layers(include_self=False))


def own_variables(layer: Any) -> list[Any]:
    """The variables of a layer itself, without those of layers inside it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def first_replica_spec(spec: Any) -> Any:
    """The first replica's part of an element spec of a distributed data set; another spec as it is."""
    return spec._value_specs[0] if isinstance(spec, tf.TypeSpec) and hasattr(spec, "_value_specs") else spec


def replace_symbolic_build(model: Any, strategy: tf.distribute.Strategy, batch_spec: Callable[[Any], Any]) -> None:
    """Make ``model`` build itself from shapes alone, without reducing a real batch over all workers.

    Args:
        model: A compiled Keras model.
        strategy: The strategy it was built under.
        batch_spec: Maps a ``tf.distribute.DistributedDataset`` element spec to that of one replica's ``(x, y)``.
    """

    def symbolic_build(iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            if is_multi_worker(strategy):
                check_order_is_shared(iterator.data_adapter)
            data_batch = batch_spec(iterator._distributed_dataset.element_spec)
        with strategy.scope():
            model._symbolic_build(data_batch=data_batch)

    model._maybe_symbolic_build = symbolic_build


def check_states_fit(model: Any, replicas: int) -> None:
    """Refuse layers that keep a state for each row of the global batch.

    Raises:
        TfmpError: A layer is stateful, and there are several replicas.
    """
    for layer in all_layers(model):
        if getattr(layer, "stateful", False):
            fixed = next(iter(keras.tree.flatten(getattr(model, "inputs", None) or [])), None)
            size = fixed.shape[0] if fixed is not None else None
            sizes = f"{size} rows, a replica has {-(-size // replicas)}" if size else "all rows, a replica has some"
            raise TfmpError(
                f"layer {layer.name!r} is stateful: its state is for {sizes}",
                where=f"class {type(layer).__name__}",
                hint="stateful=False, or train it with one worker",
            )


def endless_adapter(dataset: tf.distribute.DistributedDataset) -> Any:
    """Wrap an endless distributed data set for ``fit`` and ``evaluate``.

    Keras recognises TensorFlow's own classes of distributed data sets by name, and accepts adapters of its own class.
    """
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    class Endless(DataAdapter):
        num_batches = None

        def get_tf_dataset(self) -> Any:
            return dataset

    return Endless()


def has_global_seed() -> bool:
    """Whether ``tf.random.set_seed`` or ``keras.utils.set_random_seed`` has been called."""
    return tf_context.global_seed() is not None


def check_order_is_shared(adapter: Any) -> None:
    """Refuse input whose order differs between workers: some samples would be seen twice, others never.

    Args:
        adapter: Keras's data adapter of ``fit`` or ``evaluate``.

    Raises:
        TfmpError: No global seed is set, and there is a ``shuffle`` without a seed, or ``fit`` shuffles arrays.
    """
    hint = "tf.keras.utils.set_random_seed(0) at the start of the script, the same on every worker"
    if tf_context.global_seed() is None and getattr(adapter, "_shuffle", False) and hasattr(adapter, "_inputs"):
        raise TfmpError(
            "fit shuffles these arrays, and each worker would draw an order of its own",
            where="model.fit(x, y)",
            hint=f"{hint}, or shuffle=False",
        )
    pending = [getattr(adapter, "_dataset", None)]
    while pending:
        dataset = pending.pop()
        if not isinstance(dataset, tf.data.Dataset):
            continue
        seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
        if all(isinstance(seed, tf.Tensor) and int(seed) == 0 for seed in seeds):
            raise TfmpError(
                "a shuffle without a seed: each worker would draw an order of its own",
                where="the data set given to fit or evaluate: dataset.shuffle(…)",
                hint=f"dataset.shuffle(…, seed=0), or {hint}",
            )
        pending.extend(dataset._inputs())


def compute_loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> tf.Tensor:
    """The model's total loss, as Keras's own ``train_step`` computes it (divided by the number of replicas)."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def call_model(model: Any, x: Any, *, training: bool) -> Any:
    """Call ``model``, with ``training=`` if its ``call`` has that argument."""
    if model._call_has_training_arg:
        return model(x, training=training)
    return model(x)


def loss_reductions(model: Any) -> set[str | None]:
    """The reductions of all losses passed to ``compile`` (``{"sum_over_batch_size"}`` for most models).

    Losses given as plain functions or names are wrapped by Keras with its default reduction.
    """
    container = model._compile_loss
    if container is None:
        return set()
    losses = keras.tree.flatten(container._user_loss)
    return {getattr(loss, "reduction", "sum_over_batch_size") for loss in losses if loss is not None}


def unweighted_metrics(model: Any) -> bool:
    """Whether ``compile`` was given metrics that Keras calls without sample weights."""
    container = model._compile_metrics
    return container is not None and bool(keras.tree.flatten(container._user_metrics or []))


def loss_scale(dtype: tf.DType) -> tf.Tensor:
    """The factor by which Keras scales a mean loss under the current strategy: 1/R in the precision of Keras.

    Keras 3.15 rounds 1/R to float32 also where the model is float64: off by up to 6e-8, unless the factor that it
    used is divided out again.
    """
    from keras.src.losses import loss as loss_module

    return loss_module.scale_loss_for_distribution(tf.ones([], dtype))


def scale_penalties_exactly(model: Any, replicas: int) -> None:
    """Divide penalties (regularisers, ``add_loss``) by the number of replicas in the model's own precision.

    Keras rounds the factor to float32 (see :func:`loss_scale`). Row weights correct this in the loss only.
    """
    own = type(model)._aggregate_additional_loss

    def aggregate(loss: Any) -> Any:
        scaled = own(model, loss)
        return scaled / (loss_scale(scaled.dtype) * replicas) if losses_are_scaled() else scaled

    model._aggregate_additional_loss = aggregate


def loss_tracker(model: Any) -> Any:
    """Keras's running mean of the loss. It counts padding, so the bridge does not use it."""
    return model._loss_tracker


def has_own_train_step(model: Any) -> bool:
    """Whether the user's class overrides ``train_step`` or ``test_step``."""
    base = keras.Model
    return type(model).train_step is not base.train_step or type(model).test_step is not base.test_step


#: First TensorFlow whose XLA knows :data:`_IN_ORDER`. An unknown flag in XLA_FLAGS aborts the process.
_IN_ORDER_FROM = (2, 21)
_IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def compute_in_order() -> None:
    """Make XLA run the parts of a compiled program one after the other. Call before anything is compiled.

    By default its scheduler for CPUs lets parts run at once, and hands the program to another thread, although a worker
    has only one: two hand-overs per step, about 25 us. The user's flags in ``XLA_FLAGS`` are kept and take
    precedence.
    """
    if _version(tf.__version__) >= _IN_ORDER_FROM:
        os.environ["XLA_FLAGS"] = f"{_IN_ORDER} {os.environ.get('XLA_FLAGS', '')}".rstrip()


@contextlib.contextmanager
def reading_values(values: Iterable[tuple[Any, tf.Tensor]]) -> Iterator[None]:
    """While active, each Keras variable reads as the given value; its replicas are not touched.

    ``keras.StatelessScope`` would do the same, but Keras makes variables while it saves, and that scope forbids it.
    """
    pairs = [(variable, variable._value, value) for variable, value in values]
    try:
        for variable, _, value in pairs:
            variable._value = value
        yield
    finally:
        for variable, own, _ in pairs:
            variable._value = own


@contextlib.contextmanager
def peers_may_be_silent_for(seconds: float) -> Iterator[None]:
    """Set how long strategies built inside tolerate a silent peer; TensorFlow's default is 10 s.

    MultiWorkerMirroredStrategy has no setting for the heartbeats of the coordination service, so its call is given one
    more argument.
    """
    context = tf_context.context()
    stock = context.configure_coordination_service

    def configure(*args: Any, **settings: Any) -> None:
        stock(*args, **{"heartbeat_timeout_in_ms": int(seconds * 1000), **settings})

    context.configure_coordination_service = configure
    try:
        yield
    finally:
        del context.configure_coordination_service
