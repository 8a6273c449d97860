"""The user's own functions, named in the configuration as ``package.module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from tfmp.errors import TfmpError


def load_function(reference: str, key: str) -> Callable[..., Any]:
    """Import the function that ``reference`` names; modules of the current directory are found.

    Args:
        reference: ``package.module:function``.
        key: The configuration key it stands under, for errors.

    Raises:
        TfmpError: The module or the function cannot be had.
    """
    module_name, _, name = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        traceback.print_exc()
        raise TfmpError(
            f"importing {module_name} failed: {type(error).__name__}: {error}",
            where=f"{key}: {reference}",
            hint=f"python -c 'import {module_name}' in {here} must work",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        found = sorted(n for n, value in vars(module).items() if inspect.isfunction(value))
        raise TfmpError(
            f"expected a function {name!r} in {module_name}, found {', '.join(found) or 'no function'}",
            where=f"{key}: {reference}",
        )
    return function


def build_from_factory(reference: str, input_shape: tuple[int, ...], classes: int) -> Any:
    """Build the user's model. Call inside ``strategy.scope()``.

    Args:
        reference: ``package.module:function``; the function is given those of the arguments ``input_shape`` and
            ``classes`` that it names.
        input_shape: Shape of one sample.
        classes: Number of classes.

    Returns:
        A Keras model, compiled or not.

    Raises:
        TfmpError: The function cannot be had, or returns something else than a Keras model.
    """
    function = load_function(reference, "model.factory")
    known = {"input_shape": input_shape, "classes": classes}
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
