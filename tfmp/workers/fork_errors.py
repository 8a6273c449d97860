"""What is said of a fork server that cannot serve."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from tfmp.errors import TfmpError
from tfmp.workers.spec import signal_name


class ForkServerDied(TfmpError):
    """The fork server is gone although nobody asked it to leave."""


def fork_server_died(
    pid: int, code: int | None, preload: Sequence[str], *, importing: bool, tail: str
) -> ForkServerDied:
    """The error for a fork server that has ended.

    Args:
        pid: Its process id.
        code: Its exit code, negative for a signal; ``None`` if it lives, but closed its connection.
        preload: What it was to import.
        importing: Whether it still imported.
        tail: The last lines that it printed.
    """
    if code is None:
        how = "closed its connection"
    elif code < 0:
        how = f"was killed by signal {-code} ({signal_name(-code)})"
    else:
        how = f"ended with exit code {code}"
    when = " while it imported" if importing else ""
    imports = f"imports {', '.join(preload)} and " if preload else ""
    what = f"the fork server that {imports}starts the workers {how}{when}"
    if code == -signal.SIGKILL:  # it had no chance to say anything about it
        hint = "look for the kernel's out-of-memory killer in `dmesg`"
        return ForkServerDied(what, where=f"pid {pid}", hint=hint)
    return ForkServerDied(f"{what}\n{tail}" if tail else what, where=f"pid {pid}")


def still_importing(pid: int, timeout_s: float, *, stopped: bool) -> TfmpError:
    """The error for a fork server that has not come to the end of its imports in time."""
    if stopped:
        return TfmpError(
            f"the fork server {pid} was stopped (SIGSTOP) while importing, for {timeout_s:g} s",
            hint="fg, or kill -CONT, lets a stopped process go on",
        )
    return TfmpError(
        f"the fork server was still importing after {timeout_s:g} s",
        hint="a slow network file system? try the same import in python; --start-timeout allows more",
    )


def cannot_serve(stage: str, detail: str) -> TfmpError:
    """The error for a fork server that has said why it cannot fork workers: its network or an import."""
    if stage == "network":
        return TfmpError(
            f"a private network for the workers was asked for and refused: {detail}",
            hint="let tfmp choose (auto), or allow network namespaces",
        )
    return TfmpError(f"importing what the workers need failed:\n{detail}", hint="try the same import in python")
