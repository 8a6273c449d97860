"""Private names of Keras and TensorFlow are used in one module alone, where each is checked and explained."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfmp

PACKAGE = Path(tfmp.__file__).parent
HOOKS = PACKAGE / "distribute" / "keras_hooks"
_LIBRARIES = ("keras", "tensorflow")
_PRIVATE_PACKAGES = ("keras.src", "tensorflow.python")
_ACCESSORS = ("getattr", "hasattr", "setattr", "delattr")


def _is_or_is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, module, name bound) of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}", alias.asname or alias.name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(text: str) -> list[str]:
    """What a module uses of the private parts of Keras and TensorFlow, as ``line: what``.

    Imports of their private packages count in every module. In a module that imports one of them, so does every
    private attribute of an object that is not ``self``, ``cls``, ``super()`` or a module of another library, also if
    its name is given as a string: whose object it is cannot be seen in the source.
    """
    tree = ast.parse(text)
    imports = list(_imports(tree))
    found = [f"{line}: {module}" for line, module, _ in imports if _is_or_is_in(module, _PRIVATE_PACKAGES)]
    if not any(_is_or_is_in(module, _LIBRARIES) for _, module, _ in imports):
        return found
    own = {"self", "cls"} | {name for _, module, name in imports if not _is_or_is_in(module, _LIBRARIES)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            base, name = node.value, node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _ACCESSORS
            and isinstance(node.args[1], ast.Constant)
        ):
            base, name = node.args[0], str(node.args[1].value)
        else:
            continue
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super":
            continue
        if _is_private(name) and not (isinstance(base, ast.Name) and base.id in own):
            found.append(f"{node.lineno}: {ast.unparse(base)}.{name}")
    return found


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("import keras\nmodel._compile_loss", ["2: model._compile_loss"]),
        ("import keras\nself._model._loss", ["2: self._model._loss"]),
        ("import keras\nself._model.loss, super()._call(), x.__dict__", []),
        ("def f():\n  import tensorflow as tf\n  return tf._private", ["3: tf._private"]),
        ("import keras\ngetattr(x, '_loss', None)", ["2: x._loss"]),
        ("import keras, os\nos._exit(1)", []),
        ("import os\nfrom tfmp import other\nvalue._own", []),
        ("from keras.src.losses import loss", ["1: keras.src.losses.loss"]),
        ("from tensorflow.python.eager import context", ["1: tensorflow.python.eager.context"]),
        ("import tensorflow.python as p", ["1: tensorflow.python"]),
        ("from keras import src", ["1: keras.src"]),
    ],
)
def test_private_uses_are_found(text: str, uses: list[str]) -> None:
    assert private_uses(text) == uses


def test_only_keras_hooks_uses_private_parts_of_keras_and_tensorflow() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if HOOKS not in path.parents]
    assert len(modules) > 100
    found = {str(path.relative_to(PACKAGE)): private_uses(path.read_text()) for path in modules}
    assert {name: uses for name, uses in found.items() if uses} == {}
    assert private_uses((HOOKS / "__init__.py").read_text()), "the rule finds what it is about"
