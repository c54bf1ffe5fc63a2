"""Detect at once that another process exited, with every backend.

gloo raises an error when a connection closes. NCCL waits until its own timeout, and then kills the process without a message. So each
process keeps an idle TCP connection to the main process. The operating system closes it when a process ends, even by `kill -9`; TCP
keepalive detects the loss of a machine. Busy processes are not mistaken for lost ones.

When another process is lost:
    first            wait, because the backend may raise an error itself (`GRACE_S`)
    then             raise an error in the training thread, which closes the run's resources (`SHUTDOWN_TIMEOUT_S`)
    finally          exit with a message, if the process hangs in its backend
"""

from __future__ import annotations

import ctypes
import hmac
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from torch import distributed

from rlvr.errors import RlvrError
from rlvr.learn.peers.group import broadcast, control, gather

GRACE_S, CLOSING_S = 5.0, 30.0
POLL_S = 0.2
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}
"""TCP keepalive options: a machine that does not answer for a minute is lost."""
TOKEN = 16
"""The length of the token that authenticates a peer; it is broadcast through the process group."""


class PeerLost(RlvrError):
    """Another process of the run is lost; raised in the training thread if the backend did not raise an error."""

    words = ""
    """The message; a class attribute, because an asynchronous exception is raised as a class, without arguments."""

    def __str__(self) -> str:
        return self.words


class Watch:
    """Monitors the connections to the other processes: to all in the main process, to the main process in the others.

    >>> with Watch.begin() as watch:                                    # doctest: +SKIP
    ...     watch.lost
    ''
    """

    def __init__(self, rank: int, count: int, peers: dict[int, socket.socket]) -> None:
        self.rank, self.count, self.peers = rank, count, peers
        self.lost = ""
        """A description of the lost process; empty if there is none."""
        self.thread = threading.get_ident()
        """The id of the training thread."""
        self._found, self._left, self._turn = threading.Event(), threading.Event(), threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._watcher.start()

    @classmethod
    def begin(cls, timeout_s: float = 60.0) -> Watch | None:
        """Connect all processes, as a collective operation. Returns None with one process, or if a connection fails."""
        if control() is None:
            return None
        rank, count = distributed.get_rank(), distributed.get_world_size()
        peers = _accepted(count, timeout_s) if rank == 0 else _connected(rank, timeout_s)
        if all(gather(peers is not None)) and peers is not None:
            return cls(rank, count, peers)
        _close(peers or {})
        return None

    def told(self, timeout_s: float = 1.0) -> str:
        """Wait briefly for the description of the lost process, because a backend error may be detected first."""
        self._found.wait(timeout_s)
        return self.lost

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._turn:  # no asynchronous error is raised after this
            self._left.set()
        self._watcher.join(10 * POLL_S)
        self._say({"ended": True} if kind is None else {"failed": " ".join(f"{kind.__name__}: {error}".split())[:300]})
        _close(self.peers)

    # ---- the monitor thread ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Read messages of the other processes until this process exits or one of them is lost."""
        waiting, rest = selectors.DefaultSelector(), dict.fromkeys(self.peers, b"")
        for rank, peer in self.peers.items():
            waiting.register(peer, selectors.EVENT_READ, rank)
        with waiting:
            while not self._left.is_set() and not self.lost:
                for key, _ in waiting.select(POLL_S):
                    try:
                        data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                    except OSError:  # reset, or no answer to the probes
                        data = b""
                    *lines, rest[key.data] = (rest[key.data] + data).split(b"\n")
                    said = [json.loads(line) for line in lines]
                    if any("ended" in line for line in said):
                        waiting.unregister(key.fileobj)
                    elif words := self._trouble(key.data, said, closed=not data):
                        self.lost = self.lost or words
        if self.lost:
            self._say({"lost": self.lost})
            self._found.set()
            self._end()

    def _trouble(self, rank: int, said: list[dict[str, str]], *, closed: bool) -> str:
        """Return a description of the failure that a process reported, or that its closed connection implies."""
        for line in said:
            if "lost" in line:
                return line["lost"]
            if "failed" in line:
                return f"process {rank} failed: {line['failed']}"
        return f"process {rank} ended without a word, as if killed" if closed else ""

    def _end(self) -> None:
        """Raise PeerLost in the training thread; exit the process if that has no effect."""
        if self._left.wait(GRACE_S):
            return
        PeerLost.words = self.words()
        with self._turn:
            if not self._left.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(PeerLost))
        if not self._left.wait(CLOSING_S - GRACE_S):
            print(f"error: {self.words()}", file=sys.stderr, flush=True)
            os._exit(RlvrError.exit_code)

    def words(self) -> str:
        """Format the error message for the user."""
        return (
            f"process {self.rank} of {self.count} waited for another process that exited or did not answer: {self.lost}; "
            "see its message, then continue with --resume"
        )

    def _say(self, line: dict[str, Any]) -> None:
        for peer in self.peers.values():
            with suppress(OSError):
                peer.sendall(json.dumps(line).encode() + b"\n")


def _accepted(count: int, timeout_s: float) -> dict[int, socket.socket] | None:
    """Accept the connections of all other processes, in the main process; close those without the right token."""
    token, until, peers = secrets.token_hex(TOKEN), time.monotonic() + timeout_s, dict[int, socket.socket]()
    with socket.create_server(("", 0)) as server:
        broadcast((server.getsockname()[1], token))
        while len(peers) < count - 1:
            server.settimeout(max(0.01, until - time.monotonic()))
            try:
                peer, _ = server.accept()
            except TimeoutError:
                _close(peers)
                return None
            said: dict[str, Any] = {}
            try:
                peer.settimeout(5.0)
                said = _line(peer)
                known = hmac.compare_digest(str(said["token"]), token) and said["rank"] in range(1, count)
            except (OSError, ValueError, KeyError, TypeError):
                known = False
            if known:
                peers[said["rank"]] = kept(peer)
            else:
                peer.close()
    return peers


def _connected(rank: int, timeout_s: float) -> dict[int, socket.socket] | None:
    """Connect to the main process."""
    told: tuple[int, str] = broadcast(None)
    try:
        peer = socket.create_connection((os.environ.get("MASTER_ADDR", "127.0.0.1"), told[0]), timeout=timeout_s)
        peer.sendall(json.dumps({"rank": rank, "token": told[1]}).encode() + b"\n")
    except OSError:
        return None
    return {0: kept(peer)}


def _line(peer: socket.socket) -> dict[str, Any]:
    """Read the first line that a process sends."""
    data = b""
    while not data.endswith(b"\n") and len(data) < 1024:
        if not (more := peer.recv(1)):
            break
        data += more
    said: dict[str, Any] = json.loads(data)
    return said


def _close(peers: dict[int, socket.socket]) -> None:
    for peer in peers.values():
        peer.close()


def kept(peer: socket.socket) -> socket.socket:
    """Enable TCP keepalive on a connection."""
    peer.settimeout(5.0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # some systems lack them, and then probe after hours
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return peer
