"""``tf.distribute`` for Keras 3: strategies, and the bridge that makes ``fit`` correct across workers.

Public API for other programs::

    from tfmp.distribute import bridge

TensorFlow is imported when a name is first used, not with the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfmp.distribute.control import FitControl
    from tfmp.distribute.keras_bridge import NonFiniteLossError, bridge
    from tfmp.distribute.state import read_together
    from tfmp.distribute.strategy import StrategySpec, build_strategy, check_replicas

__all__ = [
    "FitControl",
    "NonFiniteLossError",
    "StrategySpec",
    "bridge",
    "build_strategy",
    "check_replicas",
    "read_together",
]

_HOMES = {
    "FitControl": "control",
    "bridge": "keras_bridge",
    "NonFiniteLossError": "keras_bridge",
    "read_together": "state",
    "StrategySpec": "strategy",
    "build_strategy": "strategy",
    "check_replicas": "strategy",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
