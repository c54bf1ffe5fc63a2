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

from rlvr.sandbox._inside.nest import BIRTH_S, Gone


class Born:
    """A process that the zygote forked for the supervisor.

    >>> Born(serial=1).over
    False
    """

    def __init__(self, serial: int) -> None:
        self.serial, self.pid = serial, 0
        self.ending: dict[str, Any] | None = None
        """The exit report once the zygote has reaped the process: status, peak_kb, cpu."""

    @property
    def over(self) -> bool:
        """Whether the process has exited and been reaped."""
        return self.ending is not None


class Door:
    """Client that orders children from the zygote, and stores its reports about them."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._serial, self._born = connection, 0, dict[int, Born]()

    def order(self, ports: dict[int, int], order: dict[str, Any]) -> Born:
        """Fork a child that becomes the ordered program; `ports` maps its descriptor numbers to ours."""
        self._serial += 1
        born = self._born[self._serial] = Born(self._serial)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", ports.values()))]
        self.connection.sendmsg([json.dumps({**order, "serial": self._serial, "places": list(ports)}).encode()], rights)
        deadline = time.monotonic() + BIRTH_S
        while not born.pid:
            if not self.hear(deadline - time.monotonic()):
                raise Gone(f"the zygote forked nothing within {BIRTH_S:.0f} s")
        return born

    def hear(self, seconds: float) -> bool:
        """Receive one message from the zygote; return False if none arrives within `seconds`."""
        if not select.select([self.connection], [], [], max(seconds, 0))[0]:
            return False
        raw = self.connection.recv(65536)
        if not raw:
            raise Gone("the zygote exited")
        message: dict[str, Any] = json.loads(raw)
        born = self._born[message["serial"]]
        born.pid = message.get("pid", born.pid)
        if "status" in message:
            born.ending = message
            del self._born[born.serial]
        return True
