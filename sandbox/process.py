"""Run programs as plain child processes; no engine needed. For code that you trust.

Uses the same supervisor as the containers, started as a child of this process: children forked from a warm interpreter, limits, a
seccomp filter, everything killed afterwards. Where the kernel allows it (as root, or with user namespaces), programs also have no
network, and a PID namespace and a working folder of their own; as root, a user id of their own.

Not a security boundary: programs can read every file of this machine that their user may read, run on its kernel without a second
barrier, and, without root, run as *you*. `ExecutionResult.isolation` lists the isolation that was really applied. This sandbox must
therefore be requested with `trusted=True`, and nothing ever falls back to it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.admission import CapacityLimiter
from rlvr.errors import ConfigError, SandboxError
from rlvr.runs.folder_owner import create_owned_folder, get_owner_label, is_owner_dead, remove_folder, remove_orphaned_folders
from rlvr.sandbox._inside.box import cgroups as groups
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._outside.pool import SupervisorPool, count_processors
from rlvr.sandbox._outside.sessions import SessionPool
from rlvr.sandbox._outside.supervisor_connection import (
    BOOTSTRAP_CODE,
    SupervisorConnection,
    check_language,
    check_program_fits,
    wait_readable,
    wait_writable,
)

FOLDER_PREFIX = "rlvr-sandbox-"
MAX_PROCESSES = 4096
OWN_IDENTITY_MARK = "of its own"
"""Occurs in `ExecutionResult.isolation` if programs have a user id or a PID namespace of their own."""


def find_readable_interpreter() -> str:
    """Return the path of a Python whose library other users may read: as root, every program runs as another user."""
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in Path(os.__file__).resolve().parents):
        return sys.executable
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.access(path, os.X_OK):
            return path
    raise SandboxError(
        f"as root, programs run as other users, and those may not read {Path(os.__file__).parent}; install python3 in /usr/bin"
    )


class LocalSupervisorConnection(SupervisorConnection):
    """Supervisor that runs as a child process and owns the folder that programs write to."""

    def __init__(self, disk_mb: int, *, serves_sessions: bool = False) -> None:
        self._stdin_lock = threading.Lock()
        for namespaces in (True, False):
            self._folder = str(create_owned_folder(FOLDER_PREFIX))
            self.id = os.path.basename(self._folder)
            self._cgroup = f"{self.id}={get_owner_label(os.getpid()).replace('/', '_')}"
            os.chmod(self._folder, 0o711)
            self._process = subprocess.Popen(
                [find_readable_interpreter(), "-I", "-B", "-c", BOOTSTRAP_CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,  # Ctrl-C is for this process: a run goes on to the end of its step
            )
            uid = random.SystemRandom().randrange(1 << 20, 1 << 30) if os.geteuid() == 0 else None
            place = os.path.join(self._folder, "work")
            os.mkdir(place, 0o700)
            try:
                settings = {"places": [place], "uid": uid, "cgroup": False, "namespaces": namespaces, "nests": namespaces}
                self.start_supervisor(settings | {"disk_mb": disk_mb, "boxes": self._cgroup if serves_sessions else ""})
                return
            except ConnectionBroken as error:
                self.close()
                if not namespaces:
                    raise SandboxError(f"the supervisor did not start: {error}; it needs Linux with /proc") from error

    def send(self, data: bytes, deadline: float) -> None:
        """Send all the data."""
        assert self._process.stdin
        rest = memoryview(data)
        while rest:
            with self._stdin_lock:
                try:
                    number = self._process.stdin.fileno()
                    if wait_writable(number, 0.05):
                        rest = rest[os.write(number, rest[:65536]) :]
                        continue
                except (OSError, ValueError) as error:
                    raise ConnectionBroken(f"sending failed: {error}") from error
            if time.monotonic() > deadline:
                raise ConnectionBroken("the supervisor does not read")

    def receive(self, buffer: memoryview, deadline: float) -> int:
        """Receive some bytes before the deadline."""
        assert self._process.stdout
        with contextlib.suppress(ValueError):
            number = self._process.stdout.fileno()
            if wait_readable(number, deadline - time.monotonic()):
                count = os.readv(number, [buffer])
                if count:
                    return count
        raise ConnectionBroken("the supervisor exited or does not reply")

    @property
    def is_protected_from_programs(self) -> bool:
        """Whether programs have a user id or a process space of their own, so that they cannot signal the supervisor."""
        return any(OWN_IDENTITY_MARK in line for line in self.handshake["isolation"])

    def explain_exit(self) -> str:
        """Explain how the supervisor ended if a program may have signalled it or it gave up by itself; else return ''."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(1) == 0:
                return "its supervisor gave up"
        return "" if self.is_protected_from_programs else "its supervisor ended"

    def disconnect(self) -> None:
        """Close the supervisor's input: it kills what it runs and exits, which ends the stream."""
        with self._stdin_lock, contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()

    def is_alive(self) -> bool:
        """Whether the supervisor is running."""
        return self._process.poll() is None

    def close(self) -> None:
        """Stop the supervisor (it kills what it runs) and remove the folder."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        groups.remove_parent_cgroup(self._cgroup)
        with contextlib.suppress(OSError):
            remove_folder(Path(self._folder))


class ProcessSandbox(Sandbox):
    """Sandbox that runs programs as child processes of this one. Only for code that you trust: it requires `trusted=True`."""

    def __init__(
        self,
        *,
        trusted: bool = False,
        processes: int = 0,
        memory_mb: int = 4096,
        disk_mb: int = 64,
        queue_timeout_s: float = 900.0,
        max_sessions: int = 32,
    ) -> None:
        """Confirm that the code is trusted, and configure the resource limits.

        Args:
            trusted: must be true: this sandbox does not protect this machine's files from untrusted code.
            processes: how many programs run at once; 0: one for each processor.
            memory_mb: memory of one program.
            disk_mb: space for the files that a program writes.
            queue_timeout_s: timeout for a program to get a free supervisor, or for a session to get a free slot.
            max_sessions: how many sessions may be open at once.
        """
        if trusted is not True:
            raise ConfigError(
                "the process sandbox does not protect this machine's files from untrusted code; use the docker sandbox, or, for code that "
                "you would run yourself, set trusted=True. In Python: sandbox={'name': 'process', 'trusted': True}. On the command line: "
                "--set 'sandbox={name: process, trusted: true}', where the plugin has a setting `sandbox`; "
                "--set 'verifier={name: unit_tests, sandbox: {name: process, trusted: true}}', where its verifier has it; "
                "--set trusted=true for `rlvr check sandbox process`"
            )
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 0:
            raise ConfigError(f"process sandbox: processes is {processes!r}; 0 (one for each processor) or more is required")
        if isinstance(max_sessions, bool) or not isinstance(max_sessions, int) or max_sessions < 1:
            raise ConfigError(f"process sandbox: max_sessions is {max_sessions!r}; 1 or more is required")
        self.memory_mb = memory_mb
        remove_orphaned_folders(FOLDER_PREFIX)
        for name in groups.list_parent_cgroups(FOLDER_PREFIX):
            if is_owner_dead(name.partition("=")[2]):  # its folder may be in another temporary folder than ours
                groups.remove_parent_cgroup(name)
        self._pool: SupervisorPool[LocalSupervisorConnection] = SupervisorPool(
            lambda: LocalSupervisorConnection(disk_mb), processes or count_processors(), queue_timeout_s
        )
        self._sessions: SessionPool[LocalSupervisorConnection] = SessionPool(
            lambda place: LocalSupervisorConnection(place.disk_mb, serves_sessions=True), max_sessions, queue_timeout_s
        )
        self._finalizer = weakref.finalize(self, _close_pools, self._pool, self._sessions)
        atexit.register(self._finalizer)

    def run_program(self, program: Program) -> ExecutionResult:
        """Run the program in the next free supervisor. A failure of the sandbox is an `ExecutionResult` with `INTERNAL_ERROR`."""
        try:
            return self._run_or_raise(program)
        except SandboxError as error:
            return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason=str(error))

    def _run_or_raise(self, program: Program) -> ExecutionResult:
        if wrong := check_program_fits(program, self.memory_mb, MAX_PROCESSES):
            return wrong
        end = ""
        for _ in range(2):
            channel = self._pool.acquire()
            sound = False
            try:
                if wrong := check_language(program, channel.handshake["languages"]):
                    sound = True
                    return wrong
                outcome, sound = channel.run_program(program)
                return outcome
            except ConnectionBroken as error:
                end = str(error)
                if channel.is_protected_from_programs:
                    raise SandboxError(f"the supervisor was killed or blocked from outside: {end}") from error
            finally:
                self._pool.release(channel, is_healthy=sound)
        # it could signal its supervisor, and two of them ended: the program is the cause
        return ExecutionResult(ExitStatus.SANDBOX_VIOLATION, reason=f"the program broke its supervisor, twice: {end}")

    @property
    def session_limiter(self) -> CapacityLimiter:
        """The limiter of open sessions."""
        return self._sessions.limiter

    def create_session(self, spec: SandboxSpec | None = None) -> SandboxSession:
        """Open a session with a supervisor of its own, and with namespaces of its own where the kernel allows them."""
        spec = spec or SandboxSpec()
        if spec.image:
            raise ConfigError(f"the process sandbox has no images, and the spec names {spec.image!r}; use the docker sandbox")
        try:
            return self._sessions.open_session(spec)
        except (ConnectionBroken, OSError) as error:
            raise SandboxError(f"a session could not be opened: {error}") from error

    @staticmethod
    def find_problems() -> list[tuple[str, str]]:
        """Return (problem, how to fix it) for everything that prevents this sandbox from working here; used by `rlvr doctor`."""
        return [] if sys.platform == "linux" else [(f"it needs Linux, and this is {sys.platform}", "use the docker sandbox")]

    def close(self) -> None:
        """Stop every supervisor."""
        self._finalizer()
        atexit.unregister(self._finalizer)


def _close_pools(pool: SupervisorPool[LocalSupervisorConnection], sessions: SessionPool[LocalSupervisorConnection]) -> None:
    sessions.close()
    pool.close()


make = ProcessSandbox
