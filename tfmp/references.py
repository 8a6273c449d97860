"""The user's own functions, named as ``package.module:name``: imported where they are needed, never in the launcher."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfmp.errors import TfmpError


def load_function(reference: str, key: str) -> Callable[..., Any]:
    """Import the function or class that ``reference`` names, also from the current directory.

    Args:
        reference: ``package.module:name``.
        key: Its configuration key, for errors.

    Raises:
        TfmpError: The module or the function cannot be imported.
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
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        found = sorted(n for n, value in vars(module).items() if inspect.isfunction(value))
        raise TfmpError(
            f"expected a function {name!r} in {module_name}, found {', '.join(found) or 'no function'}",
            where=f"{key}: {reference}",
        )
    return function
