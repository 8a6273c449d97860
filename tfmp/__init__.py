"""tfmp: multi-process TensorFlow training made easy, right and fast.

>>> import tfmp
>>> result = tfmp.train("configs/mnist.yaml", workers=4)

Importing this package never imports TensorFlow: the command line and the launcher stay light, and only the
worker processes (see :mod:`tfmp.trainer`) and people who import :mod:`tfmp.distribute` pay for it.
"""

from typing import Any

__all__ = ["TrainingResult", "__version__", "train"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in ("TrainingResult", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("tfmp.commands.api"), name)
