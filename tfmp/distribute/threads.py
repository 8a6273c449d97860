"""The interpreter's state of the threads that TensorFlow calls Python from."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

_kept = threading.local()


def keeping_its_thread(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a function for ``tf.numpy_function``, so that calls from one thread of TensorFlow's are cheap.

    TensorFlow takes the interpreter lock with ``PyGILState_Ensure``. In a thread that Python does not know this makes
    a new thread state, with 16 KB mapped and unmapped by the kernel, and the end of the call destroys it: about 25 µs
    a call with CPython 3.11. Here the first call on a thread enters once more and never leaves, so that the state
    stays as long as the thread. There are as many as TensorFlow's pool has threads.
    """
    ensure = ctypes.pythonapi.PyGILState_Ensure

    def call(value: Any) -> Any:
        try:
            _kept.entered  # noqa: B018
        except AttributeError:
            _kept.entered = ensure()
        return function(value)

    return call
