"""Run untrusted programs in the isolation that this machine has: `docker` where an engine replies, else `bubblewrap`.

The choice is made at the first use, and holds until `close`: a run whose engine goes away waits for that engine. Both sandboxes run the
same supervisor and give the same verdicts. An image, a runtime and other settings of containers belong to `docker`, by its name.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, ClassVar

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.admission import CapacityLimiter
from rlvr.errors import SandboxError
from rlvr.sandbox._outside import engine
from rlvr.sandbox.bubblewrap import OTHERWISE, BubblewrapSandbox
from rlvr.sandbox.docker import DockerSandbox

ENGINE_TIMEOUT_S = 10.0
logger = logging.getLogger("rlvr.sandbox")


class AutoSandbox(Sandbox):
    """Sandbox that isolates with what this machine has: Docker where an engine replies, else bubblewrap."""

    setting_hints: ClassVar = {
        name: f"it is a setting of docker: sandbox={{'name': 'docker', {name!r}: ...}}"
        for name in ("image", "containers", "pids", "runtime", "namespaces")
    }

    def __init__(
        self,
        *,
        processes: int = 0,
        memory_mb: int = 1024,
        disk_mb: int = 64,
        queue_timeout_s: float = 900.0,
        max_sessions: int = 32,
    ) -> None:
        """Configure the resource limits of the sandbox that is used. No engine is asked yet.

        Args:
            processes: how many programs run at once; 0: one for each processor.
            memory_mb: memory of a program, or of the container for one program at a time.
            disk_mb: space for the files that a program writes; they are kept in memory.
            queue_timeout_s: timeout for a program to get a free place, or for a session to get a free slot.
            max_sessions: how many sessions may be open at once.
        """
        self.memory_mb = memory_mb
        limits: dict[str, Any] = {
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "queue_timeout_s": queue_timeout_s,
            "max_sessions": max_sessions,
        }
        self._candidates: tuple[Sandbox, Sandbox] = (
            DockerSandbox(containers=processes, **limits),
            BubblewrapSandbox(processes=processes, **limits),
        )
        self._lock = threading.Lock()
        self._chosen: Sandbox | None = None

    def choose(self) -> Sandbox:
        """Return the sandbox that is used, and choose one at the first call. Raises SandboxError if none works on this machine."""
        with self._lock:
            if self._chosen is None:
                self._chosen = self._find_working()
                if isinstance(self._chosen, BubblewrapSandbox):
                    logger.info("no Docker Engine replies: programs run in bubblewrap")
            return self._chosen

    def _find_working(self) -> Sandbox:
        docker, bubblewrap = self._candidates
        try:
            engine.connect(ENGINE_TIMEOUT_S).close()
        except SandboxError as error:
            no_engine = str(error).removesuffix(f"; {engine.get_engine_hint()}")
        else:
            return docker
        if not (problems := BubblewrapSandbox.find_problems()):
            return bubblewrap
        [(what, how)] = problems
        how = how.removesuffix(OTHERWISE).rstrip(" ,;")
        raise SandboxError(f"nothing on this machine isolates programs: {no_engine}, and {what}; start Docker, or {how}")

    def run_program(self, program: Program) -> ExecutionResult:
        """Run a program until it exits or reaches a limit."""
        try:
            chosen = self.choose()
        except SandboxError as error:
            return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason=str(error))
        return chosen.run_program(program)

    @property
    def session_limiter(self) -> CapacityLimiter | None:
        """The limiter of sessions of the sandbox that is used; None if none works, which `create_session` reports."""
        try:
            return self.choose().session_limiter
        except SandboxError:
            return None

    def create_session(self, spec: SandboxSpec | None = None) -> SandboxSession:
        """Create a session."""
        return self.choose().create_session(spec)

    @staticmethod
    def find_problems() -> list[tuple[str, str]]:
        """Return [(problem, how to fix it)] if no sandbox works here, else an empty list.

        Called by `rlvr doctor`.
        """
        with AutoSandbox() as sandbox:
            try:
                sandbox._find_working()
            except SandboxError as error:
                what, _, how = str(error).partition("; ")
                return [(what, how)]
        return []

    def close(self) -> None:
        """Close both sandboxes."""
        for sandbox in self._candidates:
            sandbox.close()


make = AutoSandbox
