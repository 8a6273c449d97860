"""The errors a user can act on, and the program's exit codes.

Every failure that tfmp foresees is a :class:`TfmpError`: what is wrong, where, and what to do next. The command line
prints it as one short block and leaves with its exit code; a traceback is shown with ``-v`` only.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class TfmpError(Exception):
    """A failure with a cause, a place and a way out.

    Args:
        what: One sentence: what was expected and what was received.
        where: The place: ``file:line``, a dotted key, a worker, an address. ``None`` where there is none.
        hint: What to type or change next. ``None`` where nothing can be said.
        exit_code: The program's exit code for this failure.
    """

    exit_code = EXIT_FAILED

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, exit_code: int | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def render(self) -> str:
        """Return the block that is printed to the user, without a trailing newline."""
        lines = [f"error: {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  try:   {self.hint}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()


class UsageError(TfmpError):
    """Wrong usage or a wrong configuration: found before any process starts, exit code 2."""

    exit_code = EXIT_USAGE
