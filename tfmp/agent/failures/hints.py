"""What to do about a failure: by the signal that ended the worker, by its memory, by messages in its last lines."""

from __future__ import annotations

import signal
from collections.abc import Iterable

_BY_SIGNAL = {
    signal.SIGKILL: "the kernel's out-of-memory killer ends processes like this (look into dmesg, free some memory, or "
    "use fewer workers); or someone ran kill -9",
    signal.SIGSEGV: "a crash in native code; a refused allocation of memory can cause it",
    signal.SIGABRT: "native code gave up; a refused allocation of memory can cause it",
    signal.SIGTERM: "someone asked this process to end (kill, a scheduler, a container engine)",
}
_BY_MEMORY = {
    "out of memory": "a smaller --batch-size, a smaller model, fewer workers, or a higher memory limit",
    "killed from outside": "there is no sign of an out-of-memory kill: look for who sent it (kill -9, a scheduler)",
}
_BY_MESSAGE = (
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
    *(
        (
            message,
            "the workers' network is private: --set cluster.private_network=off gives them the machine's, and opens "
            "TensorFlow's ports to everyone who reaches it. Better: download beforehand",
        )
        for message in ("Temporary failure in name resolution", "Name or service not known", "Network is unreachable")
    ),
    ("command not found", "give the program as in a shell: tfmp launch -n 2 -- python script.py"),
    ("trying to compile graph", "XLA cannot compile this model: leave out training.jit_compile"),
    ("OOM when allocating tensor", "out of memory: a smaller --batch-size, a smaller model, or fewer workers"),
    ("MemoryError", "out of memory: a smaller --batch-size, a smaller model, or fewer workers"),
)


def signal_hint(signum: int | None) -> str | None:
    """What death by this signal most often means."""
    return next((hint for known, hint in _BY_SIGNAL.items() if known == signum), None)


def memory_hint(conclusion: str) -> str | None:
    """What to do about a SIGKILL, by what the memory evidence concludes."""
    return _BY_MEMORY.get(conclusion)


def message_hint(lines: Iterable[str]) -> str | None:
    """The way out for the first known message found in ``lines``, or ``None``."""
    text = "\n".join(lines)
    return next((hint for message, hint in _BY_MESSAGE if message in text), None)
