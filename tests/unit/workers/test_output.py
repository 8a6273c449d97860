"""Bytes to lines, bytes to files, bytes to events: nothing torn, nothing lost, nothing without a bound."""

from __future__ import annotations

import json
import os
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tfmp import ipc
from tfmp.errors import TfmpError
from tfmp.events import MAX_EVENT_BYTES, EventChannel, EventReader, Ready, UnknownEvent, encode
from tfmp.workers import logs
from tfmp.workers.logs import MAX_LINE_BYTES, LineSplitter, LogFile, WorkerLog
from tfmp.workers.spec import WorkerExit, WorkerSpec


def split(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"10%\r55%\r100%\n", ["100%"]),
        (b"10%\r55%\r", ["55%"]),
        (b"100%\r\r\n", ["100%"]),
        (b"\r\nx\n", ["", "x"]),
        ("grün\n".encode(), ["grün"]),
        (b"\xff\xfe ok\n", ["\ufffd\ufffd ok"]),
        (b"", []),
        (b"\n", [""]),
    ],
)
def test_lines(data: bytes, lines: list[str]) -> None:
    assert split(data) == lines


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xff", "€".encode(), b"x" * 7, b"progress 10%\r"])).map(
        b"".join
    ),
    st.data(),
)
@example(b"aaaaaaaaa\rbbbb\n", None)
def test_lines_do_not_depend_on_the_chunks(data: bytes, draw: st.DataObject | None) -> None:
    """With a limit of a few bytes, so that broken lines are part of it."""
    limit, logs.MAX_LINE_BYTES = logs.MAX_LINE_BYTES, 6
    try:
        whole = split(data)
        assert split(*(data[i : i + 1] for i in range(len(data)))) == whole
        if draw is not None:
            cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
            edges = [0, *cuts, len(data)]
            assert split(*(data[a:b] for a, b in pairwise(edges))) == whole
    finally:
        logs.MAX_LINE_BYTES = limit


def test_an_absurd_line_is_broken_for_the_console_and_not_inside_a_character() -> None:
    text = "x" + "€" * MAX_LINE_BYTES  # three bytes each, never aligned with the limit
    pieces = split(text.encode() + b"\nnext\n")
    assert pieces[-1] == "next"
    assert "".join(pieces[:-1]) == text
    assert max(len(piece.encode()) for piece in pieces) <= MAX_LINE_BYTES
    assert len(pieces) - 1 == -(-len(text.encode()) // MAX_LINE_BYTES)


def test_an_endless_line_stays_within_bounds() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        splitter.feed(b"y" * 50_000)
        splitter.feed(b"\r" * 50_000)
        assert len(splitter._held) <= MAX_LINE_BYTES + 1


def worker_log(path: Path) -> tuple[WorkerLog, list[tuple[int, str, str]]]:
    seen: list[tuple[int, str, str]] = []
    return WorkerLog(3, LogFile(path), lambda *line: seen.append(line)), seen


def test_the_log_has_every_byte_and_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "attempt-0" / "worker-3.log"
    log, seen = worker_log(path)
    log.feed("stdout", b"one\ntw")
    log.feed("stderr", b"warning \xff\n")
    log.feed("stdout", b"o\n50%\r100%\n")
    assert path.read_bytes() == b"one\nwarning \xff\ntwo\n50%\r100%\n"
    log.feed("stdout", b"last words")
    log.write_unfinished()
    assert path.read_bytes().endswith(b"100%\nlast words")
    log.flush()
    log.close()
    assert seen == [
        (3, "stdout", "one"),
        (3, "stderr", "warning \ufffd"),
        (3, "stdout", "two"),
        (3, "stdout", "100%"),
        (3, "stdout", "last words"),
    ]


def test_the_last_20_lines_are_kept(tmp_path: Path) -> None:
    log, _ = worker_log(tmp_path / "w.log")
    log.feed("stdout", b"".join(b"line %d\n" % i for i in range(50)))
    log.feed("stderr", b"Traceback\n")
    log.close()
    assert log.tail == (*(f"line {i}" for i in range(31, 50)), "Traceback")


def test_a_full_disk_is_told_once_and_loses_no_line_of_the_console() -> None:
    log, seen = worker_log(Path("/dev/full"))
    log.feed("stdout", b"a\n")
    log.feed("stdout", b"b\n")
    log.close()
    assert seen == [
        (3, "tfmp", "cannot write /dev/full: No space left on device; the run goes on without it"),
        (3, "stdout", "a"),
        (3, "stdout", "b"),
    ]


def test_a_gap_in_the_log_is_marked_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.log"
    file, write = LogFile(path), os.write
    room = 4

    def write_while_room(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        written = write(fd, bytes(data[:room]))
        room -= written
        return written

    monkeypatch.setattr(os, "write", write_while_room)
    assert file.write(b"123456\n") == "No space left on device"
    assert file.write(b"lost\n") == "No space left on device"
    room = 1000
    assert file.write(b"back\n") is None
    monkeypatch.undo()
    file.close()
    mark = b"\n[tfmp: 8 bytes of output are missing here: they could not be written]\n"
    assert path.read_bytes() == b"1234" + mark + b"back\n"


def test_a_log_that_cannot_be_created_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TfmpError) as caught:
        LogFile(tmp_path / "file" / "worker-0.log")
    assert caught.value.where == str(tmp_path / "file" / "worker-0.log")


VALUES = st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=9)), max_size=3)
EVENTS = st.lists(st.builds(UnknownEvent, st.text(max_size=4), VALUES))


@given(EVENTS, st.integers(1, 20))
def test_events_arrive_whole_whatever_the_chunks(events: list[UnknownEvent], size: int) -> None:
    data = b"".join(json.dumps(encode(event)).encode() + b"\n" for event in events)
    reader = EventReader()
    got = [event for i in range(0, len(data), size) for event in reader.feed(data[i : i + size])]
    assert got == events


def test_torn_alien_and_oversized_events_are_dropped() -> None:
    reader = EventReader()
    assert reader.feed(b'{"event": "a"}\nnot json\n[1]\n{"event"') == [UnknownEvent("a")]
    assert reader.feed(b': "b"}\n') == [UnknownEvent("b")]
    for _ in range(MAX_EVENT_BYTES // 2**20 + 1):
        assert reader.feed(b"x" * 2**20) == []
    assert len(reader._held) <= MAX_EVENT_BYTES
    assert reader.feed(b'{"event": "of it"}\n{"event": "c"}\n{"torn') == [UnknownEvent("c")]


def test_a_channel_sends_lines_and_survives_its_reader() -> None:
    read_end, write_end = os.pipe()
    channel = EventChannel(write_end)
    said = UnknownEvent("said", {"text": "two\nlines"})
    channel.send(said)
    channel.send(Ready(2))
    assert EventReader().feed(os.read(read_end, 4096)) == [said, Ready(2)]
    with pytest.raises(TypeError):
        channel.send(UnknownEvent("x", {"value": object()}))
    with pytest.raises(ValueError, match="at most"):
        channel.send(UnknownEvent("x" * MAX_EVENT_BYTES))
    os.close(read_end)
    channel.send(UnknownEvent("nobody hears"))
    os.close(write_end)


@pytest.mark.parametrize("size", [10, ipc.INLINE_LIMIT_BYTES - 30, ipc.INLINE_LIMIT_BYTES, 3_000_000])
def test_messages_of_any_size_carry_their_descriptors(size: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read_end, write_end = os.pipe()
    message = {"payload": "\udcff" + "p" * size}
    with ours, theirs:
        ipc.send(ours, ipc.encode(message, [write_end]))
        received = ipc.receive(theirs)
        assert received is not None
        assert received[0] == message
        (passed,) = received[1]
        assert not os.get_inheritable(passed)
        os.write(passed, b"same pipe")
        assert os.read(read_end, 100) == b"same pipe"
        ours.close()
        assert ipc.receive(theirs) is None
    for fd in (passed, read_end, write_end):
        os.close(fd)


def test_specs_and_exits_say_what_they_are() -> None:
    log = Path("w.log")
    for wrong in ({}, {"argv": ("a",), "target": "m:f"}, {"argv": ()}, {"target": "module.function"}):
        with pytest.raises(ValueError, match="worker 5"):
            WorkerSpec(5, {}, log, **wrong)
    killed = WorkerExit(1, 100, None, 9, "failed")
    assert (killed.describe(), killed.shell_code) == ("signal 9 (SIGKILL)", 137)
    assert WorkerExit(1, 100, 7, None, "failed").shell_code == 7
