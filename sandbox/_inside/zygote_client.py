"""The supervisor's client of the zygote: sends fork orders, receives pids and exit reports.

Runs inside the container: standard library only.
"""

from __future__ import annotations

import array
import json
import select
import socket
import time
from typing import Any

from rlvr.sandbox._inside.pid_namespace import FORK_TIMEOUT_S, PeerExited


class ChildProcess:
    """A process that the zygote forked for the supervisor.

    >>> ChildProcess(serial=1).has_exited
    False
    """

    def __init__(self, serial: int) -> None:
        self.serial, self.pid = serial, 0
        self.exit_report: dict[str, Any] | None = None
        """The exit report once the zygote has reaped the process: status, peak_kb, cpu."""

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited and been reaped."""
        return self.exit_report is not None


class ZygoteClient:
    """Client that orders children from the zygote, and stores its reports about them."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._serial, self._children = connection, 0, dict[int, ChildProcess]()

    def fork_child(self, fds: dict[int, int], request: dict[str, Any]) -> ChildProcess:
        """Fork a child that becomes the ordered program; `fds` maps its descriptor numbers to ours."""
        self._serial += 1
        born = self._children[self._serial] = ChildProcess(self._serial)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds.values()))]
        self.connection.sendmsg([json.dumps({**request, "serial": self._serial, "places": list(fds)}).encode()], rights)
        deadline = time.monotonic() + FORK_TIMEOUT_S
        while not born.pid:
            if not self.receive_message(deadline - time.monotonic()):
                raise PeerExited(f"the zygote forked nothing within {FORK_TIMEOUT_S:.0f} s")
        return born

    def receive_message(self, timeout_s: float) -> bool:
        """Receive one message from the zygote; return False if none arrives within `timeout_s`."""
        if not select.select([self.connection], [], [], max(timeout_s, 0))[0]:
            return False
        raw = self.connection.recv(65536)
        if not raw:
            raise PeerExited("the zygote exited")
        message: dict[str, Any] = json.loads(raw)
        born = self._children[message["serial"]]
        born.pid = message.get("pid", born.pid)
        if "status" in message:
            born.exit_report = message
            del self._children[born.serial]
        return True
