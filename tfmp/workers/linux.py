"""Linux system calls that the standard library does not offer, or not in every build."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from tfmp.errors import UsageError
from tfmp.procfs import children, state_of

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# The same numbers on every architecture (linux/arch/*/syscall tables, 5.1 and later). Python builds made against
# old kernel headers lack the wrappers although the running kernel has the calls.
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434
_SWEEP_PAUSE_S = 0.002


def require_linux() -> None:
    """Check that this system can tie workers to their launcher.

    Raises:
        UsageError: Not Linux, or a kernel before 5.3 (no pidfd_open).
    """
    if not sys.platform.startswith("linux"):
        raise UsageError(
            f"starting workers needs Linux, received {sys.platform}",
            hint="run tfmp in a Linux container or virtual machine",
        )
    try:
        os.close(pidfd_open(os.getpid()))
    except OSError as error:
        raise UsageError(
            f"starting workers needs the system call pidfd_open (Linux 5.3 or later): {error.strerror}",
            where=f"kernel {os.uname().release}",
            hint="use a newer kernel, or a container runtime that does not filter pidfd_open",
        ) from error


@functools.lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked_call(name: str, *arguments: int) -> int:
    """Call a C library function of integers.

    Returns:
        What it returned, 0 or more.

    Raises:
        OSError: It returned a negative number; carries errno.
    """
    result: int = getattr(_libc(), name)(*(ctypes.c_long(a) for a in arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init's, so that it can find and kill them."""
    checked_call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_parent_death_signal(signum: int) -> None:
    """Ask the kernel for a signal when the thread that started this process ends; 0 cancels it."""
    checked_call("prctl", _PR_SET_PDEATHSIG, signum, 0, 0, 0)


def pidfd_open(pid: int) -> int:
    """Return a close-on-exec descriptor of process ``pid``: readable once it has exited, never another process.

    Raises:
        OSError: No such process, no descriptors left, or a kernel without the call.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return checked_call("syscall", _SYS_PIDFD_OPEN, pid, 0)


def pidfd_signal(pidfd: int, signum: int) -> None:
    """Send a signal to the process of ``pidfd``; nothing happens if it has exited."""
    with suppress(ProcessLookupError):
        if hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, signum)
        else:
            checked_call("syscall", _SYS_PIDFD_SEND_SIGNAL, pidfd, signum, 0, 0)


def signal_worker(pid: int, signum: int, *, group: bool) -> None:
    """Signal a worker, or its whole process group. Only its parent may ask, before reaping it (pids are reused)."""
    # A worker between fork and setsid has no group of its own yet: then the signal goes to the process.
    with suppress(ProcessLookupError, PermissionError):
        if group:
            try:
                os.killpg(pid, signum)
            except ProcessLookupError:
                os.kill(pid, signum)
        else:
            os.kill(pid, signum)


def session_of(pid: int) -> int | None:
    """Return the session id of a process, ``None`` if it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def sweep_children(is_ours: Callable[[int], bool], timeout_s: float) -> bool:
    """Kill and reap children of this process until none of ours is left.

    With this process a subreaper, the children of a killed child become its own children: repeated passes end whole
    trees, whatever sessions they moved to.

    Args:
        is_ours: Tells by process id whether to kill a child.
        timeout_s: Time limit: a process in an uninterruptible system call cannot be killed.

    Returns:
        Whether none is left.
    """
    deadline_s = time.monotonic() + timeout_s
    doomed: set[int] = set()
    while True:
        # A zombie has no environment to recognise it by: remember who was killed.
        left = [pid for pid in children() if pid in doomed or is_ours(pid)]
        if not left:
            return True
        for pid in left:
            doomed.add(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    doomed.discard(pid)
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_SWEEP_PAUSE_S)


def reap_strays(keep: int) -> None:
    """Reap zombies that became this process's children although others started them, as happens to PID 1.

    Args:
        keep: A child that somebody else waits for.
    """
    for pid in children():
        if pid != keep and state_of(pid) == "Z":
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
