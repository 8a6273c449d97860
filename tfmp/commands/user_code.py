"""Checks that the user's own functions exist before anything is started, by reading their files.

Importing them would import TensorFlow into the launcher. What the text of a file does not show is left to the workers.
"""

from __future__ import annotations

import ast
import difflib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tfmp.errors import UsageError

if TYPE_CHECKING:
    from tfmp.config import Resolved


def check_user_code(resolved: Resolved) -> None:
    """Check that all functions that a configuration names exist.

    Raises:
        UsageError: A module cannot be found or parsed, or has no such function.
    """
    config = resolved.config
    training = config.training
    named = [
        ("model.factory", config.model.factory),
        ("data.factory", config.data.factory),
        ("training.loss", training.loss),
        *(("training.metrics", name) for name in training.metric_names),
        *(("training.callbacks", reference) for reference in training.callbacks),
    ]
    for key, reference in named:
        if reference is not None and ":" in reference:
            _check(reference, where=f"{key} ({resolved.origin(key)})")


def _check(reference: str, where: str) -> None:
    module, _, name = reference.partition(":")
    here = str(Path.cwd())
    spec = _find(module, here)
    if spec is None:
        raise UsageError(
            f"cannot find module {module} in {here} or among the installed packages",
            where=where,
            hint=f"python -c 'import {module}' must work in {here}",
        )
    if spec.origin is None or not spec.origin.endswith(".py"):
        return
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except SyntaxError as error:
        raise UsageError(
            f"{module} cannot be imported: {error.msg}", where=f"{spec.origin}:{error.lineno}, {where}"
        ) from None
    except OSError:
        return
    names = set(_names(tree.body))
    if name not in names and not names & {"*", "__getattr__"}:
        near = difflib.get_close_matches(name, names, 1)
        functions = sorted(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef))
        raise UsageError(
            f"expected a function {name!r} in {spec.origin}, found {', '.join(functions) or 'none'}",
            where=where,
            hint=f"did you mean {module}:{near[0]}?" if near else None,
        )


def _find(module: str, here: str) -> importlib.machinery.ModuleSpec | None:
    """Find a module as a worker would: the current directory first. Nothing is imported, not even packages."""
    path = [here, *sys.path]
    spec = None
    for depth, name in enumerate(module.split(".")):
        # By the last part only: for a dotted name the finder needs the parent, which is not imported.
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None and depth == 0:
            with suppress(ImportError, ValueError):
                spec = importlib.util.find_spec(name)  # built in, or found by the finder of an editable installation
        if spec is None:
            return None
        inside = spec.submodule_search_locations
        # A package without __init__.py has no list; it consists of every folder of that name.
        path = list(inside) if isinstance(inside, list) else [str(Path(folder, name)) for folder in path]
    return spec


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module defines, also inside ``if``, ``try`` and ``with``."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            for part in ("body", "orelse", "finalbody"):
                yield from _names(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _names(handler.body)
