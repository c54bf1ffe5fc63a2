"""Enter namespaces for a supervisor that runs without a container: as many as the kernel allows; or list those that it was started in.

The order is: a user namespace if not root; network, IPC, host name; small in-memory folders mounted over world-writable ones; a PID
namespace with a /proc of its own. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
import sys
from typing import NamedTuple

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PRIVATE, RECURSIVE, NOSUID, NODEV, NOEXEC, REMOUNT, PR_SET_PDEATHSIG = 1 << 18, 1 << 14, 2, 4, 8, 32, 1
READ_ONLY, BIND = 1, 1 << 12
KINDS = {
    "user": "users",
    "net": "network",
    "ipc": "ipc",
    "uts": "host name",
    "mnt": "mounts",
    "pid": "processes",
    "cgroup": "control groups",
}
"""The namespaces by their names in /proc/PID/ns, and what we call them."""
WRITABLE_FOLDERS, CLOSED_FOLDERS, OWN_DISK_LABEL = ("/tmp", "/dev/shm"), ("/var/tmp", "/run/lock"), "a small disk"
MIN_USER_IDS, FIRST_SMALL_ID, UNUSED_DISTANCE = 8192, 1000, 1 << 30
libc = ctypes.CDLL(None, use_errno=True)


def enter_namespaces(disk_mb: int) -> list[str]:
    """Enter as many namespaces as the kernel allows; return their names, in the process that becomes the supervisor."""
    held: list[str] = []
    root = os.geteuid() == 0
    if not root and not _enter_user_namespace():
        return held
    for flag, name in ((NEW_NET, "network"), (NEW_IPC, "ipc"), (NEW_UTS, "host name"), (NEW_MOUNTS, "mounts")):
        if libc.unshare(flag) == 0:
            held.append(name)
    if "mounts" not in held or libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) != 0:
        return held
    if not sys.base_prefix.startswith("/tmp/") and all(_mount_tmpfs_over(place, disk_mb, 0o700) for place in WRITABLE_FOLDERS):
        held.append(OWN_DISK_LABEL)
        for place in CLOSED_FOLDERS:
            _mount_tmpfs_over(place, 1, 0o755)
    if libc.unshare(NEW_PID) == 0:
        _enter_pid_namespace()
        if libc.mount(b"proc", b"/proc", b"proc", NOSUID | NODEV | NOEXEC, None) != 0:
            os._exit(96)  # a /proc of another namespace would be useless: start again without namespaces
        held.append("processes")
    return held


def read_namespace_ids() -> dict[str, str]:
    """Return the kernel's identity of each namespace of this process, by the names in /proc/PID/ns."""
    found = {}
    for kind in KINDS:
        try:
            found[kind] = os.readlink(f"/proc/self/ns/{kind}")
        except OSError:  # this kernel does not have it
            continue
    return found


def list_own_namespaces(outer_ids: dict[str, str]) -> list[str]:
    """Return the names of the namespaces in which this process is not with the one that read `outer_ids`."""
    return [KINDS[kind] for kind, own in read_namespace_ids().items() if kind in outer_ids and outer_ids[kind] != own]


class UserIds(NamedTuple):
    """The user ids of programs: those after `first` up to `last`, and one that no process has."""

    first: int
    last: int
    unused: int


def choose_user_ids(wanted: int, uid_map: str = "/proc/self/uid_map") -> UserIds:
    """Choose the user ids of programs, from `wanted` on if it is mapped here; in the user namespace of an engine without root few are."""
    with open(uid_map, encoding="ascii") as file:
        spans = [(int(begin), int(count)) for begin, _, count in map(str.split, file)]
    begin, count = max(spans, key=lambda span: span[1], default=(0, 1 << 32))
    if count > wanted + UNUSED_DISTANCE:
        return UserIds(wanted, wanted + UNUSED_DISTANCE - 1, wanted + UNUSED_DISTANCE)
    if count < MIN_USER_IDS:
        raise OSError(f"programs need user ids of their own, and only {count} are mapped here")
    first = begin + FIRST_SMALL_ID + wanted % (count // 2)
    return UserIds(first, begin + count - 1, first)


def is_process_count_limited(uid: int | None = None) -> bool:
    """Return whether the kernel limits how many processes a user id (ours, if none is given) has, by trying: it does not for root."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if uid is not None:
                os.setresuid(uid, uid, uid)
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            end, open_end = os.pipe()
            for _ in range(2):  # gVisor does not count a process that changed its user id, only what that one starts
                if os.fork() == 0:
                    os.close(open_end)
                    os.read(end, 1)  # until its parent has exited
                    os._exit(0)
        except OSError:
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def mount_work_folders(disk_mb: int) -> None:
    """Mount a small empty tmpfs over each folder that programs may write to, in mounts of our own. Raises OSError if that fails."""
    if libc.unshare(NEW_MOUNTS) != 0 or libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no mounts of its own")
    for place in WRITABLE_FOLDERS:
        if not os.path.isdir(place) or not _mount_tmpfs_over(place, disk_mb, 0o700):
            raise OSError(ctypes.get_errno(), f"no small disk at {place}")


def protect_devices(folder: str = "/dev") -> None:
    """Mount the machine's devices below `folder`, each of which is mounted by itself, read-only: they are written to as before, but nobody
    changes their times, which all sandboxes of the machine see. Raises OSError if that fails.
    """
    for name in os.listdir(folder):
        place = os.path.join(folder, name)
        if not os.path.islink(place) and stat.S_ISCHR(os.stat(place).st_mode):
            kept = os.statvfs(place).f_flag & (NOSUID | NODEV | NOEXEC)  # a user namespace may not give them up
            if libc.mount(None, place.encode(), None, REMOUNT | BIND | READ_ONLY | kept, None) != 0:
                raise OSError(ctypes.get_errno(), f"{place} cannot be protected")


def limit_terminals(most: int, folder: str = "/dev/pts") -> None:
    """Allow at most `most` pseudo terminals in a container; none where the kernel does not let this process set a limit."""
    options = f"max={most},ptmxmode=0666,mode=0620".encode()
    if libc.mount(b"devpts", folder.encode(), b"devpts", REMOUNT | NOSUID | NOEXEC, options) != 0:
        with contextlib.suppress(OSError):
            os.chmod(os.path.join(folder, "ptmx"), 0)


def forbid_new_user_namespaces() -> bool:
    """Forbid new user namespaces in the user namespace of this process, for as long as it exists; return whether that worked."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            if int(file.read().split()[2]) > 1:
                return False  # that of the machine, or of a container: not ours to change
        with open("/proc/sys/user/max_user_namespaces", "r+", encoding="ascii") as file:
            file.write("0")
            file.flush()
            file.seek(0)
            return file.read().strip() == "0"
    except (OSError, ValueError, IndexError):
        return False


def _mount_tmpfs_over(folder: str, size_mb: int, mode: int) -> bool:
    """Mount a small empty tmpfs of ours over a world-writable folder."""
    options = f"mode={mode:o},size={size_mb}m,nr_inodes=4096".encode()
    return not os.path.isdir(folder) or bool(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", NOSUID | NODEV, options) == 0)


def _enter_user_namespace() -> bool:
    """Become root of a new user namespace, which allows entering the other namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(NEW_USER) != 0:
        return False
    try:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)
    except OSError:
        return False
    return True


def _enter_pid_namespace() -> None:
    """Continue as the first process of the new PID namespace; the original process only waits and passes on the exit status."""
    pid = os.fork()
    if pid:
        os.close(0)
        os.close(1)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
