"""A control group for each call in a session, so that the kernel knows which processes belong to the call, and ends them together.

A process cannot leave its group: not setsid, not a double fork. Version 2 kills a group with one write. In version 1 the
group is frozen, listed, killed and thawed: a frozen process does not fork. A group is created below our own; in a container
that needs CAP_SYS_ADMIN while the supervisor starts, which it then drops. Where no group can be created, a call that hangs
ends everything in its session. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

CGROUP_ROOT = "/sys/fs/cgroup"
REMOUNT, BIND, NOSUID, NODEV, NOEXEC = 32, 4096, 2, 4, 8
libc = ctypes.CDLL(None, use_errno=True)


class CallCgroup:
    """Control group of one call: the processes that it started, with all their descendants."""

    def __init__(self, path: str) -> None:
        self.path, self.is_removed = path, False
        os.mkdir(path, 0o755)
        self._has_kill_file = os.path.exists(f"{path}/cgroup.kill")
        try:
            self.join_fd = os.open(f"{path}/cgroup.procs", os.O_RDWR | os.O_CLOEXEC)
            """A process that writes 0 here joins the group."""
        except OSError:
            os.rmdir(path)
            raise

    @property
    def is_empty(self) -> bool:
        """Whether no process is left in the group.

        The file is opened for each reading: through an open descriptor, version 1 repeats a list that is up to a second old.
        """
        return not self._read_file("cgroup.procs")

    def kill_all(self, timeout_s: float) -> bool:
        """Kill everything in the group; return whether it is empty before the timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._kill_once()
            for _ in range(200):
                if self.is_empty:
                    return True
                time.sleep(0.0005)
            if time.monotonic() > deadline:
                return False

    def _kill_once(self) -> None:
        if self._has_kill_file:
            self._write_file("cgroup.kill", b"1")
            return
        self._write_file("freezer.state", b"FROZEN")
        try:
            for _ in range(2000):
                if self._read_file("freezer.state").strip() == b"FROZEN":
                    break
                time.sleep(0.0005)
            for pid in self._read_file("cgroup.procs").split():
                if int(pid) > 1:  # 0 is a process that we cannot see, and would mean ourselves
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
        finally:
            self._write_file("freezer.state", b"THAWED")

    def _write_file(self, name: str, data: bytes) -> None:
        with open(f"{self.path}/{name}", "wb", 0) as file:
            file.write(data)

    def _read_file(self, name: str) -> bytes:
        with open(f"{self.path}/{name}", "rb") as file:
            return file.read()

    def remove(self) -> None:
        """Remove the group, which must be empty."""
        self.is_removed = True
        os.close(self.join_fd)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


class CgroupFactory:
    """Creates numbered call groups below a parent group, if there is one.

    >>> CgroupFactory("").create() is None
    True
    """

    def __init__(self, base: str) -> None:
        self._base, self._count = base, 0

    def create(self) -> CallCgroup | None:
        """Create a group; None if groups are not available."""
        if not self._base:
            return None
        self._count += 1
        return CallCgroup(f"{self._base}/{self._count}")

    @property
    def is_available(self) -> bool:
        """Whether groups are available."""
        return bool(self._base)


def create_parent_cgroup(name: str) -> CgroupFactory:
    """Create a parent cgroup of this name for the cgroups of calls, where possible.

    A read-only hierarchy is remounted if needed.
    """
    for above in _list_own_cgroup_paths():
        base = f"{above}/{name}"
        for _ in range(2):
            with contextlib.suppress(OSError):
                os.mkdir(base, 0o755)
                CallCgroup(f"{base}/0").remove()
                return CgroupFactory(base)
            root = CGROUP_ROOT if os.path.exists(f"{CGROUP_ROOT}/cgroup.controllers") else f"{CGROUP_ROOT}/freezer"
            if libc.mount(None, root.encode(), None, REMOUNT | BIND | NOSUID | NODEV | NOEXEC, None) != 0:
                break
    return CgroupFactory("")


def remove_parent_cgroup(name: str, timeout_s: float = 5.0) -> None:
    """Remove the parent group that `create_parent_cgroup` created, once nothing runs in it; for the process sandbox, where no engine
    does it.
    """
    deadline = time.monotonic() + timeout_s
    for base in [path for path in (f"{above}/{name}" for above in _list_own_cgroup_paths()) if os.path.isdir(path)]:
        while not _try_remove(base) and time.monotonic() < deadline:
            time.sleep(0.01)  # killed processes are still ending


def _try_remove(base: str) -> bool:
    try:
        with os.scandir(base) as entries:
            for entry in entries:
                if entry.is_dir():
                    os.rmdir(entry.path)
        os.rmdir(base)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def list_parent_cgroup_names(prefix: str) -> list[str]:
    """Return the names of the parent groups that `create_parent_cgroup` created, by their prefix."""
    found = set[str]()
    for above in _list_own_cgroup_paths():
        with contextlib.suppress(OSError):
            found |= {name for name in os.listdir(above) if name.startswith(prefix)}
    return sorted(found)


def _list_own_cgroup_paths() -> list[str]:
    """Return the paths of our own cgroup: as named here, or the root that a container sees."""
    two = os.path.exists(f"{CGROUP_ROOT}/cgroup.controllers")
    root, wanted = (CGROUP_ROOT, "") if two else (f"{CGROUP_ROOT}/freezer", "freezer")
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            if wanted in kinds.split(","):
                return [root + path.rstrip("/"), root]
    return [root]
