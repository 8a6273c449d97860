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

_IDX_KEYS = ("train_images", "train_labels", "validation_images", "validation_labels")
_CLIP_KEYS = ("clipnorm", "global_clipnorm", "clipvalue")
# The built-in MLP has one output per class; any other loss or metric would be broadcast against it.
_CLASSIFIER_METRICS = (
    "accuracy", "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy", "sparse_categorical_crossentropy",
)  # fmt: skip


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
    if training.loss != "sparse_categorical_crossentropy":
        yield Contradiction(
            ("training.loss",),
            "training.loss: the built-in MLP has one output per class: expected sparse_categorical_crossentropy, "
            f"received {training.loss}",
            "remove training.loss, or set model.factory to your own model",
        )
    for metric in training.metrics:
        if metric not in _CLASSIFIER_METRICS:
            yield Contradiction(
                ("training.metrics",),
                f"training.metrics: the built-in MLP has one output per class, for which {metric} is not defined",
                f"use {', '.join(_CLASSIFIER_METRICS)}; or set model.factory to your own model",
            )


def _data(config: RunConfig) -> Iterator[Contradiction]:
    data = config.data
    owners = {"idx": _IDX_KEYS, "npz": ("path",)}
    for dataset, keys in owners.items():
        given = [key for key in keys if getattr(data, key) is not None]
        missing = [f"data.{key}" for key in keys if key not in given]
        if data.dataset == dataset and missing:
            yield Contradiction(
                ("data.dataset",),
                f"data.dataset: {dataset} requires {', '.join(missing)}",
                f"set {missing[0]} to a file",
            )
        if data.dataset != dataset:
            for key in given:
                yield Contradiction(
                    (f"data.{key}", "data.dataset"),
                    f"data.{key} is for the data set {dataset}, but data.dataset is {data.dataset}",
                    f"set data.dataset to {dataset}, or remove data.{key}",
                )


def _sample_counts(config: RunConfig) -> Iterator[Contradiction]:
    limit, batch = config.data.limit_train, config.training.batch_size
    replicas = config.cluster.replica_count
    mirrored = config.cluster.strategy == "mirrored"
    key = "cluster.devices" if mirrored else "cluster.workers"
    who = f"{'replica' if mirrored else 'worker'}{'' if replicas == 1 else 's'}"
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
    if cluster.strategy == "mirrored":
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
    if cluster.base_port is not None:
        yield from _ports(config, cluster.base_port)


def _ports(config: RunConfig, base_port: int) -> Iterator[Contradiction]:
    workers = config.cluster.worker_count
    if config.cluster.worker_addresses is not None:
        yield Contradiction(
            ("cluster.base_port", "cluster.workers"),
            f"cluster.base_port ({base_port}) is for a number of workers, but cluster.workers lists addresses with "
            "ports",
            "remove cluster.base_port",
        )
    elif base_port + workers - 1 > 65535:
        yield Contradiction(
            ("cluster.base_port", "cluster.workers"),
            f"cluster.base_port: {workers} workers need ports up to {base_port + workers - 1}, expected at most 65535",
            f"set cluster.base_port to {65536 - workers} or less",
        )
