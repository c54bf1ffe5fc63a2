"""Wire format between a sandbox and its supervisor: two lengths, a JSON header, then named parts as raw bytes.

Both ends use this file; nothing received is ever unpickled or evaluated. Runs inside the container too: standard library only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

FRAME_HEADER = struct.Struct(">II")
MAX_FRAME_BYTES, MAX_JOINED_BYTES = 1 << 30, 1 << 16


class ConnectionBroken(Exception):
    """Raised when the stream ended, a peer did not reply in time, or the received bytes are not a frame."""


def pack_frame(header: Mapping[str, Any], parts: Mapping[str, bytes]) -> list[bytes]:
    r"""Serialize a frame into the chunks to send: one chunk if it is small; large parts are not copied, to save memory.

    >>> pack_frame({}, {})
    [b'\x00\x00\x00\r\x00\x00\x00\x00{"parts": []}']
    """
    head = json.dumps({**header, "parts": [[name, len(data)] for name, data in parts.items()]}).encode()
    size = sum(map(len, parts.values()))
    pieces = [FRAME_HEADER.pack(len(head), size) + head, *parts.values()]
    return pieces if size > MAX_JOINED_BYTES else [b"".join(pieces)]


def unpack_frame(read_exactly: Callable[[int], bytes | bytearray]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read the next frame with `read_exactly`, a function that reads the given number of bytes or raises `ConnectionBroken`."""
    header_length, blob_length = FRAME_HEADER.unpack(read_exactly(FRAME_HEADER.size))
    if header_length > MAX_FRAME_BYTES or blob_length > MAX_FRAME_BYTES:
        raise ConnectionBroken(f"a frame of {header_length} and {blob_length} bytes")
    header: dict[str, Any] = json.loads(read_exactly(header_length))
    blob, at, parts = memoryview(read_exactly(blob_length)), 0, {}
    for name, length in header.pop("parts", []):
        parts[name] = bytes(blob[at : at + length])
        at += length
    return header, parts
