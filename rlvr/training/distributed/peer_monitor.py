"""Detect at once that another process exited, with every backend.

gloo raises an error when a connection closes. NCCL waits until its own timeout, and then kills the process without a message. So each
process keeps an idle TCP connection to the main process. The operating system closes it when a process ends, even by `kill -9`; TCP
keepalive detects the loss of a machine. Busy processes are not mistaken for lost ones.

When another process is lost:
    first            wait, because the backend may raise an error itself (`SDK_GRACE_S`)
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
from rlvr.training.distributed.group import all_gather_values, broadcast, get_control_group

GRACE_S, SHUTDOWN_TIMEOUT_S = 5.0, 30.0
POLL_INTERVAL_S = 0.2
KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}
"""TCP keepalive options: a machine that does not answer for a minute is lost."""
TOKEN_BYTES = 16
"""The length of the token that authenticates a peer; it is broadcast through the process group."""


class PeerLost(RlvrError):
    """Another process of the run is lost; raised in the training thread if the backend did not raise an error."""

    message = ""
    """The message; a class attribute, because an asynchronous exception is raised as a class, without arguments."""

    def __str__(self) -> str:
        return self.message


class PeerMonitor:
    """Monitors the connections to the other processes: to all in the main process, to the main process in the others.

    >>> with PeerMonitor.connect_all() as monitor:  # doctest: +SKIP
    ...     monitor.failure
    ''
    """

    def __init__(self, rank: int, count: int, peers: dict[int, socket.socket]) -> None:
        self.rank, self.count, self.peers = rank, count, peers
        self.failure = ""
        """A description of the lost process; empty if there is none."""
        self.training_thread_id = threading.get_ident()
        """The id of the training thread."""
        self._failure_event, self._exit_event, self._raise_lock = threading.Event(), threading.Event(), threading.Lock()
        self._watcher = threading.Thread(target=self._run, name="peers", daemon=True)
        self._watcher.start()

    @classmethod
    def connect_all(cls, timeout_s: float = 60.0) -> PeerMonitor | None:
        """Connect all processes, as a collective operation. Returns None with one process, or if a connection fails."""
        if get_control_group() is None:
            return None
        rank, count = distributed.get_rank(), distributed.get_world_size()
        peers = _accept_peers(count, timeout_s) if rank == 0 else _connect_to_main(rank, timeout_s)
        if all(all_gather_values(peers is not None)) and peers is not None:
            return cls(rank, count, peers)
        _close_all(peers or {})
        return None

    def wait_for_failure(self, timeout_s: float = 1.0) -> str:
        """Wait briefly for the description of the lost process, because a backend error may be detected first."""
        self._failure_event.wait(timeout_s)
        return self.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._raise_lock:  # no asynchronous error is raised after this
            self._exit_event.set()
        self._watcher.join(10 * POLL_INTERVAL_S)
        self._send_to_peers({"ended": True} if kind is None else {"failed": " ".join(f"{kind.__name__}: {error}".split())[:300]})
        _close_all(self.peers)

    # ---- the monitor thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Read messages of the other processes until this process exits or one of them is lost."""
        waiting, rest = selectors.DefaultSelector(), dict.fromkeys(self.peers, b"")
        for rank, peer in self.peers.items():
            waiting.register(peer, selectors.EVENT_READ, rank)
        with waiting:
            while not self._exit_event.is_set() and not self.failure:
                for key, _ in waiting.select(POLL_INTERVAL_S):
                    try:
                        data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                    except OSError:  # reset, or no answer to the probes
                        data = b""
                    *lines, rest[key.data] = (rest[key.data] + data).split(b"\n")
                    said = [json.loads(line) for line in lines]
                    if any("ended" in line for line in said):
                        waiting.unregister(key.fileobj)
                    elif words := self._describe_failure(key.data, said, is_closed=not data):
                        self.failure = self.failure or words
        if self.failure:
            self._send_to_peers({"lost": self.failure})
            self._failure_event.set()
            self._interrupt_training_thread()

    def _describe_failure(self, rank: int, messages: list[dict[str, str]], *, is_closed: bool) -> str:
        """Return a description of the failure that a process reported, or that its closed connection implies."""
        for line in messages:
            if "lost" in line:
                return line["lost"]
            if "failed" in line:
                return f"process {rank} failed: {line['failed']}"
        return f"process {rank} ended without a word, as if killed" if is_closed else ""

    def _interrupt_training_thread(self) -> None:
        """Raise PeerLost in the training thread; exit the process if that has no effect."""
        if self._exit_event.wait(GRACE_S):
            return
        PeerLost.message = self.format_error()
        with self._raise_lock:
            if not self._exit_event.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.training_thread_id), ctypes.py_object(PeerLost))
        if not self._exit_event.wait(SHUTDOWN_TIMEOUT_S - GRACE_S):
            print(f"error: {self.format_error()}", file=sys.stderr, flush=True)
            os._exit(RlvrError.exit_code)

    def format_error(self) -> str:
        """Format the error message for the user."""
        return (
            f"process {self.rank} of {self.count} waited for another process that exited or did not answer: {self.failure}; "
            "see its message, then continue with --resume"
        )

    def _send_to_peers(self, message: dict[str, Any]) -> None:
        for peer in self.peers.values():
            with suppress(OSError):
                peer.sendall(json.dumps(message).encode() + b"\n")


def _accept_peers(count: int, timeout_s: float) -> dict[int, socket.socket] | None:
    """Accept the connections of all other processes, in the main process; close those without the right token."""
    token, until, peers = secrets.token_hex(TOKEN_BYTES), time.monotonic() + timeout_s, dict[int, socket.socket]()
    with socket.create_server(("", 0)) as server:
        broadcast((server.getsockname()[1], token))
        while len(peers) < count - 1:
            server.settimeout(max(0.01, until - time.monotonic()))
            try:
                peer, _ = server.accept()
            except TimeoutError:
                _close_all(peers)
                return None
            said: dict[str, Any] = {}
            try:
                peer.settimeout(5.0)
                said = _read_line(peer)
                known = hmac.compare_digest(str(said["token"]), token) and said["rank"] in range(1, count)
            except (OSError, ValueError, KeyError, TypeError):
                known = False
            if known:
                peers[said["rank"]] = _enable_keepalive(peer)
            else:
                peer.close()
    return peers


def _connect_to_main(rank: int, timeout_s: float) -> dict[int, socket.socket] | None:
    """Connect to the main process."""
    told: tuple[int, str] = broadcast(None)
    try:
        peer = socket.create_connection((os.environ.get("MASTER_ADDR", "127.0.0.1"), told[0]), timeout=timeout_s)
        peer.sendall(json.dumps({"rank": rank, "token": told[1]}).encode() + b"\n")
    except OSError:
        return None
    return {0: _enable_keepalive(peer)}


def _read_line(peer: socket.socket) -> dict[str, Any]:
    """Read the first line that a process sends."""
    data = b""
    while not data.endswith(b"\n") and len(data) < 1024:
        if not (more := peer.recv(1)):
            break
        data += more
    said: dict[str, Any] = json.loads(data)
    return said


def _close_all(peers: dict[int, socket.socket]) -> None:
    for peer in peers.values():
        peer.close()


def _enable_keepalive(peer: socket.socket) -> socket.socket:
    """Enable TCP keepalive on a connection."""
    peer.settimeout(5.0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):  # some systems lack them, and then probe after hours
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return peer
