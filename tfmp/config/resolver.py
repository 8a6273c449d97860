"""Merges the layers of a configuration: defaults < file < ``--set`` < flags.

Values are read after all layers are merged, and each error names the place that its value came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from tfmp.config import dump
from tfmp.config.keys import KeyInfo, nearest_choice, nearest_key, nearest_section, schema_keys, sections
from tfmp.config.loader import Entry, load_yaml, parse_value
from tfmp.config.schema import RunConfig
from tfmp.config.types import Scalar, boolean_hint, shown
from tfmp.errors import UsageError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_LISTED_ERRORS = 5


@dataclass(frozen=True)
class FlagValue:
    """A command-line flag.

    Args:
        key: Dotted key that the flag sets, such as ``training.epochs``.
        flag: The flag as typed, such as ``--epochs``; named in errors and as the value's origin.
        value: The text as typed, which is read like a YAML value, or an already typed value. ``None``: the flag was not
            given and sets nothing.
    """

    key: str
    flag: str
    value: object


@dataclass(frozen=True)
class Origin:
    """Where a value came from: the defaults, a line of the file, ``--set`` or a flag.

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
        """Return the place as named in an error.

        Args:
            key: The dotted key, to tell one ``--set`` from another.
            line: Line of the item at fault, if it is not that of the key, as in a list over several lines.
        """
        if self.kind == "set":
            return f"--set {key}"
        if self.kind == "file" and line:
            return f"{self.place}:{line}"
        return str(self)


DEFAULT = Origin()


@dataclass(frozen=True)
class Resolved:
    """A configuration, and where each of its values came from.

    Args:
        config: The validated configuration.
        origins: For every dotted key: ``default``, ``file:line``, ``--set`` or the flag.
    """

    config: RunConfig
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """Return where the value of a dotted key came from.

        Raises:
            KeyError: The schema has no such key.
        """
        return self.origins[key]

    def to_yaml(self, origins: bool = False) -> str:
        """Return the configuration as YAML that loads back to the same one.

        Args:
            origins: Whether each line ends with a comment that says where its value came from.
        """
        return dump.to_yaml(self.config, self.origins if origins else None)


def resolve(file: Path | None = None, sets: Sequence[str] = (), flags: Sequence[FlagValue] = ()) -> Resolved:
    """Merge the layers of a configuration and validate the result.

    Args:
        file: YAML file, ``None`` for the defaults.
        sets: The texts of ``--set``: ``section.key=VALUE``, in the order given; the last one of a key wins.
        flags: Flags, which override everything else.

    Raises:
        UsageError: The file cannot be read, or a key or value is wrong. Lists up to five errors.
    """
    layers = _Layers()
    if file is not None:
        layers.add_file(str(file), load_yaml(file))
    for text in sets:
        layers.add_set(text)
    for flag in flags:
        layers.add_flag(flag)
    config, problems = _validate(layers)
    problems = [*layers.problems, *problems]
    if config is None or problems:
        raise _usage_error(problems)
    return Resolved(config, {key: str(layers.origin(key)) for key in schema_keys()})


def load_run_config(path: Path) -> RunConfig:
    """Read the configuration of a run.

    Args:
        path: A run folder or the ``config.yaml`` in it.

    Raises:
        UsageError: There is no configuration, or it is invalid.
    """
    return resolve(path / "config.yaml" if path.is_dir() else path).config


@dataclass(frozen=True)
class _Problem:
    where: str
    what: str
    hint: str | None


@dataclass
class _Layers:
    """The value of each key so far, not read yet, and its origin."""

    values: dict[str, dict[str, object]] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    problems: list[_Problem] = field(default_factory=list)

    def origin(self, key: str) -> Origin:
        return self.origins.get(key, DEFAULT)

    def add_file(self, name: str, top: Mapping[str, Entry]) -> None:
        for section, entry in top.items():
            origin = Origin("file", name, entry.line)
            if section not in sections():
                self._add_stray(section, entry, origin)
            elif isinstance(entry.value, dict):
                for key, inner in entry.value.items():
                    self._put(f"{section}.{key}", inner.value, Origin("file", name, inner.line))
            elif not (isinstance(entry.value, Scalar) and entry.value.is_null):
                what = f"{section}: expected a section with its keys indented below it, received {shown(entry.value)}"
                self.problems.append(_Problem(str(origin), what, None))

    def _add_stray(self, section: str, entry: Entry, origin: Origin) -> None:
        """Report a top-level key that is not a section: a misspelled section, or keys at the wrong level."""
        near = nearest_section(section)
        value = {} if isinstance(entry.value, Scalar) and entry.value.is_null else entry.value
        if not isinstance(value, dict):
            self.problems.append(_unknown(section, origin))
        elif near and all(f"{near}.{key}" in schema_keys() for key in value):
            self.problems.append(_Problem(str(origin), f"unknown section {shown(section)}", f"did you mean {near}?"))
        else:
            for key, item in value.items():
                self.problems.append(_unknown(f"{section}.{key}", replace(origin, line=item.line)))
            if not value:
                self.problems.append(_unknown(section, origin))

    def add_set(self, text: str) -> None:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            what = f"--set: expected KEY=VALUE, received {shown(Scalar(text, 'shell'))}"
            self.problems.append(_Problem("--set", what, "write --set training.epochs=3"))
            return
        origin = Origin("set")
        self._put(key, parse_value(value, origin.where(key)), origin)

    def add_flag(self, flag: FlagValue) -> None:
        if flag.value is not None:
            self._put(flag.key, _flag_value(flag, schema_keys().get(flag.key)), Origin("flag", flag.flag))

    def _put(self, key: str, value: object, origin: Origin) -> None:
        if key not in schema_keys():
            self.problems.append(_unknown(key, origin))
            return
        section, _, name = key.partition(".")
        null = isinstance(value, Scalar) and value.is_null
        self.values.setdefault(section, {})[name] = None if null else value
        self.origins[key] = origin


def _flag_value(flag: FlagValue, info: KeyInfo | None) -> object:
    """Return a flag's value with its texts marked as typed in a shell; a list key also takes YAML's ``[a, b]``."""
    value = flag.value
    # Not an IPv6 address, which starts with a bracket too: [::1]:2222,[::2]:2222
    is_list = isinstance(value, str) and re.fullmatch(r"\s*\[.*\]\s*", value, re.DOTALL)
    if isinstance(value, str) and is_list and info is not None and _takes_list(info):
        return parse_value(value, flag.flag)
    if isinstance(value, (list, tuple)):
        return [_shell(item) for item in value]
    return _shell(value)


def _takes_list(info: KeyInfo) -> bool:
    return bool(info.item) or info.key == "cluster.workers"


def _shell(value: object) -> object:
    return Scalar(str(value), "shell") if isinstance(value, (str, Path)) else value


def _unknown(key: str, origin: Origin) -> _Problem:
    if key in sections():
        hint = f"give a key of the section, such as {next(k for k in schema_keys() if k.startswith(key + '.'))}"
    elif key in schema_keys():
        section, _, name = key.partition(".")
        hint = f"write {section}: on a line of its own, and {name} indented below it"
    elif near := nearest_key(key):
        section, _, name = near.partition(".")
        level = f" (key {name} below {section}:)" if origin.kind == "file" else ""
        hint = f"did you mean {near}?{level}"
    else:
        section = key.partition(".")[0]
        own = [k.partition(".")[2] for k in schema_keys() if k.startswith(f"{section}.")]
        hint = f"the keys of {section} are {', '.join(own)}" if own else f"the sections are {', '.join(sections())}"
    return _Problem(origin.where(key), f"unknown key {shown(key)}", hint)


def _validate(layers: _Layers) -> tuple[RunConfig | None, list[_Problem]]:
    try:
        return RunConfig.model_validate(layers.values), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [problem for detail in details for problem in _problems(detail, layers)]


def _problems(detail: ErrorDetails, layers: _Layers) -> Iterator[_Problem]:
    if detail["type"] == "contradiction":
        for found in detail["ctx"]["found"]:
            given = [key for key in found.keys if layers.origin(key) != DEFAULT] or list(found.keys)
            places = [layers.origin(key).where(key) for key in given]
            if len(places) > 1:
                places = [f"{place} ({key})" for place, key in zip(places, given, strict=True)]
            yield _Problem(", ".join(places), found.what, found.hint)
        return
    section, name, *rest = detail["loc"]
    key = f"{section}.{name}"
    info = schema_keys()[key]
    received = layers.values[str(section)][str(name)]
    shown_key, expected = key, info.type
    if rest and isinstance(rest[0], int) and isinstance(received, (list, tuple)):
        received = received[rest[0]]
        shown_key, expected = f"{key}[{rest[0]}]", info.item
    line = received.line if isinstance(received, Scalar) else 0
    what = f"{shown_key}: expected {expected}, received {shown(received)}"
    yield _Problem(layers.origin(key).where(key, line), what, _hint(detail, info, received))


def _hint(detail: ErrorDetails, info: KeyInfo, received: object) -> str | None:
    """Return what to write instead of a refused value."""
    if received is None:
        return f"remove the key to use the default, {dump.value_text(info.default)}"
    if detail["type"] == "value_error" and (text := str(detail["ctx"]["error"])):
        return text
    if isinstance(received, Scalar):
        if received.style == "plain" and received.boolean is not None:
            word = "on" if received.boolean else "off"
            return f"write {word}" if word in info.choices else boolean_hint(received)
        if near := nearest_choice(received.text, info.choices):
            return f"did you mean {near}?"
    return None


def _usage_error(problems: Sequence[_Problem]) -> UsageError:
    first, *others = problems
    listed = others[: MAX_LISTED_ERRORS - 1]
    lines = [first.what, *(f"  also:  {other.what} (at {other.where})" for other in listed)]
    if len(others) > len(listed):
        lines.append(f"  and {len(others) - len(listed)} more")
    return UsageError("\n".join(lines), where=first.where, hint=first.hint)
