"""Kill every process of a program, and let the kernel confirm that none is left.

There are three mechanisms; the strongest available one is used:

    PID namespace   kill the init of the program's namespace; it is dead only after every process in it (`pid_namespace.py`)
    user ids        one kill(-1) as the program's user reaches all its processes at once, forking ones too; then read the cgroup's count,
                    or without one (gVisor) the process table
    process table   without root and without namespaces: list and kill until the list is empty; a chain of forks can outrun this

`ExecutionResult.isolation` lists the mechanism in use. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from rlvr.sandbox._inside import meter
from rlvr.sandbox._inside.pid_namespace import NamespaceHelperClient

SETTLED_READINGS, SETTLED_INTERVAL_S = 5, 0.001
PID_COUNT_FILES = ("pids/pids.current", "pids.current")
BY_NAMESPACE, BY_PROCESS_TABLE = "a process space of its own", "the process table"
BY_USER_ID, BY_USER_ID_AND_TABLE = "its user id and the count of processes", f"its user id and {BY_PROCESS_TABLE}"


class ProcessKiller:
    """Kills all processes of a program, and reports whether any is left.

    >>> ProcessKiller(None, use_cgroup=False, spared_pids=set(), unused_uid=None).mechanism
    'the process table'
    """

    def __init__(
        self, namespace_helper: NamespaceHelperClient | None, *, use_cgroup: bool, spared_pids: set[int], unused_uid: int | None
    ) -> None:
        self._unused_uid = unused_uid
        self._pid_count_fd, self._spared_pids, self._namespace_helper = -1, spared_pids, namespace_helper
        for name in PID_COUNT_FILES if use_cgroup else ():
            with contextlib.suppress(OSError):
                self._pid_count_fd = os.open(f"{meter.CGROUP_ROOT}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                break
        by_user_id = BY_USER_ID if self._pid_count_fd >= 0 else BY_USER_ID_AND_TABLE
        self.mechanism = BY_NAMESPACE if namespace_helper else BY_PROCESS_TABLE if unused_uid is None else by_user_id

    def kill_all(self, uids: list[int]) -> None:
        """Kill every process of the programs: those in PID namespaces, of these user ids, or in the process table.

        Without PID namespaces, the processes of the user ids are killed; without user ids, those in the process table.
        """
        for pid in self._namespace_helper.live_inits if self._namespace_helper else self.list_remaining_pids() if not uids else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for uid in uids if not self._namespace_helper else ():
            _kill_user_processes(uid, self._unused_uid or 0)

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Return whether no process is left, once the first process has been reaped; wait up to `timeout_s` for it."""
        if self._namespace_helper:
            return self._namespace_helper.wait_until_ended(timeout_s)
        if self._pid_count_fd >= 0:
            is_empty = self._count_remaining() <= 0
        elif self.mechanism == BY_USER_ID_AND_TABLE:
            is_empty = self._is_table_settled()
        else:
            is_empty = not self.list_remaining_pids()
        if not is_empty:
            time.sleep(min(timeout_s, 0.0002))
        return is_empty

    def _is_table_settled(self) -> bool:
        """Return whether the process table stays empty for some milliseconds; kill what it lists, under whichever user id.

        In gVisor a signal to all processes of a user misses one that is being forked, which is listed a moment later.
        """
        for _ in range(SETTLED_READINGS):
            if self.kill_listed():
                return False
            time.sleep(SETTLED_INTERVAL_S)
        return True

    def kill_listed(self) -> bool:
        """Kill every process of a program that the process table lists; return whether there was one."""
        pids = self.list_program_pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def _count_remaining(self) -> int:
        """Return the kernel's count of processes besides the supervisor and its helpers."""
        return int(os.pread(self._pid_count_fd, 32, 0)) - 1 - len(self._spared_pids)

    def list_program_pids(self) -> list[int]:
        """Return the pids of all processes of the program, and of its namespaces, from the process table."""
        return meter.list_descendants(os.getpid(), self._spared_pids)

    def list_remaining_pids(self) -> list[int]:
        """Return the pids still alive: the inits, or the process table, which is complete once no process can fork."""
        return sorted(self._namespace_helper.live_inits) if self._namespace_helper else self.list_program_pids()


def _kill_user_processes(uid: int, unused_uid: int) -> None:
    """Kill every process of a user id in one call, which no fork can escape.

    Our real user id becomes one that no process has, so the signal reaches no other user's process, and none of them may signal us.
    """
    os.setresuid(unused_uid, uid, 0)
    try:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    finally:
        os.setresuid(0, 0, 0)
