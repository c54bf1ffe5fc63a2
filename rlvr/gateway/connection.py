"""Limits on the time and the size of a request's head, and on the number of parts of its body.

uvicorn has none of them, so clients without a token could hold connections and memory, or the one thread that serves all clients.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 1 << 16
"""The maximum size of a request's head."""
FREE_PARTS, MIN_PART_BYTES = 1000, 64
"""A body may have this many parts, and one more for each so many bytes: parsing a part takes the same time however small it is."""
PEER = struct.Struct("=3i")
Base: Any = H11Protocol


def get_peer(transport: Any) -> tuple[int, int] | None:
    """Return what tells the box of a client at a Unix socket: its user id and its network; None for other clients."""
    channel = transport.get_extra_info("socket")
    if channel is None or channel.family != socket.AF_UNIX:
        return None
    pid, uid, _ = PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    try:
        return uid, os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended, or is another user's
        return uid, 0


def make_protocol_class(head_timeout_s: float, max_peer_connections: int = 0) -> Any:
    """Make uvicorn's HTTP protocol class with limits on a request's head and on the parts of its body, and on the connections of a box.

    The class is for `uvicorn.Config(http=...)`. Connections at a Unix socket beyond `max_peer_connections` of one box are closed at once.

    >>> make_protocol_class(30.0).__name__
    'Patient'
    """
    open_connections: Counter[Any] = Counter()

    class Patient(Base):  # type: ignore[misc]
        """A connection that is closed if no request head arrives in time, the head is too long, or the body comes in too many parts."""

        timer: asyncio.TimerHandle | None = None
        peer: tuple[int, int] | None = None
        heard = num_parts = num_part_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.peer = get_peer(transport) if max_peer_connections else None
            if self.peer is not None:
                open_connections[self.peer] += 1
                if open_connections[self.peer] > max_peer_connections:
                    transport.abort()
            self._next_event, self.conn.next_event = self.conn.next_event, self._read_event
            self._wait()

        def _read_event(self) -> Any:
            """Read the next event of the parser; refuse a body in too many parts, also one that is read only to be discarded."""
            event = self._next_event()
            if isinstance(event, h11.Request):
                self.num_parts = self.num_part_bytes = 0
            elif isinstance(event, h11.Data):
                self.num_parts += 1
                self.num_part_bytes += len(event.data)
                if self.num_parts > FREE_PARTS + self.num_part_bytes // MIN_PART_BYTES:
                    raise h11.RemoteProtocolError("the body comes in too many parts")
            return event

        def send_400_response(self, msg: str) -> None:
            """Refuse what is not HTTP, and close the connection; a reply that has begun, or is still to come, is given up."""
            if self.cycle is not None:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.close()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()
                return
            if self.cycle is None or not self.cycle.more_body:  # otherwise the data is the rest of a rejected body, read to its end
                self.heard += len(data)
            if self.heard > MAX_HEAD_BYTES:
                self.transport.close()
            elif self.timer is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._rest()
            if self.peer is not None:
                open_connections[self.peer] -= 1
                if not open_connections[self.peer]:
                    del open_connections[self.peer]

        def _wait(self) -> None:
            self.timer = asyncio.get_running_loop().call_later(head_timeout_s, self._late)

        def _rest(self) -> None:
            self.heard = 0
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _late(self) -> None:
            self.timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Patient
