"""Text values with a syntax of their own: worker addresses, ``module:function`` and run names.

Same contract as the readers of :mod:`tfmp.config.types`: a typed value, or ``ValueError`` with what to write.
"""

from __future__ import annotations

import keyword
import re

from tfmp.config.types import Scalar, read_int, read_list, read_text

MAX_WORKERS = 64
MAX_NAME_CHARACTERS = 100

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):(?P<port>[0-9]{1,5})", re.ASCII)


def read_workers(value: object) -> int | tuple[str, ...]:
    """Read the workers: how many on this machine, or the address of each.

    Args:
        value: A count, a list of ``host:port``, or one text of addresses separated by commas, as flags give them.

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
    addresses = tuple(_read_address(item) for item in read_list(value))
    if not 1 <= len(addresses) <= MAX_WORKERS:
        raise ValueError(f"give 1 to {MAX_WORKERS} addresses, received {len(addresses)}")
    seen: dict[str, int] = {}
    for index, address in enumerate(addresses):
        if address in seen:
            raise ValueError(f"workers {seen[address]} and {index} have the same address {address}: give each its own")
        seen[address] = index
    return addresses


def _read_address(item: object) -> str:
    text = item.text if isinstance(item, Scalar) else item
    if not isinstance(text, str):
        raise ValueError("write each address as host:port")
    match = _ADDRESS.fullmatch(text)
    # Digits alone are a base-60 number to YAML 1.1 and no host name to anyone.
    if match is None or match["host"].isdigit():
        raise ValueError(f"write each address as host:port, received {text[:60]!r}")
    if not 1 <= int(match["port"]) <= 65535:
        raise ValueError(f"expected a port from 1 to 65535 in {text!r}")
    return text


def read_reference(value: object) -> str:
    """Read ``package.module:function``; only the syntax is checked, nothing is imported.

    Raises:
        ValueError: The text is not two dotted Python names around one colon.
    """
    text = read_text(value)
    module, _, function = text.partition(":")
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ValueError(f"name the module, not its file: {dotted}:{function or 'function'}")
    names = (*module.split("."), *function.split("."))
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise ValueError("write it as package.module:function")
    return text


def read_run_name(value: object) -> str:
    """Read a run's name, which becomes part of a folder's name.

    Raises:
        ValueError: The text holds a slash or an unprintable character, or is longer than 100 characters.
    """
    text = read_text(value)
    if "/" in text:
        raise ValueError("a name has no slash: give the folder itself as run.dir")
    if len(text) > MAX_NAME_CHARACTERS or not text.isprintable() or text != text.strip():
        raise ValueError(f"use at most {MAX_NAME_CHARACTERS} printable characters")
    return text
