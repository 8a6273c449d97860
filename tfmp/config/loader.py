"""Loads a YAML file as scalars with their lines, and refuses what a configuration never needs.

PyYAML's composer builds the nodes; its constructor, which creates Python objects (and with some loaders runs code), is
never used. In addition to syntax errors, these are refused: duplicate keys (PyYAML silently keeps the last one), tags,
several documents, and excessive nesting or aliases, so that a hostile file costs neither time nor memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tfmp.config.types import Scalar, shown
from tfmp.errors import UsageError

MAX_FILE_BYTES = 256 * 1024
MAX_ALIASES = 100
MAX_DEPTH = 20

Value: TypeAlias = "Scalar | list[Value] | dict[str, Entry]"


@dataclass(frozen=True)
class Entry:
    """The value of a key, and where the key is.

    Args:
        value: A scalar, a list of values or a mapping of entries.
        line: Line of the key, from 1.
    """

    value: Value
    line: int


def load_yaml(path: Path) -> dict[str, Entry]:
    """Read a configuration file.

    Args:
        path: A UTF-8 file of one YAML document, at most 256 KiB.

    Returns:
        The top-level mapping, in the order of the file.

    Raises:
        UsageError: The file cannot be read, is empty, or is not a YAML mapping; with ``file:line:column``.
    """
    text = _read_text(path)
    value = _parse(text, str(path), first_line=1)
    if value is None or (isinstance(value, Scalar) and value.is_null):
        raise UsageError(
            "expected settings, received an empty file",
            where=str(path),
            hint="add at least one section, or omit the file to use the defaults",
        )
    if not isinstance(value, dict):
        raise UsageError(
            f"expected a mapping of sections at the top level, received {shown(value)}",
            where=f"{path}:1",
            hint="write `training:` with its keys indented below it, without `- `",
        )
    return value


def parse_value(text: str, where: str) -> Value:
    """Read the value of ``--set KEY=VALUE``.

    Args:
        text: A list or mapping in YAML's flow style (``[128, 64]``), quoted text, or a plain scalar. The first
            character decides: a plain scalar is taken as it is, so ``#`` and ``: `` have no meaning in it.
        where: The place that errors name.

    Raises:
        UsageError: A bracket or quote is not closed, or text follows it.
    """
    stripped = text.strip()
    if not stripped.startswith(("[", "{", "'", '"')):
        return Scalar(stripped)
    value = _parse(stripped, where, first_line=0)
    return Scalar("") if value is None else value


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UsageError("the configuration file does not exist", where=str(path), hint=_similar_file(path)) from None
    except IsADirectoryError:
        inside = path / "config.yaml"
        hint = f"did you mean {inside}?" if inside.is_file() else "give a YAML file"
        raise UsageError("expected a configuration file, received a directory", where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the configuration file: {reason}", where=shown(str(path))) from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(
            f"expected a configuration of at most {MAX_FILE_BYTES // 1024} KiB, received a larger file",
            where=str(path),
            hint="give the YAML file of the run, not its data",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise UsageError(
            f"expected UTF-8 text, received the byte 0x{data[error.start]:02x}",
            where=f"{path}:{line}:{column}",
            hint="save the file in UTF-8",
        ) from None


def _similar_file(path: Path) -> str:
    other = path.with_suffix(".yml" if path.suffix == ".yaml" else ".yaml") if path.name else path
    try:
        found = other.is_file()
    except OSError:
        found = False
    return f"did you mean {other}?" if found else "check the path, which is relative to the current directory"


class _Composer(yaml.SafeLoader):
    """Composes nodes within limits and refuses explicit tags."""

    depth = 0
    aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise _error(f"expected at most {MAX_ALIASES} aliases", event.start_mark, "write the values out")
        elif (tag := getattr(event, "tag", None)) is not None:
            hint = "remove the tag, and quote the value if it is meant as text"
            raise _error(f"tags are not supported, received {shown(tag)}", event.start_mark, hint)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _error(f"expected at most {MAX_DEPTH} levels of nesting", event.start_mark, "close the brackets")
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[arg-type]
        self.depth -= 1
        return node


def _error(problem: str, mark: Any, hint: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark, note=hint)


def _parse(text: str, name: str, first_line: int) -> Value | None:
    """Compose and convert; ``first_line`` 0 means that ``name`` has no line numbers."""
    try:
        loader = _Composer(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        return None if node is None else _Converter(first_line).convert(node)
    except yaml.reader.ReaderError as error:
        character = error.character if isinstance(error.character, str) else chr(error.character)
        before = text[: error.position]
        place = f"{before.count(chr(10)) + 1}:{error.position - (before.rfind(chr(10)) + 1) + 1}"
        raise UsageError(
            f"expected text, received the character {character!a}",
            where=f"{name}:{place}" if first_line else name,
            hint="remove it, or write it as an escape between double quotes",
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, name, bool(first_line)) from None


def _syntax_error(error: yaml.MarkedYAMLError, name: str, has_lines: bool) -> UsageError:
    problem = error.problem or "the text is not YAML"
    context, mark = error.context or "", error.problem_mark
    hint = error.note or "check the indentation and the closing of brackets and quotes"
    if "'\\t'" in problem:
        problem, hint = "expected spaces, received a tab", "indent with spaces"
    elif "single document" in context:
        problem, hint = "expected one document, received a second", "remove the line `---` and what follows"
    elif "while parsing a flow" in context or ("quoted scalar" in context and "end of stream" in problem):
        # The parser notices further down, often at the end of the file; the mistake is where it opens.
        what = "quote" if "quoted" in context else "bracket"
        hint = f"close the {what}"
        if mark and what == "bracket" and "<stream end>" not in problem:
            hint += f", or add a comma before line {mark.line + 1}, column {mark.column + 1}"
        problem, mark = f"this {what} is not closed", error.context_mark
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark and has_lines else name
    return UsageError(problem.replace("'\\x00'", "the end"), where=place, hint=hint)


class _Converter:
    """Converts nodes to values; a node with several aliases is converted once."""

    def __init__(self, first_line: int) -> None:
        self._first_line = first_line
        self._done: dict[int, Value] = {}
        self._open: set[int] = set()

    def convert(self, node: yaml.Node) -> Value:
        if id(node) in self._done:
            return self._done[id(node)]
        if id(node) in self._open:
            raise _error("this value contains an alias of itself", node.start_mark, "write the value out")
        self._open.add(id(node))
        value: Value
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.convert(item) for item in node.value]
        else:
            value = Scalar(node.value, "quoted" if getattr(node, "style", None) else "plain", self._line(node))
        self._open.discard(id(node))
        self._done[id(node)] = value
        return value

    def _line(self, node: yaml.Node) -> int:
        return node.start_mark.line + self._first_line if self._first_line else 0

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Entry]:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error("expected a key, received a list or mapping", key_node.start_mark, "write `key: value`")
            if key_node.tag == "tag:yaml.org,2002:merge":
                for name, entry in self._merged(value_node).items():
                    merged.setdefault(name, entry)
                continue
            name, line = key_node.value, self._line(key_node)
            if name in own:
                first = f"first on line {own[name].line}" if line else "given twice"
                raise _error(f"duplicate key {shown(name)}, {first}", key_node.start_mark, "remove one of the two")
            own[name] = Entry(self.convert(value_node), line)
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> dict[str, Entry]:
        """Return the entries of ``<<``: a mapping, or a list of mappings, the first of which wins."""
        value = self.convert(node)
        sources = value if isinstance(value, list) else [value]
        entries: dict[str, Entry] = {}
        for source in reversed(sources):
            if not isinstance(source, dict):
                what = f"expected a mapping to merge, received {shown(source)}"
                raise _error(what, node.start_mark, "give `<<` an alias of a mapping")
            entries.update(source)
        return entries
