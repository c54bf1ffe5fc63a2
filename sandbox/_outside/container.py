"""A hardened container with a supervisor in it, and the stream to the supervisor.

The supervisor is root *inside*, with few capabilities: SETUID and SETGID to run every program as another user, KILL to end them. It needs
no more: it owns the folders that programs write to, and it reads no file of a program. SETPCAP clears the bounding set before the first
program runs. SYS_ADMIN is added if each program gets its own PID namespace; the zygote and the namespace helper keep it, which read no
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
from typing import Any

from docker.types import Ulimit

from rlvr.errors import SandboxError
from rlvr.runs.owner import owner
from rlvr.sandbox._inside.frames import Torn
from rlvr.sandbox._inside.toolchains import LARGEST_MB
from rlvr.sandbox._outside.channel import COMMAND, Channel, readable
from rlvr.sandbox._outside.engine import LABEL, connect, faults, knock, remove

OVERHEAD_MB = 96 + 2 * LARGEST_MB  # the supervisor, the zygote, the output being collected, cached binaries
OWNER_GONE = "the owner exited"  # the supervisor's message when the engine closes its input
CLOSING_S = 20  # timeout for the engine to remove a container
STREAM = struct.Struct(">BxxxI")


def hardening(memory_mb: int, disk_mb: int, pids: int, runtime: str | None, nests: bool = False, boxes: bool = False) -> dict[str, Any]:
    """Build the host configuration of a container: the limits that the engine enforces from outside."""
    tmpfs = f"nosuid,nodev,mode=0700,size={disk_mb}m,nr_inodes=4096"
    return {
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {"/tmp": f"rw,exec,{tmpfs}", "/dev/shm": f"rw,noexec,{tmpfs}"},
        "mem_limit": f"{memory_mb + OVERHEAD_MB}m",
        "memswap_limit": f"{memory_mb + OVERHEAD_MB}m",  # equal to mem_limit: no swap
        "pids_limit": pids,
        "cap_drop": ["ALL"],
        "cap_add": ["SETUID", "SETGID", "KILL", "SETPCAP", *(["SYS_ADMIN"] if nests or boxes else [])],
        "security_opt": ["no-new-privileges"],  # the engine's own seccomp profile stays on; ours comes on top
        "ipc_mode": "none",
        "auto_remove": True,
        "log_config": {"type": "none", "config": {}},
        "ulimits": [Ulimit(name="core", soft=1, hard=1), Ulimit(name="nofile", soft=1024, hard=1024)],
        "runtime": runtime,
    }


class Container(Channel):
    """A started container, with its supervisor listening."""

    def __init__(self, image: str, settings: dict[str, Any]) -> None:
        self.client = connect()
        self._coming = 0  # bytes left of the current chunk
        self._errors = bytearray()
        self._socket: socket.socket | None = None
        # unused user ids, different in every container: the kernel counts processes by user id
        first = random.SystemRandom().randrange(1 << 20, 1 << 30)
        with faults():
            config = self.client.api.create_host_config(**hardening(**settings))
            created = self.client.api.create_container(
                image,
                COMMAND,
                host_config=config,
                stdin_open=True,
                environment={},
                labels={LABEL: owner(os.getpid())},
                user="0:0",
                working_dir="/",
                network_disabled=True,
                hostname="sandbox",
            )
        self.id: str = created["Id"]
        try:
            self._attach()
            boxes = "box" if settings.get("boxes") else ""
            self.boot({"places": ["/tmp", "/dev/shm"], "uid": first, "cgroup": True, "nests": settings["nests"], "boxes": boxes})
        except (Torn, SandboxError) as error:
            said = bytes(self._errors[-500:]).decode(errors="replace").strip()
            self.close()
            raise SandboxError(f"a container of {image!r} did not start: {error}{': ' + said if said else ''}") from error

    def _attach(self) -> None:
        with faults():
            stream = self.client.api.attach_socket(self.id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            self._stream = stream  # the response owns the socket: keep it alive
            self._socket = getattr(stream, "_sock", stream)
            self.client.api.start(self.id)

    def send(self, data: bytes, deadline: float) -> None:
        """Send all the data."""
        if self._socket is None:
            raise Torn("closed")
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            self._socket.sendall(data)
        except OSError as error:
            raise Torn(f"sending failed: {error}") from error

    def receive(self, room: memoryview, deadline: float) -> int:
        """Receive some bytes of the supervisor's standard output; its standard error is kept for messages."""
        while not self._coming:
            head = bytearray(STREAM.size)
            self._fill(head, deadline)
            kind, length = STREAM.unpack(head)
            if kind == 1:
                self._coming = length
            else:
                said = bytearray(length)
                self._fill(said, deadline)
                self._errors = (self._errors + said)[-4000:]
        count = self._some(room[: self._coming], deadline)
        self._coming -= count
        return count

    def _fill(self, data: bytearray, deadline: float) -> None:
        at = 0
        with memoryview(data) as room:
            while at < len(data):
                at += self._some(room[at:], deadline)

    def _some(self, room: memoryview, deadline: float) -> int:
        if self._socket is None:
            raise Torn("closed")
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            count = self._socket.recv_into(room)
        except OSError as error:
            raise Torn(f"nothing was received: {error or type(error).__name__}") from error
        if not count:
            raise Torn("the stream ended")
        return count

    def alive(self) -> bool:
        """Return whether the stream is open and has no unread data, as expected between two programs."""
        return self._socket is not None and not readable(self._socket.fileno(), 0)

    def memory_ran_out(self) -> bool:
        """Return whether the engine reported that the kernel killed a process of this container because memory ran out."""
        until = int(time.time()) + 2  # the engine reports it a little later
        with faults():
            seen = self.client.api.events(since=1, until=until, filters={"container": self.id, "event": "oom"}, decode=True)
            return any(True for _ in seen)

    def errors(self) -> str:
        """Return the last output of the supervisor on standard error."""
        return bytes(self._errors).decode(errors="replace").strip()

    def blame(self) -> str:
        """Return the supervisor's last message, or that memory ran out; '' if neither, or if the engine is down too."""
        with contextlib.suppress(SandboxError):
            connect(10).close()
            said = self.errors().removesuffix(OWNER_GONE).strip()
            return said[-300:] or ("its memory ran out" if self.memory_ran_out() else "")
        return ""

    def hang_up(self) -> None:
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
        self.client.api.timeout = CLOSING_S
        with contextlib.suppress(SandboxError), faults():
            knock(CLOSING_S)
            remove(self.client, self.id)
        self.client.close()
