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
from rlvr.sandbox._inside.box.cgroups import CallCgroup, CgroupFactory
from rlvr.sandbox._inside.pid_namespace import NamespaceHelperClient
from rlvr.sandbox._inside.process_killer import ProcessKiller
from rlvr.sandbox._inside.zygote_client import ChildProcess, ZygoteClient

NO_USER_IDS_MESSAGE = "all user ids of this supervisor were used: the next one begins anew"
KILL_TIMEOUT_S = 10.0  # timeout for the kernel to end killed processes; after it, the session counts as broken


@dataclass
class SupervisorResources:
    """What the supervisor shares with its session server to start, measure and end processes: zygote client, meter, killer, cgroups,
    folders.
    """

    folders: list[str]
    uid: int | None
    zygote: ZygoteClient
    namespace_helper: NamespaceHelperClient | None
    has_filter: bool
    meter: meter.CgroupMeter | meter.ProcessTableMeter
    killer: ProcessKiller
    cgroups: CgroupFactory
    session_source: bytes
    """The source code of the Python session."""
    num_own_processes: int | None
    """How many processes of ours the kernel counts with those of the session; None: it cannot count those of the session."""
    last_uid: int | None
    """The last user id that is mapped here; each session uses two that were never used before."""


class SessionProcesses:
    """Starts and ends the processes of one session after another."""

    def __init__(self, resources: SupervisorResources) -> None:
        self.resources, self.uid, self.home = resources, resources.uid, resources.folders[0]
        self.limits: dict[str, Any] = {}
        self.has_cgroup_meter = isinstance(resources.meter, meter.CgroupMeter)
        """Whether the kernel measures the session as a whole, and enforces its memory limit."""
        self._namespace_init = 0
        self._cgroups: list[tuple[ChildProcess, CallCgroup]] = []

    def prepare_session(self, limits: dict[str, Any]) -> None:
        """Prepare for the next session: set its limits and an unused user id, and record the memory in use before the session."""
        self.limits = limits
        if self.uid is not None:
            self.uid += 2
        self.resources.meter.record_memory_baseline()

    @property
    def has_used_all_user_ids(self) -> bool:
        """Whether no user id is left for another session."""
        return self.uid is not None and self.resources.last_uid is not None and self.uid + 3 > self.resources.last_uid

    @property
    def max_processes(self) -> int | None:
        """The limit that the kernel gets for the count of processes; None if it would count others, too."""
        own = self.resources.num_own_processes
        return None if own is None else int(self.limits["processes"]) + own

    def start_process(
        self, descriptors: calls.CallDescriptors, argv: list[str], extra_processes: int = 0
    ) -> tuple[ChildProcess, CallCgroup | None]:
        """Start a process of the session, in a control group of its own where available."""
        self._remove_ended_cgroups()
        if self.resources.namespace_helper and not self._namespace_init:
            self._namespace_init = self.resources.namespace_helper.take_namespace_init()
            self.resources.namespace_helper.request_namespaces(1)
        limits = calls.build_rlimits(self.limits, self.max_processes, self.has_cgroup_meter)
        if "NPROC" in limits:
            limits["NPROC"] += extra_processes
        descriptors.child_fds[calls.READY_FD] = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        if group := self.resources.cgroups.create():
            descriptors.add_shared(calls.CGROUP_FD, group.join_fd)
        request = {"argv": argv, "uid": self.uid, "gid": self.uid, "folder": self.home, "oom": 1000, "nice": 5, "rlimits": limits}
        request |= {
            "filter": self.resources.has_filter and self.resources.namespace_helper is not None,
            "nest": self._namespace_init,
            "group": group is not None,
        }
        try:
            born = self.resources.zygote.fork_child(descriptors.child_fds, request)
        finally:
            descriptors.close_child_ends()
        if group:
            self._cgroups.append((born, group))
        return born, group

    def kill_call(self, process: ChildProcess, cgroup: CallCgroup | None) -> bool:
        """Kill a call's process with all its descendants; return whether all of them have certainly ended.

        Without a cgroup, the processes cannot be told apart: none is killed, and the result is False.
        """
        if cgroup is None:
            return False
        if cgroup.is_removed:
            return True  # all its processes had ended before
        if not process.has_exited:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # it may not have joined its group yet
        ended = cgroup.kill_all(KILL_TIMEOUT_S)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while not process.has_exited and time.monotonic() < deadline:
            self.resources.zygote.receive_message(0.05)
        return ended and process.has_exited

    def find_exit_code_before_unmount(self, process: ChildProcess) -> int | None:
        """Return the exit code of a process as soon as it stopped running, without the 10 ms that the kernel needs to remove its mounts."""
        status = (
            None if self.has_cgroup_meter else meter.find_exiting_status(process.pid)
        )  # without this capability the status cannot be read
        return None if status is None else os.waitstatus_to_exitcode(status)

    def has_running_calls(self, waiting_shell: ChildProcess | None) -> bool:
        """Return whether anything runs besides the waiting shell; idle sessions are not measured, which would be costly for hundreds."""
        self._remove_ended_cgroups()
        return not self.resources.cgroups.is_available or any(born is not waiting_shell for born, _ in self._cgroups)

    def exceeds_memory(self) -> bool:
        """Return whether the session uses more memory than its limit."""
        return self.resources.meter.exceeds_memory(int(self.limits["memory_mb"]) << 20)

    def kill_all(self) -> str:
        """End every process of the session until the kernel confirms that none is left; return why that failed, or ''."""
        uids = [] if self.uid is None else [self.uid, self.uid + 1]
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while True:
            self.resources.killer.kill_all(uids)
            while self.resources.zygote.receive_message(0):
                pass
            reap_orphans()
            if self.resources.killer.wait_until_empty(0.05):
                break
            if time.monotonic() > deadline:
                return f"processes of the session are left {KILL_TIMEOUT_S:.0f} s after they were killed"
        self._namespace_init = 0
        self._remove_ended_cgroups()
        return ""

    def _remove_ended_cgroups(self) -> None:
        """Remove the control groups whose process was reaped and which are empty."""
        for pair in [pair for pair in self._cgroups if pair[0].has_exited and pair[1].is_empty]:
            pair[1].remove()
            self._cgroups.remove(pair)


def reap_orphans() -> None:
    """Reap ended processes that have no other parent."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def get_exit_code(process: ChildProcess) -> int | None:
    """Return the exit code of a process, below 0 for a signal; None if it still runs."""
    return os.waitstatus_to_exitcode(process.exit_report["status"]) if process.exit_report else None
