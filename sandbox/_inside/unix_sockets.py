"""Measure what waits in the sockets of programs: memory of the kernel that no process shows and no limit of a process bounds.

The kernel lists the sockets of a network namespace over a socket of its own kind, which the supervisor opens before its filter forbids
that. Programs have Unix sockets only. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

SOCK_DIAG_PROTOCOL, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, DONE, ERROR = 4, 20, 0x301, 3, 2
SHOW_QUEUES, SHOW_MEMORY, QUEUES, MEMORY = 0x10, 0x20, 4, 5
HEADER, REQUEST, REPLY, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), struct.Struct("=BBBBIII"), struct.Struct("=HH")
DATAGRAM_QUEUE_BYTES = 2 << 20
"""The most that waits in one datagram socket: ten messages. Their senders may be gone, and the kernel shows the length of the first."""
MIN_SOCKETS, TIMEOUT_S, INTERVAL_S = 64, 2.0, 0.02


class UnixSocketMeter:
    """Meter of the Unix sockets of this network namespace."""

    def __init__(self) -> None:
        """Open the socket for the questions. Raises OSError where the kernel does not answer them."""
        self._channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG_PROTOCOL)
        self._channel.settimeout(TIMEOUT_S)
        self._measured_at, self._bytes, self._serial = 0.0, 0, 0
        self._measure()

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()

    def get_bytes(self) -> int:
        """Return the bytes that wait in the sockets; 0 while there are few of them, which is cheap to know."""
        if _count_sockets() < MIN_SOCKETS:
            return 0
        if time.monotonic() - self._measured_at > INTERVAL_S:
            with contextlib.suppress(OSError):
                self._bytes = self._measure()
            self._measured_at = time.monotonic()
        return self._bytes

    def _measure(self) -> int:
        self._serial += 1
        asked = REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_QUEUES | SHOW_MEMORY, 0, 0)
        self._channel.send(HEADER.pack(HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, self._serial, 0) + asked)
        total = 0
        while True:
            data = self._channel.recv(1 << 18)
            for kind, serial, start, end in _split_messages(data):
                if serial != self._serial:
                    continue  # of a question whose reply came too late
                if kind == ERROR:
                    raise OSError(-struct.unpack_from("=i", data, start)[0], "the sockets cannot be listed")
                if kind == DONE:
                    return total
                total += _measure_socket(data, start, end)


def open_meter() -> UnixSocketMeter | None:
    """Open a meter; None where the kernel has no such lists."""
    with contextlib.suppress(OSError):
        return UnixSocketMeter()
    return None


def _split_messages(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, _, serial, _ = HEADER.unpack_from(data, at)
        yield kind, serial, at + HEADER.size, at + length
        at += (max(length, HEADER.size) + 3) & ~3


def _measure_socket(data: bytes, start: int, end: int) -> int:
    kind, at, sent, waiting = data[start + 1], start + REPLY.size, 0, 0
    while at + ATTRIBUTE.size <= end:
        length, name = ATTRIBUTE.unpack_from(data, at)
        if name == MEMORY:
            sent = struct.unpack_from("=3I", data, at + ATTRIBUTE.size)[2]
        elif name == QUEUES:
            waiting = struct.unpack_from("=I", data, at + ATTRIBUTE.size)[0]
        at += (max(length, ATTRIBUTE.size) + 3) & ~3
    if kind == socket.SOCK_DGRAM:
        return max(sent, DATAGRAM_QUEUE_BYTES if waiting else 0)
    return max(sent, waiting)


def _count_sockets() -> int:
    """Return how many sockets this network namespace has."""
    try:
        with open("/proc/self/net/sockstat", "rb", 0) as file:
            return int(file.readline().split()[2])
    except (OSError, IndexError, ValueError):
        return MIN_SOCKETS
