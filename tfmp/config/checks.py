"""Rules between keys that can be checked without data and devices.

Each rule is a generator of :class:`Contradiction`. A key that nothing would read is refused too, because ignoring it
silently would leave the user with other settings than the file shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig

#: By data set, the keys that it needs and those that it takes.
_DATA_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "idx": (("train_images", "train_labels", "validation_images", "validation_labels"), ("classes",)),
    "npz": (("path",), ("classes",)),
    "csv": (("path", "target"), ("validation_path", "validation_fraction", "columns", "classes")),
    "images": (("path",), ("validation_path", "validation_fraction", "image_size")),
    "mnist": ((), ("classes",)),
}
_CLIP_KEYS = ("clipnorm", "global_clipnorm", "clipvalue")
#: What the built-in MLP can be measured by: any other metric would be broadcast against its outputs. By loss; what is
#: not listed is a loss on numbers.
_CLASS_METRICS = (
    "accuracy", "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy", "sparse_categorical_crossentropy",
)  # fmt: skip
_ONE_HOT_METRICS = (
    "accuracy", "categorical_accuracy", "top_k_categorical_accuracy", "categorical_crossentropy", "auc", "precision",
    "recall", "mean_squared_error",
)  # fmt: skip
_YES_NO_METRICS = (
    "accuracy", "binary_accuracy", "binary_crossentropy", "auc", "precision", "recall", "mean_squared_error",
)  # fmt: skip
_NUMBER_METRICS = (
    "mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error", "root_mean_squared_error",
    "r2_score", "cosine_similarity",
)  # fmt: skip
_METRICS = {
    "sparse_categorical_crossentropy": _CLASS_METRICS,
    "categorical_crossentropy": _ONE_HOT_METRICS,
    "categorical_focal_crossentropy": _ONE_HOT_METRICS,
    "kl_divergence": _ONE_HOT_METRICS,
    "categorical_hinge": _ONE_HOT_METRICS,
    "binary_crossentropy": _YES_NO_METRICS,
    "binary_focal_crossentropy": _YES_NO_METRICS,
}


@dataclass(frozen=True)
class Contradiction:
    """Keys that contradict each other.

    Args:
        keys: The dotted keys involved, the one to change first.
        what: What was expected and what was received.
        hint: What to change.
    """

    keys: tuple[str, ...]
    what: str
    hint: str


def contradictions(config: RunConfig) -> list[Contradiction]:
    """Return every contradiction in a configuration, in the order of the schema's sections."""
    rules = (_model, _data, _sample_counts, _learning_rate, _optimizer, _validation, _cluster)
    return [found for rule in rules for found in rule(config)]


def _model(config: RunConfig) -> Iterator[Contradiction]:
    model, training = config.model, config.training
    if model.factory is not None:
        for key, info in type(model).model_fields.items():
            if key != "factory" and getattr(model, key) != info.default:
                yield Contradiction(
                    (f"model.{key}", "model.factory"),
                    f"model.{key} has no effect on the model that model.factory returns",
                    f"remove model.{key} and set it in {model.factory}",
                )
        return
    if ":" in training.loss:
        yield Contradiction(
            ("training.loss",),
            f"training.loss: the built-in MLP chooses its outputs by the loss, and does not know {training.loss}",
            "use a loss of Keras, or set model.factory to your own model",
        )
        return
    fitting = _METRICS.get(training.loss, _NUMBER_METRICS)
    for metric in training.metric_names:
        if metric not in fitting and ":" not in metric:
            yield Contradiction(
                ("training.metrics",),
                f"training.metrics: {metric} is not defined for the outputs that the built-in MLP has with the loss "
                f"{training.loss}",
                f"use {', '.join(fitting)}; or set model.factory to your own model",
            )


def _data(config: RunConfig) -> Iterator[Contradiction]:
    data = config.data
    if data.factory is not None:
        for key in sorted({key for keys in _DATA_KEYS.values() for part in keys for key in part} | {"dataset"}):
            if getattr(data, key) != type(data).model_fields[key].default:
                yield Contradiction(
                    (f"data.{key}", "data.factory"),
                    f"data.{key} has no effect on the samples that data.factory returns",
                    f"remove data.{key}",
                )
        return
    required, optional = _DATA_KEYS[data.dataset]
    missing = [f"data.{key}" for key in required if getattr(data, key) is None]
    if missing:
        yield Contradiction(
            ("data.dataset",), f"data.dataset: {data.dataset} requires {', '.join(missing)}", f"set {missing[0]}"
        )
    owners: dict[str, list[str]] = {}
    for dataset, (needed, taken) in _DATA_KEYS.items():
        for key in (*needed, *taken):
            owners.setdefault(key, []).append(dataset)
    for key, datasets in owners.items():
        given = getattr(data, key) != type(data).model_fields[key].default
        if given and key not in (*required, *optional):
            names = " and ".join(filter(None, [", ".join(datasets[:-1]), datasets[-1]]))
            yield Contradiction(
                (f"data.{key}", "data.dataset"),
                f"data.{key} is for the data set{'s' if len(datasets) > 1 else ''} {names}, but data.dataset is "
                f"{data.dataset}",
                f"set data.dataset to {datasets[0]}, or remove data.{key}",
            )


def _sample_counts(config: RunConfig) -> Iterator[Contradiction]:
    limit, batch = config.data.limit_train, config.training.batch_size
    replicas = config.cluster.replica_count
    key, noun = ("cluster.workers", "worker") if config.cluster.is_multi_process else ("cluster.devices", "replica")
    who = noun if replicas == 1 else f"{noun}s"
    if limit is not None and limit < replicas:
        yield Contradiction(
            ("data.limit_train", key),
            f"data.limit_train: expected at least one training sample for each of {replicas} {who}, received {limit}",
            f"set data.limit_train to {replicas} or more, or remove it",
        )
    if batch < replicas:
        yield Contradiction(
            ("training.batch_size", key),
            f"training.batch_size: {replicas} {who} share the global batch: expected at least {replicas} samples, "
            f"received {batch}",
            f"set training.batch_size to {replicas} or {2 * replicas}",
        )


def _learning_rate(config: RunConfig) -> Iterator[Contradiction]:
    training = config.training
    if training.schedule == "exponential" and training.final_learning_rate_fraction == 0.0:
        yield Contradiction(
            ("training.final_learning_rate_fraction", "training.schedule"),
            "training.final_learning_rate_fraction: an exponential schedule never reaches 0: expected a number > 0, "
            "received 0.0",
            "set training.final_learning_rate_fraction to 0.01, or training.schedule to cosine",
        )
    # Keras refuses to change the learning rate of an optimizer with a schedule, but only once a plateau comes.
    if training.plateau_patience is not None and training.schedule != "constant":
        yield Contradiction(
            ("training.plateau_patience", "training.schedule"),
            f"training.plateau_patience: the {training.schedule} schedule already sets the learning rate",
            "set training.schedule to constant, or remove training.plateau_patience",
        )


def _optimizer(config: RunConfig) -> Iterator[Contradiction]:
    training = config.training
    if training.momentum and training.optimizer not in ("sgd", "rmsprop"):
        yield Contradiction(
            ("training.momentum", "training.optimizer"),
            f"training.momentum: only sgd and rmsprop have momentum, received {training.momentum} "
            f"with {training.optimizer}",
            "remove training.momentum, or set training.optimizer to sgd",
        )
    clips = [key for key in _CLIP_KEYS if getattr(training, key) is not None]
    if len(clips) > 1:
        yield Contradiction(
            tuple(f"training.{key}" for key in clips),
            f"training: expected at most one way to clip gradients, received {' and '.join(clips)}",
            f"keep one of {', '.join(clips)}",
        )


def _validation(config: RunConfig) -> Iterator[Contradiction]:
    training = config.training
    for key in ("early_stopping_patience", "plateau_patience"):
        if getattr(training, key) is not None and training.validation_every != 1:
            yield Contradiction(
                (f"training.{key}", "training.validation_every"),
                f"training.{key} watches val_loss after every epoch, but training.validation_every is "
                f"{training.validation_every}",
                "set training.validation_every to 1",
            )


def _cluster(config: RunConfig) -> Iterator[Contradiction]:
    cluster = config.cluster
    if not cluster.is_multi_process:
        if cluster.workers != 1:
            yield Contradiction(
                ("cluster.workers", "cluster.strategy"),
                f"cluster.workers: the mirrored strategy runs in one process: expected 1, received "
                f"{cluster.workers if isinstance(cluster.workers, int) else ','.join(cluster.workers)}",
                "set cluster.devices for more replicas, or cluster.strategy to multi-worker",
            )
    elif cluster.devices is not None:
        yield Contradiction(
            ("cluster.devices", "cluster.strategy"),
            f"cluster.devices ({cluster.devices}) is for the mirrored strategy, but cluster.strategy is multi-worker",
            "set cluster.strategy to mirrored, or set cluster.workers instead of cluster.devices",
        )
    if cluster.collective == "nccl" and cluster.device == "cpu":
        yield Contradiction(
            ("cluster.collective", "cluster.device"),
            "cluster.collective: nccl sums gradients between GPUs, but cluster.device is cpu",
            "set cluster.collective to auto or ring, or cluster.device to gpu",
        )
    if cluster.base_port is not None and cluster.worker_addresses is not None:
        yield Contradiction(
            ("cluster.base_port", "cluster.workers"),
            f"cluster.base_port ({cluster.base_port}) is for a number of workers, but cluster.workers lists addresses "
            "with ports",
            "remove cluster.base_port",
        )
