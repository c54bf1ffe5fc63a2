"""Enter namespaces for a supervisor that runs without a container: as many as the kernel allows.

The order is: a user namespace if not root; network, IPC, host name; small in-memory folders mounted over world-writable ones; a PID
namespace with a /proc of its own. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PRIVATE, RECURSIVE, NOSUID, NODEV, NOEXEC, PR_SET_PDEATHSIG = 1 << 18, 1 << 14, 2, 4, 8, 1
WRITABLE_FOLDERS, CLOSED_FOLDERS, OWN_DISK_LABEL = ("/tmp", "/dev/shm"), ("/var/tmp", "/run/lock"), "a small disk"
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
