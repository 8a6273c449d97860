"""The configuration of a run: its schema, the YAML file, ``--set`` and flags, and where each value came from.

The names below are imported on first use: pydantic and PyYAML take longer to import than ``tfmp --help`` may take.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfmp.config.keys import KeyInfo as KeyInfo
    from tfmp.config.keys import schema_keys as schema_keys
    from tfmp.config.resolver import FlagValue as FlagValue
    from tfmp.config.resolver import Resolved as Resolved
    from tfmp.config.resolver import load_run_config as load_run_config
    from tfmp.config.resolver import resolve as resolve
    from tfmp.config.schema import RunConfig as RunConfig

_HOMES = {
    "FlagValue": "tfmp.config.resolver",
    "KeyInfo": "tfmp.config.keys",
    "Resolved": "tfmp.config.resolver",
    "RunConfig": "tfmp.config.schema",
    "load_run_config": "tfmp.config.resolver",
    "resolve": "tfmp.config.resolver",
    "schema_keys": "tfmp.config.keys",
}

__all__ = ["FlagValue", "KeyInfo", "Resolved", "RunConfig", "load_run_config", "resolve", "schema_keys"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
