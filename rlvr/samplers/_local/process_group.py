"""Kill the process group of an engine without leaking shared memory.

Python's resource tracker process removes the shared memory and semaphores of other processes when these have ended.
Killed together with them, it could not do that, and /dev/shm would fill up with every killed engine.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

TRACKER_MODULE = b"multiprocessing.resource_tracker"
POLL_INTERVAL_S = 0.01


def list_group_processes(group: int) -> dict[int, bool]:
    """Map the pid of each running process of a group to whether it is multiprocessing's resource tracker. Empty without /proc."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            state, _, its_group = (place / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found[int(place.name)] = TRACKER_MODULE in (place / "cmdline").read_bytes()
    return found


def kill_process_group(group: int, *, timeout_s: float) -> None:
    """Kill all processes of a group except this one.

    The resource tracker is killed only after the timeout.
    """
    until, own = time.monotonic() + timeout_s, os.getpid()
    while others := {pid: tracks for pid, tracks in list_group_processes(group).items() if pid != own}:
        for pid in (pid for pid, tracks in others.items() if not tracks or time.monotonic() > until):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if group == os.getpgrp() and all(others.values()):
            return  # the resource tracker waits for this process too
        if time.monotonic() > until + timeout_s:
            return
        time.sleep(POLL_INTERVAL_S)
