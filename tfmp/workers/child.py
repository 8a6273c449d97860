"""What a freshly forked process does to become a worker: everything between ``fork`` and the user's code."""

from __future__ import annotations

import errno
import faulthandler
import importlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tfmp.events import EventChannel, NotStarted, UncaughtException
from tfmp.reason import reason_of
from tfmp.workers.linux import set_parent_death_signal
from tfmp.workers.spec import EXIT_CANNOT_EXECUTE, EXIT_NOT_FOUND

# Higher than the launcher's and the fork server's 0: when memory runs out, the kernel ends a worker, and the launcher
# lives to tell which.
_OOM_SCORE_ADJ = "200"
_MAX_MESSAGE_CHARS = 2000


class _NotStarted(Exception):
    """The worker cannot begin; ``exit_code`` as a shell would give it."""

    def __init__(self, reason: str, exit_code: int = EXIT_CANNOT_EXECUTE) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def live(
    order: Mapping[str, Any], fds: tuple[int, int, int, int], fork_server_pid: int, restore: Mapping[str, str | None]
) -> NoReturn:
    """Become the worker that ``order`` describes, run it, and end the process. Never returns, never raises.

    Args:
        order: The spawn message: rank, env, unset, argv or target, payload, cpus.
        fds: Write ends of the worker's standard output, standard error and event pipe, and a file for its stacks.
        fork_server_pid: The parent; without it the worker must not live.
        restore: Variables the fork server set for itself, with the launcher's values (``None``: not set).
    """
    code = 1
    try:
        _tie_to(fork_server_pid)
        _reset_signals(program=order["argv"] is not None)
        channel = _take_descriptors(fds)
        try:
            _settle(order, restore)
            if order["argv"] is not None:
                _execute(order["argv"])
            code = _call(order, channel, fds[3])
        except _NotStarted as error:
            code = error.exit_code
            channel.send(NotStarted(str(error)))
            os.write(2, f"tfmp: {error}\n".encode(errors="replace"))
    except BaseException:
        with suppress(BaseException):
            traceback.print_exc()
    finally:
        # Not sys.exit: the interpreter's way out would run the fork server's exit handlers a second time.
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code)


def _tie_to(fork_server_pid: int) -> None:
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != fork_server_pid:
        os._exit(1)  # the parent died before the kernel had the request
    # A session of its own: a Ctrl-C at the terminal reaches the launcher alone, and one killpg ends the worker with
    # all it started.
    os.setsid()


def _reset_signals(*, program: bool) -> None:
    """Undo the fork server's handlers, then let in what came meanwhile: signals are blocked since before the fork."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    if not program:  # Python ignores these two and raises OSError instead; another program expects the default
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _take_descriptors(fds: tuple[int, int, int, int]) -> EventChannel:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, place in ((null, 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(source, place)
    for fd in (null, fds[0], fds[1]):
        if fd > 2:
            os.close(fd)
    return EventChannel(fds[2])


def _settle(order: Mapping[str, Any], restore: Mapping[str, str | None]) -> None:
    """Environment, folder, CPUs and the like."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE_ADJ)
    # os.environ calls putenv: C++ code sees the change too.
    for name, value in restore.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for name in order["unset"]:
        os.environ.pop(name, None)
    os.environ.update(order["env"])
    if order["cpus"] is not None:
        try:
            os.sched_setaffinity(0, order["cpus"])
        except OSError as error:
            raise _NotStarted(f"cannot run on CPUs {order['cpus']}: {error.strerror}") from error


def _execute(argv: list[str]) -> NoReturn:
    # A Python program whose output goes to a pipe keeps it in a buffer, and loses it when it is killed.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    command = argv[0]
    try:
        os.execvp(command, argv)
    except OSError as error:
        found = Path(command).exists() if "/" in command else shutil.which(command) is not None
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not found:
            raise _NotStarted(f"command not found: {command}", EXIT_NOT_FOUND) from error
        if error.errno == errno.ENOENT:
            raise _NotStarted(f"cannot execute {command}: no such interpreter as its first line names") from error
        if error.errno == errno.ENOEXEC:
            raise _NotStarted(f"cannot execute {command}: not a program, and without a #! line") from error
        raise _NotStarted(f"cannot execute {command}: {error.strerror}") from error


def _call(order: Mapping[str, Any], channel: EventChannel, stacks_fd: int) -> int:
    """Run the target in this process; return the exit code."""
    _name_process(f"tfmp-worker-{order['rank']}")
    # Streams of its own: the fork server's remember a position in the file that theirs went to, and a pipe has none.
    # Whole lines at once, and no character that could make a print fail in a worker only.
    sys.stdout = sys.__stdout__ = _line_stream(1)  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = _line_stream(2)  # type: ignore[misc, assignment]
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True, chain=False)
    target: str = order["target"]
    sys.argv = [target]
    module, _, name = target.partition(":")
    try:
        getattr(importlib.import_module(module), name)(order["payload"], channel)
    except SystemExit as leave:
        return _exit_code(leave)
    except BaseException as error:
        # First of all: the order of these events tells a culprit from its victims, and a traceback takes time.
        reason = reason_of(error)
        channel.send(
            UncaughtException(
                type(error).__name__,
                _shortened(str(error)),
                _shortened(f"{reason.type}: {reason.text}"),
                reason.place,
            )
        )
        traceback.print_exc()
        return 1
    return 0


def _shortened(message: str) -> str:
    """Both ends of a long message: TensorFlow begins with where in the graph it was, and ends with what it was."""
    if len(message) <= _MAX_MESSAGE_CHARS:
        return message
    half = _MAX_MESSAGE_CHARS // 2
    return f"{message[:half]}\n…\n{message[-half:]}"


def _line_stream(fd: int) -> TextIO:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _exit_code(leave: SystemExit) -> int:
    """The exit code Python itself gives for this exception; a text goes to standard error."""
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    print(leave.code, file=sys.stderr)
    return 1


def _name_process(name: str) -> None:
    """Set the name that ``top`` and ``ps -o comm`` show (the kernel keeps 15 bytes)."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)
