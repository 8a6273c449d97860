"""Which lines of the workers are shown."""

from __future__ import annotations

from typing import Any

from tfmp.agent.console import Console
from tfmp.events import Progress, Validating


def console(**settings: Any) -> tuple[Console, list[tuple[int, str]], set[int]]:
    shown: list[tuple[int, str]] = []
    leaving: set[int] = set()
    given = {"everything": False, "tee": False, "ranks": None, **settings}
    return Console(lambda rank, _, text: shown.append((rank, text)), leaving, **given), shown, leaving


def test_a_workers_own_words_are_shown_and_noise_is_counted() -> None:
    made, shown, _ = console()
    made.on_line(0, "stdout", "hello")
    made.on_line(0, "stderr", "I0000 00:00:1796017365.9 1 port.cc:153] oneDNN")
    made.on_line(1, "stderr", "E0000 00:00:1796017365.9 1 cuda.cc:1] failed call to cuInit: UNKNOWN ERROR (303)")
    assert shown == [(0, "hello")]
    assert made.hidden == 2


def test_a_traceback_is_left_to_the_error_at_the_end() -> None:
    made, shown, _ = console()
    made.on_line(1, "stderr", "Traceback (most recent call last):")
    made.on_line(1, "stderr", "ValueError: boom")
    made.on_line(1, "stdout", "still here")
    made.on_line(0, "stderr", "another worker")
    assert shown == [(1, "still here"), (0, "another worker")]


def test_a_traceback_of_a_worker_that_lives_on_is_shown_then() -> None:
    made, shown, _ = console()
    made.on_line(1, "stderr", "Traceback (most recent call last):")
    made.on_line(1, "stderr", "ValueError: caught by the user")
    made.on_event(1, Validating(1))
    assert shown == []
    made.on_event(1, Progress(1, 2))
    made.on_line(1, "stderr", "later")
    assert [text for _, text in shown] == [
        "Traceback (most recent call last):", "ValueError: caught by the user", "later",
    ]  # fmt: skip


def test_victims_and_leavers_are_quiet() -> None:
    made, shown, leaving = console()
    made.on_line(0, "stderr", "E0000 00:00:1 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: Socket closed")
    made.on_line(0, "stderr", "more of it")
    leaving.add(1)
    made.on_line(1, "stderr", "a last word")
    assert shown == []
    assert made.hidden == 3


def test_verbose_and_chosen_workers() -> None:
    made, shown, _ = console(everything=True)
    made.on_line(0, "stderr", "Traceback (most recent call last):")
    assert shown == [(0, "Traceback (most recent call last):")]
    made, shown, _ = console(ranks=(1,))
    made.on_line(0, "stdout", "zero")
    made.on_line(1, "stdout", "one")
    assert shown == [(1, "one")]
