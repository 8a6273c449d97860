"""The built-in MLP: what it takes, what its last layer is, and how many parameters it has."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.config import RunConfig
    from tfmp.data.entry import ArrayLayout, DatasetHeader

_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy", "kl_divergence", "categorical_hinge")
_YES_NO = ("binary_crossentropy", "binary_focal_crossentropy")
_CLASS_NUMBERS = "sparse_categorical_crossentropy"


@dataclass(frozen=True)
class Head:
    """The last layer: its units and activation."""

    units: int
    activation: Literal["softmax", "sigmoid", "linear"]


def mlp_head(loss: str, classes: int, target_shape: tuple[int, ...]) -> Head:
    """Return the last layer that fits a loss.

    Args:
        loss: Name of a Keras loss.
        classes: Number of classes, for class numbers.
        target_shape: Shape of one sample's target: ``()`` for a number.
    """
    if loss == _CLASS_NUMBERS:
        return Head(classes, "softmax")
    width = math.prod(target_shape)
    if loss in _ONE_HOT:
        return Head(width, "softmax")
    return Head(width, "sigmoid" if loss in _YES_NO else "linear")


def check_task(config: RunConfig, dataset: DatasetHeader) -> None:
    """Check that the targets fit the loss, and the samples the built-in model.

    Raises:
        UsageError: They do not; says which loss or model they need.
    """
    weights = config.training.class_weight
    if weights is not None and len(weights) != dataset.classes:
        found = f"{dataset.classes} classes" if dataset.classes else "targets that are no class numbers"
        raise UsageError(
            f"expected one weight per class, received {len(weights)} weights for {found}", where="training.class_weight"
        )
    if config.model.factory is not None:
        return
    where = f"data set {dataset.name}"
    if len(dataset.inputs) != 1 or dataset.inputs[0].is_text:
        received = "text" if len(dataset.inputs) == 1 else f"{len(dataset.inputs)} arrays"
        columns = "leave out columns of text with data.columns, or " if dataset.name == "csv" else ""
        raise UsageError(
            f"the built-in MLP takes one array of numbers, received inputs of {received}",
            where=where,
            hint=f"{columns}--set model.factory=my_package.models:build",
        )
    targets = dataset.targets
    loss = config.training.loss
    if len(targets) != 1 or targets[0].is_text or len(targets[0].shape) > 2:
        received = "text" if targets[0].is_text else f"{len(targets)} arrays of {_shown(targets[0])}"
        raise UsageError(
            f"the built-in MLP predicts numbers in one array [n] or [n, outputs], received targets of {received}",
            where=where,
            hint="--set model.factory=my_package.models:build",
        )
    target = targets[0]
    if loss == _CLASS_NUMBERS:
        if not dataset.classes:
            raise UsageError(
                f"training.loss {loss}: expected class numbers from 0 on, received targets of {_shown(target)}",
                where=where,
                hint=f"--set training.loss={_likely_loss(target)}",
            )
        if dataset.classes < 2:  # one output of a softmax is always 1: a loss of 0
            raise UsageError(
                "expected labels of at least two classes, found one",
                where=where,
                hint="check the labels, or give a model that needs no classes: model.factory",
            )
    elif loss in _ONE_HOT and math.prod(target.shape[1:]) < 2:
        raise UsageError(
            f"training.loss {loss}: expected one-hot rows [n, classes], received targets of {_shown(target)}",
            where=where,
            hint=f"--set training.loss={_CLASS_NUMBERS}, for class numbers",
        )


def count_parameters(config: RunConfig, dataset: DatasetHeader) -> int:
    """Return the trainable parameters of the built-in MLP."""
    head = mlp_head(config.training.loss, dataset.classes, dataset.targets[0].shape[1:])
    widths = [math.prod(dataset.inputs[0].shape[1:]), *config.model.units, head.units]
    normalized = 2 * sum(config.model.units) if config.model.batch_normalization else 0
    return sum(a * b + b for a, b in itertools.pairwise(widths)) + normalized


def _likely_loss(target: ArrayLayout) -> str:
    if target.dtype[1] == "b":
        return "binary_crossentropy"
    if len(target.shape) == 2 and target.shape[1] > 1:
        return "categorical_crossentropy for one-hot rows; binary_crossentropy or mean_squared_error for others"
    return "mean_squared_error"


def _shown(target: ArrayLayout) -> str:
    kind = {"f": "float", "i": "int", "u": "uint", "b": "bool"}.get(target.dtype[1], "text")
    bits = str(8 * int(target.dtype[2:])) if kind not in ("bool", "text") else ""
    return f"shape [n{''.join(f', {size}' for size in target.shape[1:])}], {kind}{bits}"
