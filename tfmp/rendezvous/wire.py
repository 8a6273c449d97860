"""Messages between launchers as bytes: framed JSON, limited in length, each with a proof of the shared secret.

A frame is the mark ``tfmp``, the payload's length (4 bytes, big endian), 32 bytes of HMAC-SHA256 and the payload. The
secret (``cluster.token``) itself never travels. The proof covers the dialling side's nonce and the direction, so that
a frame of one connection is worth nothing on another; it is no encryption.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from typing import Any

MARK = b"tfmp"
MAX_PAYLOAD_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_PROOF_BYTES = 32
_HEADER_BYTES = len(MARK) + _LENGTH.size + _PROOF_BYTES
_HTTP2_FRAME_HEADER_BYTES = 9
_SETTINGS_ON_STREAM_0 = bytes([4, 0, 0, 0, 0, 0])

Frame = tuple[bytes, bytes]
"""Proof and payload, unchecked."""


class NotOurs(Exception):
    """The other end does not speak this protocol, or breaks it."""


class FrameReader:
    """Puts received chunks together to frames. Holds at most one frame's bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def held(self) -> bytes:
        """Bytes of a frame that is not complete."""
        return bytes(self._held)

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes; return the frames they complete.

        Raises:
            NotOurs: The bytes are no frame, or one longer than allowed.
        """
        self._held += data
        frames: list[Frame] = []
        while self._held:
            if not self._held.startswith(MARK[: len(self._held)]):
                raise NotOurs("bytes that are no message of tfmp")
            if len(self._held) < _HEADER_BYTES:
                break
            (length,) = _LENGTH.unpack_from(self._held, len(MARK))
            if length > MAX_PAYLOAD_BYTES:
                raise NotOurs(f"a message of {length:,} bytes, more than the {MAX_PAYLOAD_BYTES:,} allowed")
            end = _HEADER_BYTES + length
            if len(self._held) < end:
                break
            proof = bytes(self._held[_HEADER_BYTES - _PROOF_BYTES : _HEADER_BYTES])
            frames.append((proof, bytes(self._held[_HEADER_BYTES:end])))
            del self._held[:end]
        return frames


def encode_frame(message: Mapping[str, Any], key: bytes, context: bytes) -> bytes:
    """Return a message as a frame.

    Args:
        message: JSON values; at most 64 KiB when encoded.
        key: The shared secret; empty for none.
        context: What the proof covers beside the payload.

    Raises:
        ValueError: Too long.
    """
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"expected a message of at most {MAX_PAYLOAD_BYTES} bytes, received {len(payload)}")
    return MARK + _LENGTH.pack(len(payload)) + prove(payload, key, context) + payload


def prove(payload: bytes, key: bytes, context: bytes) -> bytes:
    """Return the proof that the sender of ``payload`` has the shared secret: 32 bytes."""
    return hmac.new(key, len(context).to_bytes(2, "big") + context + payload, hashlib.sha256).digest()


def is_proven(frame: Frame, key: bytes, context: bytes) -> bool:
    """Whether the sender of a frame has the shared secret; takes the same time for every wrong proof."""
    return hmac.compare_digest(frame[0], prove(frame[1], key, context))


def decode_payload(payload: bytes) -> dict[str, Any]:
    """Return a frame's message.

    Raises:
        NotOurs: It is no JSON object with a ``type``.
    """
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise NotOurs("a message that is no JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise NotOurs("a message without a type")
    return message


def is_http2_settings(data: bytes) -> bool:
    """Whether bytes begin with the empty-stream SETTINGS frame that a gRPC server, as TensorFlow's, greets with.

    The frame header (RFC 9113, section 4.1) is 3 bytes of length, 1 of type, 1 of flags and 4 of stream number.
    """
    header = data[:_HTTP2_FRAME_HEADER_BYTES]
    return len(header) == _HTTP2_FRAME_HEADER_BYTES and header[0] == 0 and header[3:] == _SETTINGS_ON_STREAM_0
