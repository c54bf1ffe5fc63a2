"""Kill every process of a program, and let the kernel confirm that none is left.

There are three mechanisms; the strongest available one is used:

    PID namespace   kill the init of the program's namespace; it is dead only after every process in it (`pid_namespace.py`)
    user ids        one kill(-1) as the program's user reaches all its processes at once, forking ones too; then read the cgroup's count
    process table   without root and without namespaces: list and kill until the list is empty; a chain of forks can outrun this

`ExecutionResult.isolation` lists the mechanism in use. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from rlvr.sandbox._inside import meter
from rlvr.sandbox._inside.nest import Nursery

COUNTS = ("pids/pids.current", "pids.current")
NEST, USERS, TABLE = "a process space of its own", "its user id and the count of processes", "the process table"


class Ends:
    """Kills all processes of a program, and reports whether any is left.

    >>> Ends(None, group=False, spared=set(), users=False).way
    'the process table'
    """

    def __init__(self, nursery: Nursery | None, *, group: bool, spared: set[int], users: bool) -> None:
        self._count, self._spared, self._nursery = -1, spared, nursery
        for name in COUNTS if group else ():
            with contextlib.suppress(OSError):
                self._count = os.open(f"{meter.GROUP}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                break
        self.way = NEST if nursery else USERS if users else TABLE

    def kill(self, uids: list[int]) -> None:
        """Kill the inits of the PID namespaces, all processes under these user ids, or all that the process table lists."""
        for pid in self._nursery.living if self._nursery else self.left() if not uids else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for uid in uids if not self._nursery else ():
            kill_user(uid)

    def none_left(self, seconds: float) -> bool:
        """Return whether no process is left, once the first process has been reaped; wait up to `seconds` for it."""
        if self._nursery:
            return self._nursery.ended(seconds)
        if (self._left() if self._count >= 0 else len(self.left())) <= 0:
            return True
        time.sleep(min(seconds, 0.0002))
        return False

    def _left(self) -> int:
        """Return the kernel's count of processes besides the supervisor and its helpers."""
        return int(os.pread(self._count, 32, 0)) - 1 - len(self._spared)

    def left(self) -> list[int]:
        """Return the pids still alive: the inits, or the process table, which is complete once no process can fork."""
        return sorted(self._nursery.living) if self._nursery else meter.descendants(os.getpid(), self._spared)


def kill_user(uid: int) -> None:
    """Kill every process of a user id in one call, which no fork can escape.

    Only our effective user id changes for the call, so the signal reaches no other user's process, and none of them may signal us.
    """
    os.setresuid(uid + (1 << 30), uid, 0)  # user ids of programs stay far below that
    try:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    finally:
        os.setresuid(0, 0, 0)
