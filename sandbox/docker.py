"""Foreign programs in hardened, long-lived containers; a fresh child under a user id of its own for every program.

What the engine enforces: no network, a read-only root, small folders in memory, memory without swap, a process count, no new
privileges, its own system-call profile, and few capabilities, none of them a program's (`_outside/container.py` argues for each). What
the supervisor adds: one program at a time in each container (with `namespaces`, in a process space of its own), a second system-call
filter, per-program limits measured by the control group from outside the program, everything ended and wiped before the verdict leaves.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Any

from rlvr.contracts import Outcome, Program, Sandbox, Stop
from rlvr.errors import ConfigError, SandboxError
from rlvr.sandbox._inside.frames import Torn
from rlvr.sandbox._outside import engine
from rlvr.sandbox._outside.channel import lacking, refused
from rlvr.sandbox._outside.container import Container
from rlvr.sandbox._outside.pool import Pool, processors

RESERVED = 16  # processes of a container that are ours; the rest is for a program and its judge


class DockerSandbox(Sandbox):
    r"""Run programs in containers. `containers` at once (0: one for each processor), each with `memory_mb` at the most.

    >>> DockerSandbox(containers=2).run(Program("print(6 * 7)")).stdout        # doctest: +SKIP
    b'42\n'
    """

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
        queue_s: float = 900.0,
    ) -> None:
        """Say how much of the machine it may have.

        Args:
            image: what the containers are made of; built at first use if it is ours.
            containers: how many programs run at once; 0: one for each processor.
            memory_mb: memory of one container.
            disk_mb: room for the files that a program writes; they lie in memory.
            pids: processes of one container, ours and a judge's included: a program may have somewhat less than half of them.
            runtime: the engine's runtime, such as runsc for gVisor; None: the engine's own.
            namespaces: whether each program gets a process space of its own, with a /proc that shows nothing else. It costs some 2 ms for
                each program, and CAP_SYS_ADMIN for the container's zygote, which never reads a byte of a program. False: programs
                are ended by their user id, and the control group's count shows that nobody is left.
            queue_s: how long a program waits for its turn at the most.
        """
        for name, value, least in (
            ("containers", containers, 0),
            ("memory_mb", memory_mb, 32),
            ("disk_mb", disk_mb, 1),
            ("pids", pids, RESERVED + 32),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"docker sandbox: {name} is {value!r}; a whole number of at least {least} is needed")
        self.image, self.memory_mb = image, memory_mb
        self._settings: dict[str, Any] = {"memory_mb": memory_mb, "disk_mb": disk_mb, "pids": pids, "runtime": runtime, "nests": namespaces}
        size = containers or processors()
        self._ready = threading.Lock()
        self._prepared = 0
        self._pool: Pool[Container] = Pool(self._start, size, queue_s)
        # the reaper: containers end with our sockets anyway, this also waits for them to be gone
        self._reaper = weakref.finalize(self, self._pool.close)
        atexit.register(self._reaper)

    def run(self, program: Program) -> Outcome:
        """Run it in the next free container. Whatever fails on our side is an Outcome with `Stop.IE`."""
        try:
            return self._run(program)
        except SandboxError as error:
            return Outcome(Stop.IE, reason=str(error))

    def _run(self, program: Program) -> Outcome:
        if wrong := refused(program, self.memory_mb, (self._settings["pids"] - RESERVED) // 2):
            return wrong
        end = ""
        for _ in range(2):
            container = self._pool.take()
            sound = False
            try:
                if wrong := lacking(program, container.hello["languages"]):
                    sound = True
                    return wrong
                outcome, sound = container.run(program)
                return outcome
            except Torn as error:
                end = _obituary(container, error)
            finally:
                self._pool.give(container, sound=sound)
        # it took two fresh containers down, and the engine lives: that is the program's own work
        return Outcome(Stop.SV, reason=f"it broke its container, twice: {end}")

    def _start(self) -> Container:
        if self._prepared != os.getpid():
            with self._ready:
                if self._prepared != os.getpid():
                    client = engine.connect()
                    try:
                        engine.ensure_image(client, self.image)
                        engine.sweep(client)
                    finally:
                        client.close()
                    self._prepared = os.getpid()
        try:
            return Container(self.image, self._settings)
        except SandboxError:
            self._prepared = 0  # the engine may come back without our image: look again
            raise

    def containers(self) -> list[str]:
        """The ids of the containers that run for us now."""
        return [container.id for container in self._pool.living()]

    @staticmethod
    def missing() -> list[tuple[str, str]]:
        """What keeps it from working here, and what mends each: for `rlvr doctor`."""
        try:
            client = engine.connect(10)
        except SandboxError as error:
            return [(str(error).removesuffix(f"; {engine.ENGINE_HINT}"), engine.ENGINE_HINT)]
        try:
            if not engine.has_image(client, engine.IMAGE):
                return [(f"the image {engine.IMAGE!r} is not there", f"{engine.IMAGE_HINT}; the first use does it too, where it can")]
        except SandboxError as error:
            return [(str(error), "restart the engine")]
        finally:
            client.close()
        return []

    def close(self) -> None:
        """Stop and remove every container."""
        self._reaper()
        atexit.unregister(self._reaper)


def _obituary(container: Container, error: Torn) -> str:
    """How a container died while a program ran in it. Raises SandboxError when that was done to it from outside."""
    client = engine.connect(10)  # raises when the engine itself is gone: that is no program's doing
    client.close()
    said = container.errors()
    if not said:
        raise SandboxError(f"the container was ended or held up from outside while a program ran in it ({error})")
    return said[-300:]


make = DockerSandbox
