"""Messages between the trainer and an engine's process: a length in four bytes, then JSON. Nothing is unpickled on either side."""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

LENGTH_STRUCT = struct.Struct("!I")
MAX_MESSAGE_BYTES = 1 << 28
"""Longest message that is read; a longer announced length means a broken protocol."""


class MessageSocket:
    """One end of a socket pair. Any thread may send; one thread receives.

    >>> ours, theirs = map(MessageSocket, socket.socketpair())
    >>> ours.send({"do": "score", "tokens": [1, 2]}); theirs.receive()
    {'do': 'score', 'tokens': [1, 2]}
    >>> ours.close(); theirs.close()
    """

    def __init__(self, sock: socket.socket, *, send_timeout_s: float | None = None) -> None:
        """Wrap a socket. `send_timeout_s`: timeout for the other end to read a message."""
        self.sock, self._lock = sock, threading.Lock()
        if send_timeout_s is not None:
            seconds, rest = divmod(send_timeout_s, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; OSError if the other end is gone or does not read."""
        data = json.dumps(message).encode()
        with self._lock:
            self.sock.sendall(LENGTH_STRUCT.pack(len(data)) + data)

    def receive(self) -> dict[str, Any] | None:
        """Receive the next message; None if the other end is gone or sends invalid data."""
        head = self._receive_exactly(LENGTH_STRUCT.size)
        length = MAX_MESSAGE_BYTES + 1 if head is None else LENGTH_STRUCT.unpack(head)[0]
        data = self._receive_exactly(length) if length <= MAX_MESSAGE_BYTES else None
        try:
            message = None if data is None else json.loads(data)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """Close this end: the other end receives None, and so does a thread that is receiving here."""
        with suppress(OSError):  # the other end closed first
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _receive_exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.sock.recv(min(count - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
