"""Known messages in the last lines of a failed worker, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterable

_KNOWN = (
    (
        "Collective ops must be configured at program startup",
        "create the strategy first: before any data set or tensor is made and any device listed",
    ),
    (
        "PerReplica",
        "Keras 3's own fit fails under MultiWorkerMirroredStrategy: "
        "from tfmp.distribute import bridge; bridge(model) after compile",
    ),
    ("Could not start gRPC server", "a port is taken by another program: leave out --base-port, or choose another"),
    ("No space left on device", "the disk is full: free some space, or use another --run-dir"),
    ("command not found", "give the program as in a shell: tfmp launch -n 2 -- python script.py"),
    ("trying to compile graph", "XLA cannot compile this model: leave out training.jit_compile"),
    ("OOM when allocating tensor", "out of memory: a smaller --batch-size, a smaller model, or fewer workers"),
    ("MemoryError", "out of memory: a smaller --batch-size, a smaller model, or fewer workers"),
)


def known_hint(lines: Iterable[str]) -> str | None:
    """The way out for the first known message found in ``lines``, or ``None``."""
    text = "\n".join(lines)
    return next((hint for message, hint in _KNOWN if message in text), None)
