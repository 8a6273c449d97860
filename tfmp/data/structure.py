"""Arrays nested in dictionaries, lists and tuples: taken apart, described as JSON, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

#: Arrays nested in dictionaries, lists and tuples; ``None`` where there is none.
Tree: TypeAlias = Any


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, array) for each array of ``tree``, in the order of its dictionaries and lists.

    A path reads as Python would index it: ``['age']`` or ``[0]``; it is empty for a tree that is an array itself.
    """
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from leaves(part, f"{path}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for i, part in enumerate(tree):
            yield from leaves(part, f"{path}[{i}]")
    elif tree is not None:
        yield path, tree


def transform(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply ``function`` to each array, in the order of :func:`leaves`."""
    if isinstance(tree, Mapping):
        return {key: transform(function, part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([transform(function, part) for part in tree])
    return None if tree is None else function(tree)


def describe(tree: Tree) -> Any:
    """Return the structure as JSON values: each array is its number in the order of :func:`leaves`."""
    numbers = iter(range(len(list(leaves(tree)))))

    def described(part: Tree) -> Any:
        if isinstance(part, Mapping):
            return {"dict": [[key, described(value)] for key, value in part.items()]}
        if isinstance(part, list | tuple):
            return {"tuple" if isinstance(part, tuple) else "list": [described(value) for value in part]}
        return None if part is None else next(numbers)

    return described(tree)


def rebuild(description: Any, arrays: Sequence[Any]) -> Tree:
    """Put ``arrays`` into the structure that :func:`describe` described."""
    if isinstance(description, Mapping):
        ((kind, parts),) = description.items()
        if kind == "dict":
            return {key: rebuild(part, arrays) for key, part in parts}
        return {"tuple": tuple, "list": list}[kind](rebuild(part, arrays) for part in parts)
    return None if description is None else arrays[description]
