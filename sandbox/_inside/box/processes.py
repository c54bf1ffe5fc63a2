"""Start the processes of one session, tell them apart by call, and end them.

All run under one user id that was never used before, and (where namespaces are available) in one PID namespace. Each call has a control
group of its own. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from rlvr.sandbox._inside import meter
from rlvr.sandbox._inside.box import calls
from rlvr.sandbox._inside.box.groups import Group, Groups
from rlvr.sandbox._inside.ends import Ends
from rlvr.sandbox._inside.nest import Nursery
from rlvr.sandbox._inside.zygotes import Born, Door

END_S = 10.0  # timeout for the kernel to end killed processes; after it, the session counts as broken


@dataclass
class Tools:
    """The supervisor's means to start, measure and end processes, shared with its session server."""

    places: list[str]
    uid: int | None
    door: Door
    nursery: Nursery | None
    filtered: bool
    meter: meter.GroupMeter | meter.TreeMeter
    ends: Ends
    groups: Groups
    session: bytes
    """The source code of the Python session."""


class Processes:
    """Starts and ends the processes of one session after another."""

    def __init__(self, tools: Tools) -> None:
        self.tools, self.uid, self.home = tools, tools.uid, tools.places[0]
        self.limits: dict[str, Any] = {}
        self.measured = isinstance(tools.meter, meter.GroupMeter)
        """Whether the kernel measures the session as a whole, and enforces its memory limit."""
        self._nest = 0
        self._groups: list[tuple[Born, Group]] = []

    def begin(self, limits: dict[str, Any]) -> None:
        """Prepare for a new session: a user id and a PID namespace that were never used."""
        self.limits = limits
        if self.uid is not None:
            self.uid += 2
        self.tools.meter.begin()

    def start(self, ports: calls.Ports, argv: list[str], spare: int = 0) -> tuple[Born, Group | None]:
        """Start a process of the session, in a control group of its own where available."""
        self._tidy()
        if self.tools.nursery and not self._nest:
            self._nest = self.tools.nursery.nest()
            self.tools.nursery.ask(1)
        limits = calls.rlimits(self.limits, self.uid, self.measured)
        if "NPROC" in limits:
            limits["NPROC"] += spare
        ports.theirs[calls.SETTLED] = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        if group := self.tools.groups.new():
            ports.lend(calls.GROUP, group.door)
        order = {"argv": argv, "uid": self.uid, "gid": self.uid, "folder": self.home, "oom": 1000, "nice": 5, "rlimits": limits}
        order |= {"filter": self.tools.filtered and self.tools.nursery is not None, "nest": self._nest, "group": group is not None}
        try:
            born = self.tools.door.order(ports.theirs, order)
        finally:
            ports.handed_over()
        if group:
            self._groups.append((born, group))
        return born, group

    def kill(self, born: Born, group: Group | None) -> bool:
        """End a process with all its descendants; return False if they cannot be told apart or do not end."""
        if group is None:
            return False
        if group.removed:
            return True  # all its processes had ended before
        if not born.over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(born.pid, signal.SIGKILL)  # it may not have joined its group yet
        ended = group.kill(END_S)
        deadline = time.monotonic() + END_S
        while not born.over and time.monotonic() < deadline:
            self.tools.door.hear(0.05)
        return ended and born.over

    def ending(self, born: Born) -> int | None:
        """Return the exit code of a process as soon as it stopped running, without the 10 ms that the kernel needs to remove its mounts."""
        status = None if self.measured else meter.ending(born.pid)  # without this capability the status cannot be read
        return None if status is None else os.waitstatus_to_exitcode(status)

    def busy(self, waiting: Born | None) -> bool:
        """Return whether anything runs besides the waiting shell; idle sessions are not measured, which would be costly for hundreds."""
        self._tidy()
        return not self.tools.groups.possible or any(born is not waiting for born, _ in self._groups)

    def too_large(self) -> bool:
        """Return whether the session uses more memory than its limit."""
        return self.tools.meter.over(int(self.limits["memory_mb"]) << 20)

    def kill_all(self) -> str:
        """End every process of the session until the kernel confirms that none is left; return why that failed, or ''."""
        uids = [] if self.uid is None else [self.uid, self.uid + 1]
        deadline = time.monotonic() + END_S
        while True:
            self.tools.ends.kill(uids)
            while self.tools.door.hear(0):
                pass
            reap()
            if self.tools.ends.none_left(0.05):
                break
            if time.monotonic() > deadline:
                return f"processes of the session are left {END_S:.0f} s after they were killed"
        self._nest = 0
        self._tidy()
        return ""

    def _tidy(self) -> None:
        """Remove the control groups whose process was reaped and which are empty."""
        for pair in [pair for pair in self._groups if pair[0].over and pair[1].ended]:
            pair[1].remove()
            self._groups.remove(pair)


def reap() -> None:
    """Reap ended processes that have no other parent."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def exit_status(born: Born) -> int | None:
    """Return the exit code of a process, below 0 for a signal; None if it still runs."""
    return os.waitstatus_to_exitcode(born.ending["status"]) if born.ending else None
