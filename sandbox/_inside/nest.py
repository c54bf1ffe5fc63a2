"""A nest: a process space of its own for one program, so that its end is a fact of the kernel's.

The first process of a process space (its init) is ours. When it dies, the kernel kills everything in that space, and the init
counts as ended only after the last of them is gone: no fork outruns that, no process hides from it. The nest also has
mounts of its own (a read-only /proc that shows only this program; no /sys, no queues, no terminals) and its own IPC and control-group names.
It needs CAP_SYS_ADMIN, which the zygote keeps for this alone. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
from typing import NoReturn

NEW_PID, NEW_MOUNTS, NEW_IPC, NEW_CGROUP = 0x20000000, 0x20000, 0x8000000, 0x2000000
PRIVATE, RECURSIVE, READ_ONLY, NOSUID, NODEV, NOEXEC, DETACH = 1 << 18, 1 << 14, 1, 2, 4, 8, 2
PARENT_DEATH, SET_DUMPABLE = 1, 4
UNSEEN = (b"/sys", b"/dev/mqueue", b"/dev/pts")
WAIT_S = 20
libc = ctypes.CDLL(None, use_errno=True)


class Nest:
    """Forks programs into process spaces of their own.

    >>> Nest().fork(1000, door, 1)        # doctest: +SKIP
    4711
    """

    def __init__(self) -> None:
        self._home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self, oom: int, door: socket.socket | None, serial: int) -> int:
        """Like `os.fork`, but the child is the second process of a new process space. The parent gets the pid of its init."""
        if libc.unshare(NEW_PID) != 0:
            raise OSError(ctypes.get_errno(), "no process space")
        try:
            init = os.fork()
        except OSError:
            libc.setns(self._home, NEW_PID)
            raise
        if init:
            if libc.setns(self._home, NEW_PID) != 0:
                os._exit(97)  # the next child would be born into a space that ends
            return init
        try:
            settle(oom)
            child = os.fork()
        except OSError as error:
            os.write(2, f"no namespaces for the program: {error}\n".encode())
            os._exit(95)
        return mind(child, door, serial) if child else 0


def settle(oom: int) -> None:
    """In the init: mounts, IPC and control-group names of its own. OSError when /proc cannot be had."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    libc.prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(oom))  # nobody can lower it again: /proc is read-only in the nest
    libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    if libc.unshare(NEW_MOUNTS | NEW_IPC) != 0:
        raise OSError(ctypes.get_errno(), "no mounts of its own")
    libc.unshare(NEW_CGROUP)  # hides the container's name; kernels without it show it
    options = RECURSIVE | PRIVATE
    if libc.mount(b"none", b"/", None, options, None) != 0:
        raise OSError(ctypes.get_errno(), "mounts stay shared")
    flags = READ_ONLY | NOSUID | NODEV | NOEXEC
    if all(libc.mount(b"proc", b"/proc", b"proc", flags, data) != 0 for data in (b"hidepid=2", None)):
        raise OSError(ctypes.get_errno(), "no /proc of its own")
    for place in UNSEEN:
        libc.umount2(place, DETACH)


def mind(child: int, door: socket.socket | None, serial: int) -> NoReturn:
    """The init's life: bury orphans until the program itself has ended, tell how, and end the nest."""
    keep = door.fileno() if door is not None else -1
    os.closerange(3, keep if keep > 3 else 3)  # the program's channels must end when the program ends
    os.closerange(max(keep + 1, 3), 4096)
    while True:
        pid, status, used = os.wait4(-1, 0)
        if pid == child:
            if door is not None:
                spent = used.ru_utime + used.ru_stime
                door.send(json.dumps({"serial": serial, "status": status, "peak_kb": used.ru_maxrss, "cpu": spent}).encode())
            os._exit(0 if status == 0 else 1)


def possible() -> bool:
    """Whether nests work here: one is made and thrown away, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)
            init = Nest().fork(0, None, 0)
            if init == 0:
                os._exit(0 if os.getpid() == 2 and os.readlink("/proc/self") == "2" else 1)
            signal.alarm(WAIT_S)
            _, ended = os.waitpid(init, 0)
            status = os.waitstatus_to_exitcode(ended)
        os._exit(0 if status == 0 else 1)
    _, ended = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(ended) == 0
