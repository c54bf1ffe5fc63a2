"""Supervisors that are children of this process, reached over pipes, and a sandbox made of them: what needs no container engine.

`process` and `bubblewrap` differ only in how a supervisor is started, and in what isolates it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.admission import CapacityLimiter
from rlvr.errors import ConfigError, SandboxError
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._inside.toolchains import TOOLCHAINS
from rlvr.sandbox._outside.pool import SupervisorPool, count_processors
from rlvr.sandbox._outside.sessions import SessionPool
from rlvr.sandbox._outside.supervisor_connection import (
    SupervisorConnection,
    check_language,
    check_program_fits,
    wait_readable,
    wait_writable,
)

MAX_PROCESSES = 4096
OWN_IDENTITY_MARK = "of its own"
"""Occurs in `ExecutionResult.isolation` if programs have a user id or a PID namespace of their own."""
SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
OLDEST_PYTHON = (3, 11)


def find_system_python() -> str:
    """Return the path of a Python in /usr that is new enough for the supervisor; '' if there is none."""
    for path in SYSTEM_PYTHONS:
        version = re.fullmatch(r"python(\d+)\.(\d+)", Path(path).resolve().name)
        if os.access(path, os.X_OK) and version and tuple(map(int, version.groups())) >= OLDEST_PYTHON:
            return path
    return ""


class LocalSupervisorConnection(SupervisorConnection):
    """Connection to a supervisor that runs as a child process of this one."""

    def __init__(self, id: str, process: subprocess.Popen[bytes], settings: Mapping[str, Any]) -> None:
        """Start the supervisor in a process that waits for its source. Raises ConnectionBroken, with what it said, if it fails."""
        super().__init__()
        self.id, self._process, self._stdin_lock, self._stderr_tail = id, process, threading.Lock(), ""
        try:
            self.bootstrap_supervisor(settings)
        except ConnectionBroken as error:
            self.close()
            raise ConnectionBroken(f"{error}{': ' + self._stderr_tail if self._stderr_tail else ''}") from error
        except BaseException:
            self.close()
            raise

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
        with contextlib.suppress(ValueError, OSError):  # closed by another thread
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

    def explain_program_caused_exit(self) -> str:
        """Explain how the supervisor ended if a program may have signalled it or it gave up by itself; else return ''."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(1) == 0:
                return "its supervisor gave up"
        return "" if self.is_protected_from_programs else "its supervisor ended"

    def shut_down(self) -> None:
        """Close the supervisor's input: it kills what it runs and exits, which ends the stream."""
        with self._stdin_lock, contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()

    def is_alive(self) -> bool:
        """Whether the supervisor is running."""
        return self._process.poll() is None

    def close(self) -> None:
        """Stop the supervisor, which kills what it runs."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        if self._process.stderr and not self._process.stderr.closed:
            os.set_blocking(self._process.stderr.fileno(), False)
            with contextlib.suppress(OSError):
                self._stderr_tail = " ".join((self._process.stderr.read() or b"")[-2000:].decode(errors="replace").split())[-300:]
            self._process.stderr.close()


class LocalSandbox(Sandbox):
    """Sandbox whose supervisors are children of this process: one for each program that runs, and one for each open session."""

    title: ClassVar[str]
    """The sandbox's name in messages."""

    @staticmethod
    def list_languages() -> list[str]:
        """Return the languages of programs whose compilers and interpreters are on this machine; used by `rlvr doctor`."""
        return ["python", *(name for name, toolchain in TOOLCHAINS.items() if toolchain.is_installed())]

    def __init__(
        self,
        start: Callable[[int, SandboxSpec | None], LocalSupervisorConnection],
        *,
        processes: int,
        memory_mb: int,
        disk_mb: int,
        queue_timeout_s: float,
        max_sessions: int,
    ) -> None:
        """Check and store the settings; `start` starts a supervisor, given the size of its disk, and the spec of the sessions it serves."""
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 0:
            raise ConfigError(f"{self.title} sandbox: processes is {processes!r}; 0 (one for each processor) or more is required")
        for name, value in (("memory_mb", memory_mb), ("disk_mb", disk_mb), ("max_sessions", max_sessions)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{self.title} sandbox: {name} is {value!r}; 1 or more is required")
        self.memory_mb = memory_mb
        self._pool: SupervisorPool[LocalSupervisorConnection] = SupervisorPool(
            lambda: start(disk_mb, None), processes or count_processors(), queue_timeout_s
        )
        self._sessions: SessionPool[LocalSupervisorConnection] = SessionPool(
            lambda spec: start(spec.disk_mb, spec), max_sessions, queue_timeout_s
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
        """Open a session with a supervisor of its own, and with the isolation of a program."""
        spec = spec or SandboxSpec()
        if spec.image:
            raise ConfigError(f"the {self.title} sandbox has no images, and the spec names {spec.image!r}; use the docker sandbox")
        try:
            return self._sessions.open_session(spec)
        except (ConnectionBroken, OSError) as error:
            raise SandboxError(f"a session could not be opened: {error}") from error

    def close(self) -> None:
        """Stop every supervisor."""
        self._finalizer()
        atexit.unregister(self._finalizer)


def _close_pools(pool: SupervisorPool[LocalSupervisorConnection], sessions: SessionPool[LocalSupervisorConnection]) -> None:
    sessions.close()
    pool.close()
