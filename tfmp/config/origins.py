"""Where a value of the configuration came from: the defaults, a line of the file, ``--set`` or a flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FlagValue:
    """One command-line flag that the user gave.

    Args:
        key: Dotted key that the flag sets, such as ``training.epochs``.
        flag: The flag as typed, such as ``--epochs``; named in errors and as the value's origin.
        value: The text the user typed (read by the rules of a YAML value) or an already typed value. ``None`` says
            that the flag was not given: it sets nothing.
    """

    key: str
    flag: str
    value: object


@dataclass(frozen=True)
class Origin:
    """The place of one value.

    Args:
        kind: Which layer: ``default`` < ``file`` < ``set`` < ``flag``.
        place: The file's path for ``file``, the flag for ``flag``; unused otherwise.
        line: Line in the file, from 1; 0 for the other kinds.
    """

    kind: Literal["default", "file", "set", "flag"] = "default"
    place: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.kind == "file":
            return f"{self.place}:{self.line}"
        if self.kind == "set":
            return "--set"
        return self.place if self.kind == "flag" else "default"

    def where(self, key: str, line: int = 0) -> str:
        """Return the place as an error names it.

        Args:
            key: The dotted key, which ``--set`` needs to tell one from another.
            line: Line of the offending item where it differs from the key's own, as in a list over several lines.
        """
        if self.kind == "set":
            return f"--set {key}"
        if self.kind == "file" and line:
            return f"{self.place}:{line}"
        return str(self)


DEFAULT = Origin()
