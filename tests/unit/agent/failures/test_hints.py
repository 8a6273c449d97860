"""What to do about a failure."""

from __future__ import annotations

import signal

import pytest

from tfmp.agent.failures.hints import memory_hint, message_hint, signal_hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("OSError: No space left on device", "the disk is full: free some space, or use another --run-dir"),
        (
            "RuntimeError: Collective ops must be configured at program startup",
            "create the strategy first: before any data set or tensor is made and any device listed",
        ),
        (
            "UNKNOWN: Could not start gRPC server",
            "a port is taken by another program: leave out --base-port, or choose another",
        ),
        ("sh: 1: trian: command not found", "give the program as in a shell: tfmp launch -n 2 -- python script.py"),
        ("MemoryError", "out of memory: a smaller --batch-size, a smaller model, or fewer workers"),
    ],
)
def test_known_messages_in_the_last_lines_give_the_hint(line: str, hint: str) -> None:
    assert message_hint(["x", line, "y"]) == hint


def test_nothing_is_made_up_about_unknown_ends() -> None:
    assert message_hint(["nothing known"]) is None
    assert message_hint([]) is None
    assert signal_hint(None) is None
    assert signal_hint(signal.SIGUSR2) is None
    assert memory_hint("unknown") is None


def test_signals_are_explained() -> None:
    assert "out-of-memory killer" in (signal_hint(signal.SIGKILL) or "")
    assert signal_hint(signal.SIGTERM) == "someone asked this process to end (kill, a scheduler, a container engine)"
    assert signal_hint(11) == "a crash in native code; a refused allocation of memory can cause it"
    assert signal_hint(6) == "native code gave up; a refused allocation of memory can cause it"


def test_the_memory_tells_which_of_two_kills_it_was() -> None:
    smaller = "a smaller --batch-size, a smaller model, fewer workers, or a higher memory limit"
    assert memory_hint("out of memory") == smaller
    outside = "there is no sign of an out-of-memory kill: look for who sent it (kill -9, a scheduler)"
    assert memory_hint("killed from outside") == outside
