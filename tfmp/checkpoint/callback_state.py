"""The state that callbacks keep from epoch to epoch, for checkpoints: JSON values, and arrays.

Keras's own callbacks and their subclasses by attribute, others by ``state_dict()`` and ``load_state_dict(state)``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfmp.checkpoint.format import Array
from tfmp.rundir.layout import write_text

_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "epochs_since_last_save"),
}
_BEST_WEIGHTS = "best_weights"


def states(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return each callback's class and state as JSON values, with the number of its arrays."""
    return [{"class": type(each).__name__, "state": _state(each), "arrays": len(_arrays(each))} for each in callbacks]


def arrays(callbacks: Sequence[Any]) -> list[Array]:
    """Return the arrays of all callbacks: the weights that EarlyStopping would restore."""
    return [array for each in callbacks for array in _arrays(each)]


def restore(callbacks: Sequence[Any], saved: Sequence[Mapping[str, Any]], arrays: Sequence[Array]) -> None:
    """Put states back. The n-th callback of a class gets that of the n-th saved one.

    Args:
        callbacks: The callbacks, begun. Other workers may lack those that only write files.
        saved: What :func:`states` returned.
        arrays: What :func:`arrays` returned.
    """
    rest = iter(arrays)
    by_class: dict[str, list[tuple[Any, list[Array]]]] = {}
    for entry in saved:
        own = [next(rest) for _ in range(entry.get("arrays", 0))]
        by_class.setdefault(entry["class"], []).append((entry["state"], own))
    for callback in callbacks:
        if waiting := by_class.get(type(callback).__name__):
            _restore(callback, *waiting.pop(0))


def rewind_logs(callbacks: Sequence[Any], epoch: int) -> None:
    """Make loggers append to their files, without the epochs that are trained again. Call before they begin.

    Args:
        callbacks: The callbacks.
        epoch: The first epoch to train, from 0.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
            _cut(Path(callback.filename), callback.sep, epoch)


def _cut(path: Path, separator: str, epoch: int) -> None:
    if not path.is_file():
        return
    lines = path.read_text().splitlines(keepends=True)
    cells = csv.reader(lines[1:], delimiter=separator)
    kept = [line for line, row in zip(lines[1:], cells, strict=True) if row and int(row[0]) < epoch]
    write_text(path, "".join([*lines[:1], *kept]))


def _attributes(callback: Any) -> tuple[str, ...]:
    return next((names for base, names in _ATTRIBUTES.items() if isinstance(callback, base)), ())


def _state(callback: Any) -> Any:
    if names := _attributes(callback):
        return plain({name: getattr(callback, name, None) for name in names})
    if hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict"):
        return callback.state_dict()
    return None


def _arrays(callback: Any) -> list[Array]:
    if not isinstance(callback, keras.callbacks.EarlyStopping):
        return []
    return [np.asarray(weights) for weights in getattr(callback, _BEST_WEIGHTS, None) or []]


def _restore(callback: Any, state: Any, arrays: list[Array]) -> None:
    if state is None:
        return
    if _attributes(callback):
        for name, value in state.items():
            setattr(callback, name, value)
        if arrays:
            setattr(callback, _BEST_WEIGHTS, arrays)
    else:
        callback.load_state_dict(state)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NumPy numbers and arrays by JSON values; a float keeps every bit."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}


def flat(made: Any) -> Iterator[Any]:
    """The callbacks in what a function of the user's returned: one, a list, or a class."""
    if isinstance(made, type) and issubclass(made, keras.callbacks.Callback):
        made = made()
    yield from made if isinstance(made, list | tuple) else [made]


def only_writes(callback: Any) -> bool:
    """Whether a stock callback writes files and does nothing to the training: one worker is enough."""
    kinds = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
    return isinstance(callback, kinds)
