"""Messages as bytes, and what two launchers compare: nothing a stranger sends is taken for a message."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.config import RunConfig
from tfmp.ipc import (
    MAX_PAYLOAD_BYTES,
    FrameReader,
    NotOurs,
    decode_payload,
    encode_frame,
    is_proven,
)
from tfmp.rendezvous.identity import Identity, agreed_values, differences, installed_versions
from tfmp.rendezvous.transport import is_http2_settings

_MESSAGES: list[dict[str, Any]] = [
    {"type": "hello", "text": "é" * 100},
    {"type": "beat"},
    {"type": "roll", "here": list(range(64))},
]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 200), max_size=20))
def test_frames_do_not_depend_on_how_the_bytes_were_cut(cuts: list[int]) -> None:
    data = b"".join(encode_frame(message, b"key", b"context") for message in _MESSAGES)
    reader, frames, place = FrameReader(), [], 0
    for cut in [*cuts, len(data)]:
        frames += reader.feed(data[place : place + cut])
        place += cut
    assert [decode_payload(payload) for _, payload in frames] == _MESSAGES
    assert all(is_proven(frame, b"key", b"context") for frame in frames)
    assert reader.held == b""


@pytest.mark.parametrize(("key", "context"), [(b"", b"context"), (b"other", b"context"), (b"key", b"elsewhere")])
def test_a_frame_proves_nothing_under_another_key_or_on_another_connection(key: bytes, context: bytes) -> None:
    (frame,) = FrameReader().feed(encode_frame({"type": "beat"}, b"key", b"context"))
    assert not is_proven(frame, key, context)


def test_a_changed_payload_is_noticed() -> None:
    data = bytearray(encode_frame({"type": "beat", "stopped": False}, b"key", b""))
    data[-2] ^= 1
    assert not is_proven(FrameReader().feed(bytes(data))[0], b"key", b"")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x00",
        b"tfmq",
        b"tfmp" + struct.pack(">I", MAX_PAYLOAD_BYTES + 1) + b"\x00" * 32,
        b"tfmp\xff\xff\xff\xff" + b"\x00" * 32,
    ],
)
def test_strangers_and_overlong_messages_are_refused_from_the_first_wrong_byte(data: bytes) -> None:
    with pytest.raises(NotOurs):
        FrameReader().feed(data)


def test_a_reader_holds_no_more_than_one_frame() -> None:
    reader = FrameReader()
    reader.feed(b"tfmp" + struct.pack(">I", MAX_PAYLOAD_BYTES) + b"\x00" * 32)
    assert reader.feed(b"x" * (MAX_PAYLOAD_BYTES - 1)) == []
    assert len(reader.held) < MAX_PAYLOAD_BYTES + 64


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"type": 1}', b"\xff", b"[" * 100_000, b'{"type": NaN'])
def test_a_payload_that_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(NotOurs):
        decode_payload(payload)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="65536 bytes"):
        encode_frame({"type": "x", "text": "x" * MAX_PAYLOAD_BYTES}, b"", b"")


def test_a_grpc_servers_greeting_is_known() -> None:
    greeting = bytes.fromhex("000018040000000000 0004003fffff00050000ffff 0006".replace(" ", ""))
    assert is_http2_settings(greeting)
    assert not is_http2_settings(greeting[:8])
    assert not is_http2_settings(encode_frame({"type": "beat"}, b"", b""))
    assert not is_http2_settings(b"SSH-2.0-OpenSSH")


def identity(rank: int = 0, **changes: object) -> Identity:
    values = {"cluster.workers": "a:1,b:2", "version of Keras": "3.15", "training.epochs": 5, **changes}
    return Identity(rank, {name: value for name, value in values.items() if value is not None}, "host", 1)


def test_an_identity_survives_the_way() -> None:
    one = replace(identity(3), run="Slurm step 1.0", port=2222)
    assert Identity.from_message(json.loads(json.dumps(one.to_message()))) == one


@pytest.mark.parametrize(
    "change",
    [
        {"rank": True},
        {"rank": "0"},
        {"agreed": []},
        {"host": None},
        {"pid": 1.5},
        {"run": 7},
        {"digest": "0"},
        {"port": ""},
    ],
)
def test_a_malformed_greeting_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(NotOurs):
        Identity.from_message({**identity().to_message(), **change})


def test_what_another_host_says_of_itself_cannot_move_the_terminal() -> None:
    message = replace(identity(), host="\x1b[2Jevil\n\ud800").to_message()
    assert Identity.from_message(message).host == "?[2Jevil??"


def test_differences_name_the_cluster_first_then_versions_then_settings() -> None:
    theirs = identity(
        1, **{"training.epochs": 6, "version of Keras": "3.14", "cluster.workers": "b:2,a:1", "a.new": None}
    )
    ours = identity(0, **{"a.new": [1]})
    found = [(one.name, one.ours, one.theirs) for one in differences(ours, theirs)]
    assert found == [
        ("cluster.workers", "a:1,b:2", "b:2,a:1"),
        ("version of Keras", "3.15", "3.14"),
        ("a.new", "[1]", "-"),
        ("training.epochs", "5", "6"),
    ]
    assert differences(ours, replace(ours, rank=1, host="other", pid=2)) == []


def test_settings_that_change_the_numbers_are_compared_and_each_hosts_own_are_not() -> None:
    values = agreed_values(RunConfig(), "a:1", {"Python": "3.11"}, content_of_the_data="abc")
    assert values["cluster.workers"] == "a:1"
    assert values["version of Python"] == "3.11"
    assert values["content of the data"] == "abc"
    assert (values["training.batch_size"], values["model.units"], values["data.limit_train"]) == (256, [128], None)
    assert {"cluster.collective", "cluster.strategy", "cluster.device"} <= values.keys()
    own = {"cluster.token", "cluster.start_timeout_s", "cluster.threads_per_worker", "data.cache_dir", "data.path"}
    assert not own & values.keys()
    assert not any(name.startswith("run.") for name in values)
    json.dumps(values)


def test_versions_come_from_the_installed_packages() -> None:
    versions = installed_versions()
    assert list(versions) == ["tfmp", "TensorFlow", "Keras", "Python"]
    assert all(version[0].isdigit() for version in versions.values())
    assert versions["Python"].count(".") == 1
