"""The user's own functions, looked for before anything is started: their files are read, not run.

Importing them would import TensorFlow into the launcher; what a file's text cannot tell is left to the workers.
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
    """Check that ``model.factory`` and ``training.callbacks`` name functions that are there.

    Raises:
        UsageError: A module is not found, cannot be parsed, or has no such name.
    """
    config = resolved.config
    named = [("model.factory", config.model.factory)] if config.model.factory else []
    named += [("training.callbacks", reference) for reference in config.training.callbacks]
    for key, reference in named:
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
    """The module as a worker would find it: the current directory first. Nothing is imported, no package either."""
    path = [here, *sys.path]
    spec = None
    for depth, name in enumerate(module.split(".")):
        # By its last name alone: a dotted one makes the finder ask for the parent, which is not imported.
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None and depth == 0:
            with suppress(ImportError, ValueError):
                spec = importlib.util.find_spec(name)  # built in, or found by an editable installation's own finder
        if spec is None:
            return None
        inside = spec.submodule_search_locations
        # A package without __init__.py has no list, but every folder of that name.
        path = list(inside) if isinstance(inside, list) else [str(Path(folder, name)) for folder in path]
    return spec


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """What a module's statements define, those inside ``if``, ``try`` and ``with`` too."""
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
