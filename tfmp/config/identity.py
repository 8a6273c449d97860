"""The settings that determine the numbers of a run, and so must not change when it resumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfmp.config.keys import plain, schema_keys

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig

# Settings of these sections that may change: how long, how fast and how often to validate. What is validated could
# change too, but the curve would then mix two things.
_FREE = frozenset(
    f"training.{name}"
    for name in (
        "epochs", "steps_per_execution", "jit_compile", "validation_every", "validation_batch_size",
        "early_stopping_patience", "plateau_patience", "plateau_factor", "callbacks",
    )
) | {"data.cache_dir"}  # fmt: skip
_SECTIONS = ("model", "data", "training")


def identity(config: RunConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must keep, by dotted key, as JSON values."""
    found = {}
    for key in schema_keys():
        section, _, name = key.partition(".")
        if section in _SECTIONS and key not in _FREE:
            found[key] = plain(getattr(getattr(config, section), name))
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, before, after) for each setting that has changed.

    A key that only one of them has comes from another version of tfmp, where it had no effect.
    """
    return [(key, before[key], after[key]) for key in before if key in after and before[key] != after[key]]
