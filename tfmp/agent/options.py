"""What the command line of ``tfmp train`` and ``tfmp worker`` says beside the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfmp.text import noop


@dataclass(frozen=True)
class TrainOptions:
    """What the command line says beside the configuration.

    Attributes:
        config_file: The configuration file, if one was given: it names the run.
        live: Whether a live display is wanted on a terminal.
        verbosity: -1 quiet, 0 normal, 1 everything.
        started_s: Wall clock when the command was entered.
        resume: Resume the run in the run folder, if there is one.
        faults: Faults to inject in the first attempt, as typed.
        tee: Show every line that the workers print, as their logs have it.
        log_workers: Ranks whose lines are shown; ``None``: all.
        on_folder: Called with the run folder once it is claimed.
    """

    config_file: Path | None = None
    live: bool = True
    verbosity: int = 0
    started_s: float = 0.0
    resume: bool = False
    faults: tuple[str, ...] = ()
    tee: bool = False
    log_workers: frozenset[int] | None = None
    on_folder: Callable[[Path], Any] = noop
