"""Nested arrays are taken apart and put together as they were."""

from __future__ import annotations

import json

import pytest

from tfmp.data.structure import Tree, describe, leaves, rebuild, transform

TREES: list[Tree] = [1, (1, 2), [1, (2, 3)], {"b": 1, "a": {"x": 2}}, ({"b": 1, "a": 2}, 3, None)]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_tree_survives_json(tree: Tree) -> None:
    found = [value for _, value in leaves(tree)]
    assert found == sorted(found)  # the order of its dictionaries and lists
    assert rebuild(json.loads(json.dumps(describe(tree))), found) == tree
    assert list(rebuild(describe(tree), found)) == list(tree) if isinstance(tree, dict) else True


def test_paths_read_as_python_indexes() -> None:
    assert [path for path, _ in leaves(({"a": 1, "b": [2]}, 3))] == ["[0]['a']", "[0]['b'][0]", "[1]"]
    assert [path for path, _ in leaves(1)] == [""]


def test_none_stays_none() -> None:
    assert transform(lambda value: value + 1, (1, None, {"a": 2})) == (2, None, {"a": 3})
