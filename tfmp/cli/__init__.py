"""The command line: one small module per command, loaded only when the command runs."""

from __future__ import annotations

import time

STARTED_S = time.time()
"""Wall-clock time at which the program was entered (after the interpreter's own start)."""


def main() -> None:
    """Entry point of the ``tfmp`` console script; always exits the process."""
    from tfmp.cli.app import run

    run()
