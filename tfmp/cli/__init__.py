"""The command line: one small module a command, each loaded only when it runs."""

from __future__ import annotations

import time

STARTED_S = time.time()
"""Wall clock at which the program was entered (to within the interpreter's own start)."""


def main() -> None:
    """Entry point of the ``tfmp`` console script; always ends the process."""
    from tfmp.cli.app import run

    run()
