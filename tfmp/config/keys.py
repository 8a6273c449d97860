"""The keys of the schema as data, for the reference, shell completion and suggestions."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tfmp.config.schema import Expect, RunConfig

# Names from other programs, which difflib would not find.
_SYNONYMS = {
    "batch": "training.batch_size",
    "bs": "training.batch_size",
    "dtype": "training.precision",
    "gpus": "cluster.devices",
    "hidden": "model.units",
    "hosts": "cluster.workers",
    "layers": "model.units",
    "lr": "training.learning_rate",
    "nodes": "cluster.workers",
    "nproc": "cluster.workers",
    "output": "run.dir",
    "port": "cluster.base_port",
    "replicas": "cluster.devices",
    "steps": "training.steps_per_epoch",
    "world_size": "cluster.workers",
}


@dataclass(frozen=True)
class KeyInfo:
    """One key of the schema.

    Args:
        key: Dotted key, such as ``training.epochs``.
        type: What the key expects, such as ``an integer ≥ 1``.
        default: The default value, typed.
        description: Meaning, with unit and reason.
        choices: The choices of the key, or of each item of a list; empty for other keys.
        item: What each item of a list expects; empty for other keys.
    """

    key: str
    type: str
    default: object
    description: str
    choices: tuple[str, ...] = ()
    item: str = ""


def sections() -> tuple[str, ...]:
    """Return the names of the sections in order."""
    return tuple(RunConfig.model_fields)


@lru_cache(maxsize=1)
def schema_keys() -> Mapping[str, KeyInfo]:
    """Return every dotted key with its type, default and description, in the order of the schema."""
    found: dict[str, KeyInfo] = {}
    for section, section_type in get_type_hints(RunConfig).items():
        if section not in RunConfig.model_fields:
            continue
        hints = get_type_hints(section_type, include_extras=True)
        for name, info in section_type.model_fields.items():
            key = f"{section}.{name}"
            found[key] = KeyInfo(
                key=key,
                type=_describe(hints[name]),
                default=info.default,
                description=info.description or "",
                choices=_choices(hints[name]),
                item=_item(hints[name]),
            )
    return types.MappingProxyType(found)


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        texts = [extra.text for extra in hint.__metadata__ if isinstance(extra, Expect)]
        return texts[-1] if texts else _describe(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        inner = [_describe(arg) for arg in get_args(hint) if arg is not type(None)]
        return " or ".join([*inner, "null"])
    if origin is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return f"a list, each item {_describe(get_args(hint)[0])}"


def _choices(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_choices, get_args(hint))), ())
    if get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, Expect) and extra.names:
                return extra.names
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(bare) is tuple:
        return _choices(get_args(bare)[0])
    return get_args(bare) if get_origin(bare) is Literal else ()


def _item(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_item, get_args(hint))), "")
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return _describe(get_args(bare)[0]) if get_origin(bare) is tuple else ""


def nearest_key(key: str) -> str | None:
    """Return the valid key that was most likely meant.

    Args:
        key: Dotted key as given: misspelled, at the wrong level, or under another program's name.

    Returns:
        A valid dotted key, or ``None``.
    """
    section, _, rest = key.lower().replace("-", "_").partition(".")
    leaf = (rest or section).rpartition(".")[2]
    leaves: dict[str, str] = {}
    for valid in schema_keys():
        leaves[valid.rpartition(".")[2]] = valid
    if leaf in leaves:
        return leaves[leaf]
    own = [name for name, valid in leaves.items() if valid.startswith(f"{section}.")]
    for names in (own, list(leaves)):
        if names is not own and leaf in _SYNONYMS:
            return _SYNONYMS[leaf]
        if near := difflib.get_close_matches(leaf, names, n=1, cutoff=0.6):
            return leaves[near[0]]
    return None


def nearest_section(name: str) -> str | None:
    """Return the section that was most likely meant, or ``None``."""
    near = difflib.get_close_matches(name.lower(), sections(), n=1, cutoff=0.6)
    return near[0] if near else None


def nearest_choice(text: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that was most likely meant, or ``None``."""
    near = difflib.get_close_matches(text.lower(), choices, n=1, cutoff=0.6)
    return near[0] if near else None


def plain(value: object) -> object:
    """Return a setting as YAML has it: paths as text, tuples as lists."""
    if isinstance(value, Path):
        return str(value)
    return [plain(item) for item in value] if isinstance(value, tuple) else value
