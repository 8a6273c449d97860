"""The innermost reason in an exception of TensorFlow or Keras, and the user's own line.

Autograph puts "in user code:" and its own traceback in front of a message, Keras "Exception encountered when calling
Layer.call()." and the arguments around it, and a compiled graph "Graph execution error:" with every frame that made the
operation. What went wrong stands last.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import tfmp

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.+?)\s*\**$', re.MULTILINE)
#: Autograph's last line: the exception it has wrapped, four spaces in.
_WRAPPED = re.compile(r"^ {4}([A-Za-z_][\w.]*): ?(.*)\Z", re.MULTILINE | re.DOTALL)
_CALLING = re.compile(r"\AException encountered when calling (.+?)\.\s*\n(.*)\Z", re.DOTALL)
_ARGUMENTS = re.compile(r"\n\s*Arguments received by .*\Z", re.DOTALL)
_GUESSING_A_SHAPE = re.compile(r"\ACould not automatically infer .*?Error encountered:\s*", re.DOTALL)
_GRAPH = re.compile(r"\AGraph execution error:\s*\n(.*)\Z", re.DOTALL)
_NODE = re.compile(r"\s*\[\[\{\{node .*\Z", re.DOTALL)

_LIBRARY_FOLDERS = tuple(
    f"{folder}/" for folder in {*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), Path(tfmp.__file__).parent}
)


class Reason(NamedTuple):
    """What went wrong.

    Attributes:
        type: The innermost exception's type.
        text: What it says, without the wrapping.
        place: ``file:line in function`` of the innermost line that is the user's own; ``None`` if no line is.
    """

    type: str
    text: str
    place: str | None


def reason_of(error: BaseException) -> Reason:
    """Return the innermost reason of an exception."""
    message = _ANSI.sub("", str(error))
    type_, text = _unwrapped(type(error).__name__, message)
    return Reason(type_, text, _own_line(_frames(error.__traceback__, message)))


def _unwrapped(type_: str, message: str) -> tuple[str, str]:
    """Take off one wrapping after the other."""
    message = message.strip("\n")
    if message.startswith("in user code:"):
        found = _last_wrapped(message)
        if found is not None:
            inner_type, inner = found
            return _unwrapped(inner_type.rpartition(".")[2], inner)
    if match := _CALLING.match(message):
        layer, inner = match[1], _ARGUMENTS.sub("", match[2]).strip()
        inner_type, text = _unwrapped(type_, _GUESSING_A_SHAPE.sub("", inner))
        return inner_type, text if text.startswith(layer) or ".call(): " in text else f"{layer}: {text}"
    if match := _GRAPH.match(message):
        lines = match[1].splitlines()
        said = [line for line in lines if line.strip() and not line.startswith((" ", "\t", "Detected at ", "<stack"))]
        if said:
            return type_, "\n".join(said)
    return type_, _NODE.sub("", message)


def _last_wrapped(message: str) -> tuple[str, str] | None:
    """The exception below autograph's frames, and its message, without the indentation."""
    frames = list(re.finditer(r'^ {4}File "', message, re.MULTILINE))
    match = _WRAPPED.search(message, frames[-1].end() if frames else 0)
    if match is None:
        return None
    return match[1], "\n".join(line.removeprefix("    ") for line in match[2].splitlines())


def _frames(trace: TracebackType | None, message: str) -> Iterable[tuple[str, int, str]]:
    """File, line and function of all frames, the innermost last: those in the message are inside of those outside."""
    for frame in traceback.extract_tb(trace):
        yield frame.filename, frame.lineno or 0, frame.name
    for match in _FRAME.finditer(message):
        yield match[1], int(match[2]), match[3]


def _own_line(frames: Iterable[tuple[str, int, str]]) -> str | None:
    own = [frame for frame in frames if not frame[0].startswith(("<", *_LIBRARY_FOLDERS))]
    if not own:
        return None
    file, line, function = own[-1]
    here = Path.cwd()
    path = Path(file)
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown}:{line} in {function}"
