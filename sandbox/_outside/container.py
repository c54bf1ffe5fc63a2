"""A hardened container with a supervisor in it, and the stream to the supervisor.

The supervisor is root *inside*, with few capabilities: SETUID and SETGID to run every program as another user, KILL to end them. It needs
no more: it owns the folders that programs write to, and it reads no file of a program. SETPCAP clears the bounding set before the first
program runs. CAP_SYS_ADMIN is added if each program gets its own PID namespace; the zygote and the namespace helper keep it, which read no
data of a program, and the supervisor drops it. A container for sessions has it only while the supervisor starts, to create the
control groups of its calls. Programs run as users without any capability. The container ends when our end of its standard input
closes, so a killed run leaves nothing running.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from docker.types import Mount, Ulimit

from rlvr.errors import SandboxError
from rlvr.runs.folder_owner import get_owner_label
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._inside.toolchains import MAX_BINARY_MB
from rlvr.sandbox._outside import engine
from rlvr.sandbox._outside.engine import LABEL, check_reachable, connect, remove_container, wrap_engine_errors
from rlvr.sandbox._outside.supervisor_connection import BOOTSTRAP_COMMAND, SupervisorConnection, wait_readable

OVERHEAD_MB = 96 + 2 * MAX_BINARY_MB  # the supervisor, the zygote, the output being collected, cached binaries
OWNER_EXITED_MESSAGE = "the owner exited"  # the supervisor's message when the engine closes its input
REMOVE_TIMEOUT_S = 20  # timeout for the engine to remove a container
RUNTIME_THREADS, RUNTIME_MB = 2048, 1024
"""What the control group may count besides our processes under a runtime that was chosen: gVisor's kernel is a process in it, with a thread
and some megabytes for each of theirs. The supervisor limits the programs as everywhere."""
CLOSED_DISKS = {place: "ro,nosuid,nodev,noexec,mode=0755,size=64k" for place in ("/run", "/var/tmp")}
"""Podman makes these writable in a read-only container, and a program would find there what the one before it left."""
WEAK_ENGINE_HINT = (
    "without root an engine needs control groups of version 2 that were delegated to its user; use the engine of root, or "
    "sandbox=bubblewrap, which limits each program by itself"
)
STREAM_HEADER = struct.Struct(">BxxxI")


def _compute_memory_mb(memory_mb: int, runtime: str | None) -> int:
    """Return the memory limit of a container whose programs may have `memory_mb`."""
    return memory_mb + OVERHEAD_MB + (RUNTIME_MB if runtime else 0)


def build_host_config(
    memory_mb: int,
    disk_mb: int,
    pids: int,
    runtime: str | None,
    uses_pid_namespaces: bool = False,
    serves_sessions: bool = False,
    is_podman: bool = False,
    mounts: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Build the host configuration of a container: the limits that the engine enforces from outside.

    Podman cannot limit the inodes of a disk. So the supervisor mounts the disks again, for which it has SYS_ADMIN while it starts.
    """
    tmpfs = f"nosuid,nodev,mode=0700,size={disk_mb}m{'' if is_podman else ',nr_inodes=4096'}"
    memory = f"{_compute_memory_mb(memory_mb, runtime)}m"
    has_to_mount = uses_pid_namespaces or serves_sessions or is_podman
    return {
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {"/tmp": f"rw,exec,{tmpfs}", "/dev/shm": f"rw,noexec,{tmpfs}"} | (CLOSED_DISKS if is_podman else {}),
        "mem_limit": memory,
        "memswap_limit": memory,  # equal to mem_limit: no swap
        "pids_limit": pids + (RUNTIME_THREADS if runtime else 0),
        "cap_drop": ["ALL"],
        "cap_add": ["SETUID", "SETGID", "KILL", "SETPCAP", *(["SYS_ADMIN"] if has_to_mount else [])],
        "security_opt": ["no-new-privileges"],  # the engine's own seccomp profile stays on; ours comes on top
        "ipc_mode": "none",
        "auto_remove": True,
        "log_config": {"type": "none", "config": {}},
        # the last: Podman would ask for as many as the kernel knows, which fails where its own limit may not be raised
        "ulimits": [Ulimit(name=name, soft=value, hard=value) for name, value in (("core", 1), ("nofile", 1024), ("nproc", 16384))],
        "runtime": runtime,
        "mounts": [Mount(place, source, type="bind", read_only=True) for place, source in mounts.items()],
    }


def find_missing_isolation(handshake: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a container, by what its supervisor read from the kernel.

    >>> find_missing_isolation({"isolation": ["no network", "read-only root", "process count limited"], "writable": []})
    ['no limit of memory']
    """
    held = handshake["isolation"]
    wrong = [] if any(line.startswith("process count limited") for line in held) else ["no limit of processes"]
    wrong += [] if "memory limited" in held else ["no limit of memory"]
    wrong += [text for line, text in (("no network", "a network"), ("read-only root", "a root that can be written to")) if line not in held]
    return wrong + [f"the folder {place}, which every program may write to" for place in handshake["writable"]]


class Container(SupervisorConnection):
    """A started container, with its supervisor listening."""

    def __init__(self, image: str, settings: dict[str, Any], *, loopback: bool = False) -> None:
        super().__init__()
        self.client = connect()
        self._chunk_bytes_left = 0  # bytes left of the current chunk
        self._stderr = bytearray()
        self._socket: socket.socket | None = None
        # unused user ids, different in every container: the kernel counts processes by user id
        first = random.SystemRandom().randrange(1 << 20, 1 << 30)
        try:
            with wrap_engine_errors():
                is_podman = engine.is_podman(self.client)
                config = self.client.api.create_host_config(**build_host_config(**settings, is_podman=is_podman))
                created = self.client.api.create_container(
                    image,
                    BOOTSTRAP_COMMAND,
                    host_config=config,
                    stdin_open=True,
                    environment={},
                    labels={LABEL: get_owner_label(os.getpid())},
                    user="0:0",
                    working_dir="/",
                    network_disabled=True,
                    hostname="sandbox",
                )
        except BaseException:
            self.client.close()
            raise
        self.id: str = created["Id"]
        try:
            self._attach_and_start()
            self.bootstrap_supervisor(
                {
                    "places": ["/tmp", "/dev/shm"],
                    "uid": first,
                    "cgroup": True,
                    "nests": settings["uses_pid_namespaces"],
                    "boxes": "box" if settings.get("serves_sessions") else "",
                    "loopback": loopback,
                    "own_disks_mb": settings["disk_mb"] if is_podman else 0,
                    "memory_bytes": _compute_memory_mb(settings["memory_mb"], settings["runtime"]) << 20,
                }
            )
            if missing := find_missing_isolation(self.handshake):
                raise SandboxError(f"the engine gives containers {' and '.join(missing)}; {WEAK_ENGINE_HINT}")
        except (ConnectionBroken, SandboxError) as error:
            said = bytes(self._stderr[-500:]).decode(errors="replace").strip()
            self.close()
            raise SandboxError(f"a container of {image!r} did not start: {error}{': ' + said if said else ''}") from error
        except BaseException:  # the caller was interrupted
            with contextlib.suppress(Exception):
                self.close()
            raise

    def _attach_and_start(self) -> None:
        with wrap_engine_errors():
            stream = self.client.api.attach_socket(self.id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            self._stream = stream  # the response owns the socket: keep it alive
            self._socket = getattr(stream, "_sock", stream)
            self.client.api.start(self.id)

    def send(self, data: bytes, deadline: float) -> None:
        """Send all the data."""
        if self._socket is None:
            raise ConnectionBroken("closed")
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionBroken(f"sending failed: {error}") from error

    def receive(self, buffer: memoryview, deadline: float) -> int:
        """Receive some bytes of the supervisor's standard output; its standard error is kept for messages."""
        while not self._chunk_bytes_left:
            head = bytearray(STREAM_HEADER.size)
            self._receive_all(head, deadline)
            kind, length = STREAM_HEADER.unpack(head)
            if kind == 1:
                self._chunk_bytes_left = length
            else:
                said = bytearray(length)
                self._receive_all(said, deadline)
                self._stderr = (self._stderr + said)[-4000:]
        count = self._receive_some(buffer[: self._chunk_bytes_left], deadline)
        self._chunk_bytes_left -= count
        return count

    def _receive_all(self, data: bytearray, deadline: float) -> None:
        at = 0
        with memoryview(data) as room:
            while at < len(data):
                at += self._receive_some(room[at:], deadline)

    def _receive_some(self, room: memoryview, deadline: float) -> int:
        if self._socket is None:
            raise ConnectionBroken("closed")
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            count = self._socket.recv_into(room)
        except OSError as error:
            raise ConnectionBroken(f"nothing was received: {error or type(error).__name__}") from error
        if not count:
            raise ConnectionBroken("the stream ended")
        return count

    def is_alive(self) -> bool:
        """Return whether the supervisor still listens: the stream is open and holds no unrequested data."""
        return self._socket is not None and not wait_readable(self._socket.fileno(), 0)

    def has_run_out_of_memory(self) -> bool:
        """Return whether the engine reported that the kernel killed a process of this container because memory ran out."""
        until = int(time.time()) + 2  # the engine reports it a little later
        with wrap_engine_errors():
            seen = self.client.api.events(since=1, until=until, filters={"container": self.id, "event": "oom"}, decode=True)
            return any(True for _ in seen)

    def get_stderr_tail(self) -> str:
        """Return the last output of the supervisor on standard error."""
        return bytes(self._stderr).decode(errors="replace").strip()

    def explain_program_caused_exit(self) -> str:
        """Return the supervisor's last message, or that memory ran out; '' if neither, or if the engine is down too."""
        with contextlib.suppress(SandboxError):
            connect(10).close()
            said = self.get_stderr_tail().removesuffix(OWNER_EXITED_MESSAGE).strip()
            return said[-300:] or ("its memory ran out" if self.has_run_out_of_memory() else "")
        return ""

    def shut_down(self) -> None:
        """End the stream in both directions, which wakes every waiting thread."""
        if (stream := self._socket) is not None:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the stream, which ends the supervisor, and remove the container."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            with contextlib.suppress(OSError):
                self._stream.close()
            self._socket = None
        self.client.api.timeout = REMOVE_TIMEOUT_S
        with contextlib.suppress(SandboxError), wrap_engine_errors():
            check_reachable(REMOVE_TIMEOUT_S)
            remove_container(self.client, self.id)
        self.client.close()
