"""Sleeping until a word of shared memory changes: the system call futex, through the C library."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

TICK_S = 0.05
"""The longest sleep: after it the caller looks whether its peers still live."""

_SYS_FUTEX_X86_64 = 202  # linux/arch/x86/entry/syscalls/syscall_64.tbl
# Not the "private" variants: the word is shared between processes (futex(2)).
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_EVERYBODY = 0x7FFFFFFF
_EXPECTED_ERRORS = (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_TICK = _Timespec(0, int(TICK_S * 1e9))


@functools.lru_cache(maxsize=1)
def _calls() -> tuple[Any, Any]:
    """Return ``syscall`` twice: for waiting, and for calls that do not block."""
    waiting = ctypes.CDLL(None, use_errno=True).syscall
    # A wake-up takes less than handing over the interpreter lock, and another thread could keep that for 5 ms.
    prompt = ctypes.PyDLL(None).syscall
    for function in (waiting, prompt):
        function.restype = ctypes.c_long
        function.argtypes = (
            ctypes.c_long,  # the system call
            ctypes.c_void_p,  # the word's address
            ctypes.c_int,  # the operation
            ctypes.c_uint32,  # the value to sleep on, or how many to wake
            ctypes.c_void_p,  # the timeout
            ctypes.c_void_p,
            ctypes.c_uint32,
        )
    return waiting, prompt


@functools.lru_cache(maxsize=1)
def available() -> bool:
    """Tell whether plain stores and loads with futex make a barrier on this machine.

    x86-64 keeps the order of stores, and of loads (Intel SDM volume 3, "Memory ordering"), so data written before a
    counter is seen by whoever sees the counter. Other processors need fence instructions that Python does not offer.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "AMD64") or sys.maxsize < 2**32:
        return False
    word = ctypes.c_uint32(0)
    # Sandboxes may filter the call: asked once, with nobody to wake.
    return int(_calls()[1](_SYS_FUTEX_X86_64, ctypes.addressof(word), _FUTEX_WAKE, 1, None, None, 0)) == 0


def waker(address: int) -> Callable[[], None]:
    """Return a function that wakes all processes that sleep on the 32-bit word at ``address``."""
    prompt = _calls()[1]

    def wake() -> None:
        prompt(_SYS_FUTEX_X86_64, address, _FUTEX_WAKE, _EVERYBODY, None, None, 0)

    return wake


def sleeper(address: int) -> Callable[[int], None]:
    """Return a function that sleeps while the 32-bit word at ``address`` holds a value, at most :data:`TICK_S`.

    The kernel compares the word after it has queued the sleeper, so a change between the caller's look and its sleep
    is not missed. It also returns early for no reason, and when a signal was handled: look again.
    """
    waiting = _calls()[0]
    timeout = ctypes.addressof(_TICK)

    def sleep(value: int) -> None:
        if waiting(_SYS_FUTEX_X86_64, address, _FUTEX_WAIT, value & 0xFFFFFFFF, timeout, None, 0):
            number = ctypes.get_errno()
            if number not in _EXPECTED_ERRORS:
                raise OSError(number, os.strerror(number), "futex")

    return sleep
