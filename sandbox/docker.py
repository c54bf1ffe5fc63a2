"""Run untrusted programs in hardened, long-lived containers; each program is a fresh child process under a user id of its own.

The engine enforces: no network, a read-only root, small in-memory folders, memory without swap, a process limit, no new privileges,
its own seccomp profile, and few capabilities, none of them for programs (see `_outside/container.py`). The supervisor adds: one program
at a time per container (with `namespaces`, in a PID namespace of its own), a second seccomp filter, and per-program limits that the
control group measures from outside the program. All processes are killed and all files wiped before the result is returned.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Any

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.admission import CapacityLimiter
from rlvr.errors import ConfigError, SandboxError, SandboxOutage
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._outside import engine
from rlvr.sandbox._outside.container import Container
from rlvr.sandbox._outside.pool import SupervisorPool, count_processors
from rlvr.sandbox._outside.sessions import SessionPool
from rlvr.sandbox._outside.supervisor_connection import check_language, check_program_fits

RESERVED_PROCESSES = 16  # our own processes in a container; the rest is for a program and its checker


class DockerSandbox(Sandbox):
    """Sandbox that runs programs in `containers` Docker containers (0: one for each processor), each with at most `memory_mb`."""

    def __init__(
        self,
        *,
        image: str = engine.IMAGE,
        containers: int = 0,
        memory_mb: int = 1024,
        disk_mb: int = 64,
        pids: int = 256,
        runtime: str | None = None,
        namespaces: bool = False,
        queue_timeout_s: float = 900.0,
        max_sessions: int = 32,
    ) -> None:
        """Configure the image, the resource limits and the isolation.

        Args:
            image: the image of the containers; the default one is built at first use.
            containers: how many programs run at once; 0: one for each processor.
            memory_mb: memory of one container, in MB.
            disk_mb: space for the files that a program writes; they are kept in memory.
            pids: process limit of one container, including our own processes and a checker's: a program gets a little less than half of it.
            runtime: the engine's runtime, such as runsc for gVisor; None: the engine's default.
            namespaces: whether each program gets a PID namespace of its own, with a /proc that shows nothing else. It costs about 2 ms per
                program, and gives CAP_SYS_ADMIN to the container's zygote, which never reads data of a program. False: programs
                are killed by user id, and the control group's process count confirms that none is left.
            queue_timeout_s: timeout for a program to get a free container, or for a session to get a free slot.
            max_sessions: how many sessions may be open at once, each in a container of its own.
        """
        for name, value, least in (
            ("containers", containers, 0),
            ("memory_mb", memory_mb, 32),
            ("disk_mb", disk_mb, 1),
            ("pids", pids, RESERVED_PROCESSES + 32),
            ("max_sessions", max_sessions, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"docker sandbox: {name} is {value!r}; a whole number of at least {least} is needed")
        self.image, self.memory_mb = image, memory_mb
        self._settings: dict[str, Any] = {
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "pids": pids,
            "runtime": runtime,
            "uses_pid_namespaces": namespaces,
        }
        size = containers or count_processors()
        self._outage = engine.OutageGuard()
        self._prepare_lock = threading.Lock()
        self._prepared_pid = 0
        self._pool: SupervisorPool[Container] = SupervisorPool(self._start_container, size, queue_timeout_s)
        self._sessions: SessionPool[Container] = SessionPool(self._start_session_container, max_sessions, queue_timeout_s)
        # containers end with our sockets anyway; the finalizer also waits until they are removed
        self._finalizer = weakref.finalize(self, _close_pools, self._pool, self._sessions)
        atexit.register(self._finalizer)

    def run_program(self, program: Program) -> ExecutionResult:
        """Run the program in the next free container. A failure of the sandbox is an `ExecutionResult` with `INTERNAL_ERROR`.

        While the engine is away, the program waits for it, and runs again if its container was lost with it. Raises SandboxOutage if
        the engine stays away.
        """
        try:
            return self._run_or_raise(program)
        except SandboxOutage:
            raise
        except SandboxError as error:
            return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason=str(error))

    def _run_or_raise(self, program: Program) -> ExecutionResult:
        if wrong := check_program_fits(program, self.memory_mb, (self._settings["pids"] - RESERVED_PROCESSES) // 2):
            return wrong
        end, num_broken = "", 0
        while num_broken < 2:
            container = self._pool.acquire()
            began = time.monotonic()
            sound = False
            try:
                if wrong := check_language(program, container.handshake["languages"]):
                    sound = True
                    return wrong
                outcome, sound = container.run_program(program)
                return outcome
            except ConnectionBroken as error:
                if self._outage.wait_out_outage(began):
                    continue  # its container went with the engine; it has left nothing, and may run again
                end = _explain_container_exit(container, error)
                num_broken += 1
            finally:
                self._pool.release(container, is_healthy=sound)
        # it broke two fresh containers while the engine works: the program is the cause
        return ExecutionResult(ExitStatus.SANDBOX_VIOLATION, reason=f"the program broke its container, twice: {end}")

    @property
    def session_limiter(self) -> CapacityLimiter:
        """The limiter of open sessions."""
        return self._sessions.limiter

    def create_session(self, spec: SandboxSpec | None = None) -> SandboxSession:
        """Open a session in a container of its own, with its own limits, network namespace, mounts and processes."""
        return self._sessions.open_session(spec or SandboxSpec())

    def _start_session_container(self, place: SandboxSpec) -> Container:
        settings = {
            "memory_mb": place.memory_mb,
            "disk_mb": place.disk_mb,
            "pids": place.processes + RESERVED_PROCESSES,
            "uses_pid_namespaces": False,
            "mounts": place.mounts,
        }
        settings |= {"runtime": self._settings["runtime"], "serves_sessions": True}
        return self._start_container(place.image or self.image, settings, loopback=place.loopback)

    def _start_container(self, image: str = "", settings: dict[str, Any] | None = None, *, loopback: bool = False) -> Container:
        """Start a container; while the engine is away, wait for it."""
        num_lost = 0
        while True:
            began = time.monotonic()
            try:
                return self._start_container_now(image or self.image, settings or self._settings, loopback)
            except SandboxError as error:
                if self._outage.wait_out_outage(began):
                    continue
                num_lost += 1
                if num_lost > 1 or not engine.is_connection_error(error):  # it may have been away for a moment
                    raise

    def _start_container_now(self, image: str, settings: dict[str, Any], loopback: bool) -> Container:
        if self._prepared_pid != os.getpid():
            with self._prepare_lock:
                if self._prepared_pid != os.getpid():
                    client = engine.connect()
                    try:
                        engine.ensure_image(client, self.image)
                        engine.remove_orphaned_containers(
                            client
                        )  # containers whose owner died; the label was there before the container was
                    finally:
                        client.close()
                    self._prepared_pid = os.getpid()
        try:
            if image != self.image:
                client = engine.connect()
                try:
                    engine.ensure_image(client, image)
                finally:
                    client.close()
            container = Container(image, settings, loopback=loopback)
            self._outage.mark_reachable()
            return container
        except SandboxError:
            self._prepared_pid = 0  # a restarted engine may not have our image: check again
            raise

    def list_container_ids(self) -> list[str]:
        """Return the ids of the running containers of this sandbox."""
        return [container.id for container in (*self._pool.list_supervisors(), *self._sessions.list_supervisors())]

    @staticmethod
    def find_problems() -> list[tuple[str, str]]:
        """Return (problem, how to fix it) for everything that prevents this sandbox from working here; used by `rlvr doctor`."""
        hint = engine.get_engine_hint()
        try:
            client = engine.connect(10)
        except SandboxError as error:
            return [(str(error).removesuffix(f"; {hint}"), hint)]
        try:
            if not engine.has_image(client, engine.IMAGE):
                return [(f"the image {engine.IMAGE!r} was not found", f"{engine.IMAGE_HINT}; or let the first use build it")]
        except SandboxError as error:
            return [(str(error), "restart the engine")]
        finally:
            client.close()
        return []

    def close(self) -> None:
        """Stop and remove every container."""
        self._finalizer()
        atexit.unregister(self._finalizer)


def _close_pools(pool: SupervisorPool[Container], sessions: SessionPool[Container]) -> None:
    sessions.close()
    pool.close()


def _explain_container_exit(container: Container, error: ConnectionBroken) -> str:
    """Describe how a container died while a program ran in it. Raises SandboxError if the cause came from outside the container."""
    engine.connect(10).close()  # raises if the engine itself is down: no program caused that
    if not (said := container.explain_program_caused_exit()):
        raise SandboxError(f"the container was killed or blocked from outside while a program ran in it ({error})")
    return said


make = DockerSandbox
