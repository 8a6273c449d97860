"""Writes a configuration as YAML that means the same in YAML 1.1 and 1.2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfmp.config.keys import plain, schema_keys, sections
from tfmp.config.types import Scalar, shown

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig

# Never shown or written: run folders are copied and shared.
_SECRET_KEYS = frozenset({"cluster.token"})
# Starts with a letter: never a number, a date or a document marker.
_PLAIN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)


def to_yaml(config: RunConfig, origins: Mapping[str, str] | None = None) -> str:
    """Return the whole configuration as YAML, one key per line, with defaults and without secrets.

    Args:
        config: The configuration.
        origins: Where the value of each dotted key came from, added as a comment; ``None`` for no comments.
    """
    lines: list[str] = []
    for section in sections():
        lines.append(f"{section}:")
        for key in schema_keys():
            owner, _, name = key.partition(".")
            if owner == section:
                value = None if key in _SECRET_KEYS else getattr(getattr(config, section), name)
                line = f"  {name}: {value_text(value)}"
                lines.append(f"{line}  # {shown(origins[key])}" if origins else line)
    return "\n".join(lines) + "\n"


def value_text(value: object) -> str:
    """Return one value in YAML's flow style, on one line."""
    value = plain(value)
    if isinstance(value, list):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        # Without a dot before the exponent, YAML 1.1 reads text.
        return f"{mantissa}.0e{exponent}" if e and "." not in mantissa else repr(value)
    if isinstance(value, int):
        return str(value)
    text = str(value)
    scalar = Scalar(text)
    if _PLAIN_TEXT.fullmatch(text) and not scalar.is_null and scalar.boolean is None and text.lower() not in ("y", "n"):
        return text
    return f'"{"".join(_escaped(character) for character in text)}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
