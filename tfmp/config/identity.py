"""Which settings make a run the one it is: those that decide the numbers, and so must not change when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfmp.config.keys import plain, schema_keys

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig

# The rest of model, data and training: how long, how fast, how often it is looked at. What is validated may change too,
# but then the curve would be of two things.
_FREE = frozenset(
    f"training.{name}"
    for name in (
        "epochs", "steps_per_execution", "jit_compile", "validation_every", "validation_batch_size",
        "early_stopping_patience", "plateau_patience", "plateau_factor", "callbacks",
    )
) | {"data.cache_dir"}  # fmt: skip
_SECTIONS = ("model", "data", "training")


def identity(config: RunConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share, by dotted key, as JSON values."""
    found = {}
    for key in schema_keys():
        section, _, name = key.partition(".")
        if section in _SECTIONS and key not in _FREE:
            found[key] = plain(getattr(getattr(config, section), name))
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, before, after) for each setting of ``before`` that has another value now.

    A key that only one of them knows is of another version of tfmp, and its default made no difference.
    """
    return [(key, before[key], after[key]) for key in before if key in after and before[key] != after[key]]
