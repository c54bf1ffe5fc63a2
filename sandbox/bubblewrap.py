"""Run untrusted programs in namespaces that `bwrap` (the package bubblewrap) creates: no container engine, and no root.

The supervisor of the containers runs as a child of this process in user, PID, network, IPC, mount and host-name namespaces of its own,
on a read-only system that consists of /usr and what programs need of /etc. It has no home, /var, /run or /sys, and no descriptor but
its own three. Each program gets a PID namespace of its own in it, the only way in which a supervisor is protected from programs that
run under its own user id; so nothing starts without it. As root, each program also has a user id of its own.

There is no control group: memory and the count of processes are limited by the kernel's limits for processes, and by the supervisor,
which adds up the memory of all processes every few milliseconds. `ExecutionResult.isolation` lists what was read from the kernel.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rlvr.contracts import SandboxSpec
from rlvr.errors import SandboxError
from rlvr.sandbox._inside import namespaces
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._inside.process_killer import BY_NAMESPACE
from rlvr.sandbox._outside.local_supervisor import LocalSandbox, LocalSupervisorConnection, find_system_python
from rlvr.sandbox._outside.supervisor_connection import BOOTSTRAP_CODE

PROGRAM = "bwrap"
OTHERWISE = "or use the docker sandbox"
INSTALL_HINT = f"install the package bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`), {OTHERWISE}"
START_HINT = (
    "it needs namespaces: inside a container, start that one with `--security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --security-opt systempaths=unconfined`; where the system forbids user namespaces, allow them (Ubuntu: `sysctl "
    f"kernel.apparmor_restrict_unprivileged_userns=0`; Debian: `sysctl kernel.unprivileged_userns_clone=1`); {OTHERWISE}"
)
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/R", "/etc/mono")
"""Of /etc only these, and the settings of a Java runtime: compilers and interpreters of packages look there."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ROOT_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "40")
"""What the supervisor starts with as root; PTRACE is needed to read how much memory another user's process has, and 40
(CHECKPOINT_RESTORE, a name that older systems lack) how much it shares."""
REQUIRED_ISOLATION = (
    f"every program ended by {BY_NAMESPACE}",
    "no network",
    "read-only root",
    "no new privileges",
    "system-call filter",
    "process count limited by the kernel",
)
REQUIRED_NAMESPACES = ("network", "ipc", "mounts", "processes")
PROGRAMS_FOLDER = "/rlvr/bin"
"""A folder at the end of the PATH, where `python` is, which Debian calls python3 alone."""
INSIDE_USER_ID = "1000"
OLDEST_KERNEL = (5, 14)
"""From here on the kernel counts the processes of a user id in each user namespace by itself."""


def find_python() -> tuple[str, list[str]]:
    """Return a Python for the supervisor, and the arguments that make it visible if it is not part of the system."""
    if path := find_system_python():
        return path, []
    program, library = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve() / "lib"
    packages = Path(os.__file__).resolve().parent / "site-packages"
    mounts = [*_build_mount(str(program), str(program)), *_build_mount(str(library), str(library))]
    return str(program), [*mounts, *(["--perms", "0755", "--tmpfs", str(packages)] if packages.is_dir() else [])]


def _build_mount(source: str, place: str) -> list[str]:
    """Build the arguments that mount a file or folder read-only, and let everybody pass through the folders above it."""
    above = [word for folder in reversed(Path(place).parents[:-1]) for word in ("--perms", "0755", "--dir", str(folder))]
    return [*above, "--ro-bind", source, place]


def can_separate_user_ids() -> bool:
    """Return whether programs can have user ids of their own: as root, unless in a user namespace that maps only a few."""
    mapped = [int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text("ascii").splitlines()]
    return os.geteuid() == 0 and sum(mapped) > 1 << 31


def build_supervisor_command(program: str, python: str, python_mounts: list[str], mounts: Mapping[str, str]) -> list[str]:
    """Build the command that starts a supervisor in namespaces of its own, on a read-only system of what programs need."""
    words = [program, *(f"--unshare-{kind}" for kind in ("pid", "net", "ipc", "uts", "cgroup-try")), "--hostname", "sandbox"]
    words += ["--die-with-parent", "--new-session", "--clearenv", "--chdir", "/", "--ro-bind", "/usr", "/usr"]
    for place in SYSTEM_FOLDERS:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            words += ["--ro-bind", place, place]
    words += ["--perms", "0755", "--dir", "/etc"]
    shown = (*SYSTEM_FILES, *map(str, Path("/etc").glob("java-*-openjdk")))
    words += itertools.chain.from_iterable(("--ro-bind-try", place, place) for place in shown)
    words += ["--perms", "0755", "--dir", PROGRAMS_FOLDER, "--symlink", python, f"{PROGRAMS_FOLDER}/python"]
    words += itertools.chain.from_iterable(_build_mount(source, place) for place, source in sorted(mounts.items()))
    words += [*python_mounts, "--proc", "/proc", "--dir", "/tmp", "--dir", "/dev/shm"]
    words += itertools.chain.from_iterable(("--dev-bind", f"/dev/{name}", f"/dev/{name}") for name in DEVICES)
    words += ["--symlink", "/proc/self/fd", "/dev/fd"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        words += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    if can_separate_user_ids():
        words += ["--cap-drop", "ALL", *itertools.chain.from_iterable(("--cap-add", name) for name in ROOT_CAPABILITIES)]
    else:
        words += ["--unshare-user", "--uid", INSIDE_USER_ID, "--gid", INSIDE_USER_ID, "--cap-add", "ALL"]
    return [*words, "--remount-ro", "/", "--", python, "-I", "-B", "-c", BOOTSTRAP_CODE]


class _Launcher:
    """Starts processes from one thread that lasts as long as this process.

    `--die-with-parent` lets the kernel kill a process when the thread that started it ends, which a worker's thread soon does.
    """

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), 0
        self._orders: SimpleQueue[tuple[list[str], SimpleQueue[Any]]] = SimpleQueue()

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command with pipes, an empty environment and no terminal. Raises OSError if it cannot be started."""
        if self._pid != os.getpid():  # also in a forked child, which has no thread of its parent
            self._lock = threading.Lock() if self._pid else self._lock
            with self._lock:
                if self._pid != os.getpid():
                    self._orders, self._pid = SimpleQueue(), os.getpid()
                    threading.Thread(target=self._serve, args=(self._orders,), name="rlvr-bubblewrap", daemon=True).start()
        reply: SimpleQueue[Any] = SimpleQueue()
        self._orders.put((command, reply))
        started = reply.get()
        if isinstance(started, BaseException):
            raise started
        process: subprocess.Popen[bytes] = started
        return process

    @staticmethod
    def _serve(orders: SimpleQueue[tuple[list[str], SimpleQueue[Any]]]) -> None:
        pipe = subprocess.PIPE
        while True:
            command, reply = orders.get()
            try:
                reply.put(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", start_new_session=True))
            except BaseException as error:
                reply.put(error)


_launcher = _Launcher()
_numbers = itertools.count(1)


class NamespacedSupervisor(LocalSupervisorConnection):
    """Supervisor in namespaces that bwrap created. Raises ConnectionBroken if it does not start, SandboxError if isolation is missing."""

    def __init__(self, disk_mb: int, spec: SandboxSpec | None) -> None:
        if not (program := shutil.which(PROGRAM)):
            raise SandboxError(f"the bubblewrap sandbox needs the program `{PROGRAM}`, which is not installed; {INSTALL_HINT}")
        is_root = can_separate_user_ids()
        if not is_root and _read_kernel_version() < OLDEST_KERNEL:
            raise SandboxError(
                f"the bubblewrap sandbox needs Linux {'.'.join(map(str, OLDEST_KERNEL))} or newer unless it runs as root, and this is "
                f"{os.uname().release}: older kernels cannot count the processes of one sandbox; use the docker sandbox"
            )
        settings: dict[str, Any] = {
            "places": [],
            "uid": random.SystemRandom().randrange(1 << 20, 1 << 30) if is_root else None,
            "has_own_users": True,
            "cgroup": False,
            "outer_namespaces": namespaces.read_namespace_ids(),
            "nests": True,
            "disk_mb": disk_mb,
            "boxes": "" if spec is None else "box",
            "loopback": spec is not None and spec.loopback,
        }
        mounts = {} if spec is None else spec.mounts
        super().__init__(
            f"bubblewrap-{os.getpid()}-{next(_numbers)}",
            _launcher.start(build_supervisor_command(program, *find_python(), mounts)),
            settings,
        )
        if missing := find_missing_isolation(self.handshake["isolation"]):
            self.close()
            raise SandboxError(f"the bubblewrap sandbox has no {' and no '.join(missing)} here; {START_HINT}")


def find_missing_isolation(isolation: list[str]) -> list[str]:
    """Return what the kernel must have granted and did not, by what a supervisor read from it.

    >>> find_missing_isolation([*REQUIRED_ISOLATION, "namespaces: network, ipc, host name, processes"])
    ['namespace of mounts']
    """
    held = next((line.partition(": ")[2].split(", ") for line in isolation if line.startswith("namespaces: ")), [])
    missing = [f"namespace of {name}" for name in REQUIRED_NAMESPACES if name not in held]
    return missing + [f"“{line}”" for line in REQUIRED_ISOLATION if line not in isolation]


def _read_kernel_version() -> tuple[int, int]:
    numbers = os.uname().release.split(".")
    return int(numbers[0]), int("".join(itertools.takewhile(str.isdigit, numbers[1])))


def _start_namespaced_supervisor(disk_mb: int, spec: SandboxSpec | None) -> NamespacedSupervisor:
    """Start a supervisor; raises SandboxError, in one sentence, where that is not possible."""
    try:
        return NamespacedSupervisor(disk_mb, spec)
    except (ConnectionBroken, OSError) as error:
        raise SandboxError(f"bubblewrap could not start a supervisor ({error}); {START_HINT}") from error


class BubblewrapSandbox(LocalSandbox):
    """Sandbox that runs programs in namespaces created by bwrap: isolation without a container engine, as root or as any user."""

    title = "bubblewrap"

    def __init__(
        self,
        *,
        processes: int = 0,
        memory_mb: int = 1024,
        disk_mb: int = 64,
        queue_timeout_s: float = 900.0,
        max_sessions: int = 32,
    ) -> None:
        """Configure the resource limits.

        Args:
            processes: how many programs run at once; 0: one for each processor.
            memory_mb: the most memory that a program may ask for.
            disk_mb: space for the files that a program writes; they are kept in memory.
            queue_timeout_s: timeout for a program to get a free supervisor, or for a session to get a free slot.
            max_sessions: how many sessions may be open at once.
        """
        super().__init__(
            _start_namespaced_supervisor,
            processes=processes,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            queue_timeout_s=queue_timeout_s,
            max_sessions=max_sessions,
        )

    @staticmethod
    def find_problems() -> list[tuple[str, str]]:
        """Return (problem, how to fix it) for what prevents this sandbox from working here: it starts a supervisor. For `rlvr doctor`."""
        try:
            _start_namespaced_supervisor(1, None).close()
        except SandboxError as error:
            what, _, how = str(error).partition("; ")
            return [(what, how)]
        return []


make = BubblewrapSandbox
