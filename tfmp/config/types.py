"""Scalars as the user wrote them, and the readers that turn them into typed values.

YAML readers disagree: in YAML 1.1 (PyYAML) ``1e-3`` is text, ``012`` is 10, ``12:30`` is 750 and ``off`` is a boolean;
in YAML 1.2 they are 0.001, 12, text and text. Here a number means what users of both versions expect, and what the two
read differently is refused. The rule depends on the key, so a scalar keeps its source text until its key's type is
known.

Each ``read_*`` function takes a :class:`Scalar` or a plain Python value, returns the typed value, and raises a
``ValueError`` whose text says how to write the value. The text is empty if there is nothing to add.
"""

from __future__ import annotations

import keyword
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tfmp.cluster.spec import ClusterSpec
from tfmp.config.choices import SHORT_NAMES
from tfmp.errors import UsageError

Style = Literal["plain", "quoted", "shell"]

MAX_WORKERS = 64
MAX_NAME_CHARACTERS = 100

_TRUE = ("yes", "on", "true")
_FALSE = ("no", "off", "false")
_BOOLEANS = {form: word in _TRUE for word in (*_TRUE, *_FALSE) for form in (word, word.capitalize(), word.upper())}
_NULLS = ("", "~", "null", "Null", "NULL")

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.?(?:inf|nan|infinity)", re.ASCII | re.IGNORECASE)
# Three digits after the comma may as well be thousands.
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,(?![0-9]{3}$)[0-9]+", re.ASCII)
_LEADING_ZERO = re.compile(r"([-+]?)0+([0-9][0-9.]*(?:[eE][-+]?[0-9]+)?)", re.ASCII)
_OTHER_BASE = re.compile(r"[-+]?0[obx][0-9a-f_]+", re.ASCII | re.IGNORECASE)

# Beyond this a float no longer holds every integer, so `1e17` would not name one count.
_LARGEST_INTEGER = 2**53


@dataclass(frozen=True)
class Scalar:
    """A scalar that is not read yet.

    Args:
        text: The source text, without quotes.
        style: ``plain`` for unquoted text in a YAML file, ``quoted``, or ``shell`` for a command-line flag, whose
            quotes the shell has removed: text keys then take the text as it is.
        line: Line in the file, from 1; 0 outside a file.
    """

    text: str
    style: Style = "plain"
    line: int = field(default=0, compare=False)

    @property
    def is_null(self) -> bool:
        """Whether the scalar means "not set". An empty flag does not: it is most often an unset shell variable."""
        if self.style == "shell":
            return self.text == "null"
        return self.style == "plain" and self.text in _NULLS

    @property
    def boolean(self) -> bool | None:
        """The boolean that YAML 1.1 reads, or ``None``."""
        return None if self.style == "quoted" else _BOOLEANS.get(self.text)


def shown(value: object) -> str:
    """Return a received value as an error shows it: short, on one line, quoted if the user quoted it."""
    if isinstance(value, Scalar):
        if value.is_null:
            return "null" if value.text else "nothing"
        text = _printable(value.text)
        quoted = value.style == "quoted" or not text or text != text.strip()
        return f"'{text}'" if quoted else text
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    return _printable(str(value))


def _printable(text: str, longest: int = 60) -> str:
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)


def number_hint(scalar: Scalar) -> str:
    """Return how to write the scalar as a number; empty if it does not look like one."""
    text = scalar.text
    if scalar.style == "quoted":
        return "remove the quotes" if _NUMBER.fullmatch(text) else ""
    if scalar.boolean is not None:
        return "" if scalar.style == "shell" else f"YAML reads {text} as a boolean; write a number"
    if _NOT_FINITE.fullmatch(text):
        return "write a finite number"
    if _DECIMAL_COMMA.fullmatch(text):
        return f"write {text.replace(',', '.')}"
    if zero := _LEADING_ZERO.fullmatch(text):
        return f"YAML 1.1 reads a leading zero as octal; write {zero[1]}{zero[2]}"
    if _OTHER_BASE.fullmatch(text):
        return "write a decimal number"
    return ""


def read_int(value: object) -> int:
    """Read a whole number, such as ``64``, ``64.0`` or ``1e2``, but not ``64.5``, ``true`` or ``'64'``."""
    if isinstance(value, Scalar) and value.style != "quoted" and _HEXADECIMAL.fullmatch(value.text):
        return int(value.text, 16)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = read_number(value)
    if not number.is_integer():
        raise ValueError("write a whole number")
    if abs(number) > _LARGEST_INTEGER:
        raise ValueError("write a smaller number")
    # int() is exact; the float only served to bound the size.
    return int(value.text) if isinstance(value, Scalar) and _INTEGER.fullmatch(value.text) else int(number)


def read_number(value: object) -> float:
    """Read a finite number: any decimal notation, with or without a dot before the exponent."""
    if isinstance(value, Scalar):
        if value.style == "quoted" or not _NUMBER.fullmatch(value.text):
            raise ValueError(number_hint(value))
        number = float(value.text)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        raise ValueError("")
    if not math.isfinite(number):
        raise ValueError("write a finite number")
    return number


def read_bool(value: object) -> bool:
    """Read a boolean: an unquoted word of YAML 1.1. ``0``, ``1`` and quoted words are refused."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Scalar):
        if value.boolean is not None:
            return value.boolean
        if value.text in _BOOLEANS:
            raise ValueError("remove the quotes")
        if value.text in ("0", "1"):
            raise ValueError(f"write {'yes' if value.text == '1' else 'no'}")
    raise ValueError("")


def read_text(value: object) -> str:
    """Read text. A plain number keeps its spelling (``3.10`` stays ``3.10``); a plain boolean is refused."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, Scalar) and not value.is_null:
        if value.style == "plain" and value.boolean is not None:
            raise ValueError(boolean_hint(value))
        text = value.text
    else:
        raise ValueError("")
    if not text.strip() or "\0" in text:
        raise ValueError("")
    return text


def boolean_hint(scalar: Scalar) -> str:
    """Return the hint for a word that YAML reads as a boolean."""
    return f'YAML reads {scalar.text} as a boolean; quote it ("{scalar.text}") if it is meant as text'


def read_word(value: object) -> str:
    """Read one word of a fixed choice, which may include ``on`` and ``off``."""
    if isinstance(value, str):
        return value
    if isinstance(value, Scalar):
        return value.text.lower() if value.style == "plain" and value.boolean is not None else value.text
    raise ValueError("")


def read_path(value: object) -> Path:
    """Read a path; a leading ``~`` stands for the home directory."""
    text = str(value) if isinstance(value, Path) else read_text(value)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("no such user: write the full path") from None


def read_list(value: object) -> tuple[object, ...]:
    """Read a list; its items are read later."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(value, Scalar) and not value.is_null and value.style != "quoted":
        raise ValueError(f"write [{', '.join(part.strip() for part in value.text.split(',') if part.strip())}]")
    raise ValueError("")


def read_workers(value: object) -> int | tuple[str, ...]:
    """Read the number of workers on this machine, or the address of each worker.

    Args:
        value: A count, a list of ``host:port``, or comma-separated addresses as flags give them.

    Raises:
        ValueError: The count is not in 1..64, an address is malformed, or two workers share one.
    """
    if isinstance(value, Scalar) and ":" in value.text:
        value = [Scalar(part.strip(), value.style, value.line) for part in value.text.split(",")]
    if not isinstance(value, (list, tuple)):
        count = read_int(value)
        if not 1 <= count <= MAX_WORKERS:
            raise ValueError("")
        return count
    addresses = tuple(_address_text(item) for item in read_list(value))
    if not 1 <= len(addresses) <= MAX_WORKERS:
        raise ValueError(f"expected 1 to {MAX_WORKERS} addresses, received {len(addresses)}")
    try:
        # The command judges loopback beside other hosts: it knows which worker it is.
        ClusterSpec.from_addresses(addresses, "worker", any_loopback=True)
    except UsageError as error:
        raise ValueError(f"{error.where}: {error.what}" + (f"; {error.hint}" if error.hint else "")) from None
    return addresses


def _address_text(item: object) -> str:
    text = item.text if isinstance(item, Scalar) else item
    if not isinstance(text, str):
        raise ValueError("write each address as host:port")
    return text


def read_reference(value: object) -> str:
    """Read ``package.module:function``. Only the syntax is checked; nothing is imported.

    Raises:
        ValueError: The text is not two dotted Python names around one colon.
    """
    text = read_text(value)
    module, _, function = text.partition(":")
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ValueError(f"give the module, not its file: {dotted}:{function or 'function'}")
    names = (*module.split("."), *function.split("."))
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise ValueError("write it as package.module:function")
    return text


def read_names(value: object) -> object:
    """Read a list; a single name is a list of one. On the command line, commas part names."""
    if isinstance(value, Scalar) and value.style == "shell" and not value.is_null:
        return tuple(Scalar(part.strip(), "shell") for part in value.text.split(","))
    return (value,) if isinstance(value, str | Scalar) else read_list(value)


def read_name_or_reference(value: object, names: tuple[str, ...]) -> str:
    """Read one of ``names``, or ``package.module:name``.

    Raises:
        ValueError: The text is neither.
    """
    text = read_text(value)
    if ":" in text:
        return read_reference(value)
    text = SHORT_NAMES.get(text, text)
    if text not in names:
        raise ValueError("")
    return text


def read_run_name(value: object) -> str:
    """Read the name of a run, which becomes part of a folder name.

    Raises:
        ValueError: The text contains a slash or an unprintable character, or is longer than 100 characters.
    """
    text = read_text(value)
    if "/" in text:
        raise ValueError("a name has no slashes: set run.dir to choose the folder")
    if len(text) > MAX_NAME_CHARACTERS or not text.isprintable() or text != text.strip():
        raise ValueError(f"use at most {MAX_NAME_CHARACTERS} printable characters")
    return text
