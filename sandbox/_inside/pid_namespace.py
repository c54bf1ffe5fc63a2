"""A separate PID namespace for each program, so that the kernel ends the program as a whole.

The first process of a namespace (its init) is ours, and does nothing. When it is killed, the kernel kills every process in the
namespace, and the init is dead only after the last of them: no fork can outrun that, and no process escapes it. In the namespace the
program also gets its own mounts (a read-only /proc that shows only this program; no /sys, no queues, no terminals) and its own IPC and
cgroup namespaces. This needs CAP_SYS_ADMIN, which only the namespace helper and the zygote keep; neither ever reads data of a program.

The namespace helper is a small process that forks the inits: forking the warm zygote twice for each program would be far slower.
Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import NoReturn

from rlvr.sandbox._inside import capabilities as rights

NEW_PID, NEW_MOUNTS, NEW_IPC, NEW_CGROUP = 0x20000000, 0x20000, 0x8000000, 0x2000000
PRIVATE, RECURSIVE, READ_ONLY, NOSUID, NODEV, NOEXEC, DETACH = 1 << 18, 1 << 14, 1, 2, 4, 8, 2
PR_SET_PDEATHSIG = 1
HIDDEN_MOUNTS = (b"/sys", b"/dev/mqueue", b"/dev/pts")
PID_STRUCT = struct.Struct("i")
FORK_TIMEOUT_S = 30.0
libc = ctypes.CDLL(None, use_errno=True)


class PeerExited(Exception):
    """Raised when our owner, zygote or namespace helper has exited: there is nothing left to do here."""


class NamespaceHelperClient:
    """Supervisor's connection to the namespace helper: requests a PID namespace for each program, and learns when its init is dead."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection, self.pid = connection, pid
        self.live_inits: dict[int, int] = {}
        """Pids of the inits that are still alive, each with a pidfd that reports its end."""
        self._ready_pids: list[int] = []
        self._num_requested = 0

    def request_namespaces(self, count: int) -> None:
        """Request `count` namespaces in advance."""
        for _ in range(count):
            self.connection.send(b"+")
            self._num_requested += 1

    def take_namespace_init(self) -> int:
        """Return the pid of the init of an unused namespace."""
        if not self._ready_pids and not self._num_requested:
            self.request_namespaces(1)
        deadline = time.monotonic() + FORK_TIMEOUT_S
        while not self._ready_pids:
            if not self.receive_message(deadline - time.monotonic()):
                raise PeerExited(f"no PID namespace was created within {FORK_TIMEOUT_S:.0f} s")
        pid = self._ready_pids.pop(0)
        self.live_inits[pid] = os.pidfd_open(pid)
        return pid

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until all inits, and with them everything in their namespaces, are dead; return whether they are."""
        deadline = time.monotonic() + timeout_s
        for pid, number in list(self.live_inits.items()):
            if not select.select([number], [], [], max(deadline - time.monotonic(), 0))[0]:
                return False
            os.close(number)
            del self.live_inits[pid]
        return True

    def receive_message(self, timeout_s: float) -> bool:
        """Receive one message from the helper; return False if none arrives within `timeout_s`."""
        if not select.select([self.connection], [], [], max(timeout_s, 0))[0]:
            return False
        raw = self.connection.recv(64)
        if not raw:
            raise PeerExited("the namespace helper exited")
        self._ready_pids.append(PID_STRUCT.unpack(raw)[0])
        self._num_requested -= 1
        return True


def _run_namespace_helper(connection: socket.socket) -> NoReturn:
    """Run the namespace helper's main loop: create one init for every byte received."""
    rights.keep_only_capabilities(rights.CAP_SYS_ADMIN)
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    while connection.recv(1):
        connection.send(PID_STRUCT.pack(retry_fork(lambda: _fork_namespace_init(home))))
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def retry_fork(fork: Callable[[], int]) -> int:
    """Fork, and retry for a while if memory or processes run short: a program about to be killed may hold them."""
    deadline = time.monotonic() + FORK_TIMEOUT_S / 2
    while True:
        try:
            return fork()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _fork_namespace_init(own_namespace: int) -> int:
    """Fork an init in a new PID namespace; return its pid in our namespace."""
    if libc.unshare(NEW_PID) != 0:
        raise OSError(ctypes.get_errno(), "no PID namespace")
    try:
        pid = os.fork()
    except OSError:
        libc.setns(own_namespace, NEW_PID)
        raise
    if pid:
        if libc.setns(own_namespace, NEW_PID) != 0:
            os._exit(97)  # the next child would be created in a namespace that is ending
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans by itself
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a handler the kernel drops every signal from inside to an init
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.closerange(0, 4096)
    while True:
        signal.pause()


def fork_into_namespace(init: int, own_namespace: int) -> int:
    """Fork the zygote, with the child in the PID namespace of the process `init`.

    The child must still call `mount_own_proc`.
    """
    space = os.open(f"/proc/{init}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(space, NEW_PID) != 0:
            raise OSError(ctypes.get_errno(), "the PID namespace cannot be entered")
    finally:
        os.close(space)
    try:
        pid = os.fork()
    except OSError:
        libc.setns(own_namespace, NEW_PID)
        raise
    if pid and libc.setns(own_namespace, NEW_PID) != 0:
        os._exit(97)
    return pid


def unshare_zygote_namespaces() -> None:
    """Give the zygote, once for all programs, mount, IPC and cgroup namespaces separate from the supervisor's."""
    if libc.unshare(NEW_MOUNTS | NEW_IPC) != 0 or libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no separate mounts")
    libc.unshare(NEW_CGROUP)  # hides the container's name; kernels without it show it
    for place in HIDDEN_MOUNTS:
        libc.umount2(place, DETACH)


def mount_own_proc(oom_score: int) -> None:
    """Mount a /proc for this program alone; runs in the forked child. Raises OSError if that is not possible."""
    with contextlib.suppress(OSError), open("/proc/thread-self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(oom_score))  # no process can lower it again: /proc is read-only in the namespace
    flags = READ_ONLY | NOSUID | NODEV | NOEXEC
    if libc.unshare(NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "no separate mounts")
    # 4 hides what may not be traced from everybody; 2, for kernels before 5.8, not from members of the group 0
    if all(libc.mount(b"proc", b"/proc", b"proc", flags, data) != 0 for data in (b"hidepid=4", b"hidepid=2", None)):
        raise OSError(ctypes.get_errno(), "no separate /proc")


def has_namespace_support() -> bool:
    """Return whether PID namespaces work here, by creating and removing one in a separate process."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)
            signal.alarm(int(FORK_TIMEOUT_S))
            home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            unshare_zygote_namespaces()
            init = _fork_namespace_init(home)
            os.close(os.pidfd_open(init))
            child = fork_into_namespace(init, home)
            if child == 0:
                mount_own_proc(0)
                os._exit(0 if os.getpid() == 2 and os.readlink("/proc/self") == "2" else 1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.kill(init, signal.SIGKILL)
        os._exit(0 if status == 0 else 1)
    _, ended = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(ended) == 0


def start_namespace_helper() -> NamespaceHelperClient:
    """Fork the namespace helper and return the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            _run_namespace_helper(theirs)
        finally:
            os._exit(1)
    theirs.close()
    return NamespaceHelperClient(ours, pid)
