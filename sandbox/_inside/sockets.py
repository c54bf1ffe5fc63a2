"""Measure what waits in the sockets of programs: memory of the kernel that no process shows and no limit of a process bounds.

The kernel lists the sockets of a network namespace over a socket of its own kind, which the supervisor opens before its filter forbids
that. Programs have Unix sockets, and those of TCP where they have a loopback network. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

SOCK_DIAG_PROTOCOL, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, DONE, ERROR = 4, 20, 0x301, 3, 2
SHOW_QUEUES, SHOW_MEMORY, QUEUES, MEMORY = 0x10, 0x20, 4, 5
HEADER, REQUEST, REPLY, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), struct.Struct("=BBBBIII"), struct.Struct("=HH")
TCP_REQUEST, TCP_REPLY_BYTES, TCP_MEMORY = struct.Struct("=BBBBI48x"), 72, 7
DATAGRAM_QUEUE_BYTES = 2 << 20
"""The most that waits in one datagram socket: ten messages. Their senders may be gone, and the kernel shows the length of the first."""
MIN_SOCKETS, MIN_SOCKETS_WITH_TCP, TIMEOUT_S, INTERVAL_S = 64, 8, 2.0, 0.02
"""Fewer sockets than the first are not measured: a Unix socket holds 200 kB, and one of TCP up to 40 MB."""


class SocketMeter:
    """Meter of the sockets of this network namespace: those of Unix, those of TCP, or both."""

    def __init__(self, *, has_unix: bool, has_tcp: bool) -> None:
        """Open the socket for the questions. Raises OSError where the kernel does not answer them."""
        self._channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG_PROTOCOL)
        self._channel.settimeout(TIMEOUT_S)
        self._measured_at, self._bytes, self._serial = 0.0, 0, 0
        self._requests: list[tuple[bytes, Callable[[bytes, int, int], int]]] = []
        if has_unix:
            unix = REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_QUEUES | SHOW_MEMORY, 0, 0)
            self._requests.append((unix, _measure_unix_socket))
        for family in (socket.AF_INET, socket.AF_INET6) if has_tcp else ():
            tcp = TCP_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (TCP_MEMORY - 1), 0, 0xFFFFFFFF)
            self._requests.append((tcp, _measure_tcp_socket))
        self._min_sockets = MIN_SOCKETS_WITH_TCP if has_tcp else MIN_SOCKETS
        self._measure()

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()

    def get_bytes(self) -> int:
        """Return the bytes that wait in the sockets; 0 while there are few of them, which is cheap to know."""
        if _count_sockets() < self._min_sockets:
            return 0
        if time.monotonic() - self._measured_at > INTERVAL_S:
            with contextlib.suppress(OSError):
                self._bytes = self._measure()
            self._measured_at = time.monotonic()
        return self._bytes

    def _measure(self) -> int:
        return sum(self._list_sockets(asked, measure) for asked, measure in self._requests)

    def _list_sockets(self, asked: bytes, measure: Callable[[bytes, int, int], int]) -> int:
        self._serial += 1
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
                total += measure(data, start, end)


def open_meter(*, has_unix: bool = True, has_tcp: bool = False) -> SocketMeter | None:
    """Open a meter; None where the kernel has no such lists."""
    with contextlib.suppress(OSError):
        return SocketMeter(has_unix=has_unix, has_tcp=has_tcp)
    return None


def _split_messages(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, _, serial, _ = HEADER.unpack_from(data, at)
        yield kind, serial, at + HEADER.size, at + length
        at += (max(length, HEADER.size) + 3) & ~3


def _read_attributes(data: bytes, at: int, end: int) -> dict[int, int]:
    """Return where each attribute of a message begins, by its name."""
    found = {}
    while at + ATTRIBUTE.size <= end:
        length, name = ATTRIBUTE.unpack_from(data, at)
        found[name] = at + ATTRIBUTE.size
        at += (max(length, ATTRIBUTE.size) + 3) & ~3
    return found


def _measure_unix_socket(data: bytes, start: int, end: int) -> int:
    found = _read_attributes(data, start + REPLY.size, end)
    sent = struct.unpack_from("=3I", data, found[MEMORY])[2] if MEMORY in found else 0
    waiting = struct.unpack_from("=I", data, found[QUEUES])[0] if QUEUES in found else 0
    if data[start + 1] == socket.SOCK_DGRAM:
        return max(sent, DATAGRAM_QUEUE_BYTES if waiting else 0)
    return max(sent, waiting)


def _measure_tcp_socket(data: bytes, start: int, end: int) -> int:
    found = _read_attributes(data, start + TCP_REPLY_BYTES, end)
    if TCP_MEMORY not in found:
        return 0
    received, _, _, _, reserved, queued = struct.unpack_from("=6I", data, found[TCP_MEMORY])
    return received + reserved + queued


def _count_sockets() -> int:
    """Return how many sockets this network namespace has."""
    try:
        with open("/proc/self/net/sockstat", "rb", 0) as file:
            return int(file.readline().split()[2])
    except (OSError, IndexError, ValueError):
        return MIN_SOCKETS  # then they are measured
