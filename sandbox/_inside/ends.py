"""The end of a program: everything of it is killed, and the kernel itself says that nothing is left.

Three ways, the strongest that can be had here:

    a nest       the init of the program's process space is dead; the kernel ends it after everything in it (`nest.py`)
    user ids     one kill(-1) as the program's user reaches all its processes at once, forking ones too; then the group's count
    process table   for a sandbox without root and without namespaces: look and kill until nobody is seen; a row of forks can outrun it

Which one applies is listed in `Outcome.isolation`. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal

from rlvr.sandbox._inside import meter

COUNTS = ("pids/pids.current", "pids.current")
OURS = 2  # the supervisor and the zygote
NEST, USERS, TABLE = "a process space of its own", "its user id and the count of processes", "the process table"


class Ends:
    """Kills what a program started, and tells whether anything of it is left.

    >>> Ends(nested=False, group=False, zygote=0).way
    'the process table'
    """

    def __init__(self, *, nested: bool, group: bool, zygote: int, users: bool = False) -> None:
        self._count, self._zygote = -1, zygote
        for name in COUNTS if group else ():
            with contextlib.suppress(OSError):
                self._count = os.open(f"{meter.GROUP}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                break
        self.way = NEST if nested else USERS if users else TABLE

    def kill(self, inits: list[int], uids: list[int]) -> None:
        """Kill everything: the inits of the nests, everybody under these user ids, or whoever is seen."""
        if self.way == NEST:
            for pid in inits:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        for uid in uids:
            kill_user(uid)
        if not uids:
            for pid in meter.descendants(os.getpid(), {self._zygote}):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def count(self) -> int:
        """How many processes there are beside ours, as the kernel counts them; -1 where it does not."""
        return -1 if self._count < 0 else int(os.pread(self._count, 32, 0)) - OURS

    def nobody(self) -> bool:
        """Whether nothing is left. Asked when every init and every first process has been reaped."""
        if self._count >= 0:
            return self.count() <= 0
        return self.way == NEST or not self.left()

    def left(self) -> list[int]:
        """Who still lives, from the process table: complete once nobody can fork any more."""
        return meter.descendants(os.getpid(), {self._zygote})


def kill_user(uid: int) -> None:
    """Kill everything under a user id in one call: the kernel lets no fork slip past it.

    Only our effective user id is theirs while we do it: so the call reaches nobody else, and none of them may signal us.
    """
    os.setresuid(uid + (1 << 30), uid, 0)  # user ids of programs stay far below that
    try:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    finally:
        os.setresuid(0, 0, 0)
