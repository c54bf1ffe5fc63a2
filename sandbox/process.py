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
import tempfile
import threading
import time
import weakref
from pathlib import Path

from rlvr.contracts import Box, Outcome, Place, Program, Sandbox, Stop
from rlvr.errors import ConfigError, SandboxError
from rlvr.runs.owner import clear_away, own_folder, sweep
from rlvr.sandbox._inside.box import groups
from rlvr.sandbox._inside.frames import Torn
from rlvr.sandbox._outside.boxes import Boxes
from rlvr.sandbox._outside.channel import BOOT, Channel, lacking, readable, refused, writable
from rlvr.sandbox._outside.pool import Pool, processors

PREFIX = "rlvr-sandbox-"
MOST_PROCESSES = 4096
GUARDED = "of its own"
"""Occurs in `ExecutionResult.isolation` if programs have a user id or a PID namespace of their own."""


def interpreter() -> str:
    """Return the path of a Python whose library other users may read: as root, every program runs as another user."""
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in Path(os.__file__).resolve().parents):
        return sys.executable
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.access(path, os.X_OK):
            return path
    raise SandboxError(
        f"as root, programs run as other users, and those may not read {Path(os.__file__).parent}; install python3 in /usr/bin"
    )


class Local(Channel):
    """Supervisor that runs as a child process and owns the folder that programs write to."""

    def __init__(self, disk_mb: int, *, boxes: bool = False) -> None:
        self._sending = threading.Lock()
        for namespaces in (True, False):
            self._folder = str(own_folder(PREFIX))
            self.id = os.path.basename(self._folder)
            os.chmod(self._folder, 0o711)
            self._process = subprocess.Popen(
                [interpreter(), "-I", "-B", "-c", BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
            )
            uid = random.SystemRandom().randrange(1 << 20, 1 << 30) if os.geteuid() == 0 else None
            place = os.path.join(self._folder, "work")
            os.mkdir(place, 0o700)
            try:
                settings = {"places": [place], "uid": uid, "cgroup": False, "namespaces": namespaces, "nests": namespaces}
                self.boot(settings | {"disk_mb": disk_mb, "boxes": self.id if boxes else ""})
                return
            except Torn as error:
                self.close()
                if not namespaces:
                    raise SandboxError(f"the supervisor did not start: {error}; it needs Linux with /proc") from error

    def send(self, data: bytes, deadline: float) -> None:
        """Send all the data."""
        assert self._process.stdin
        rest = memoryview(data)
        while rest:
            with self._sending:
                try:
                    number = self._process.stdin.fileno()
                    if writable(number, 0.05):
                        rest = rest[os.write(number, rest[:65536]) :]
                        continue
                except (OSError, ValueError) as error:
                    raise Torn(f"sending failed: {error}") from error
            if time.monotonic() > deadline:
                raise Torn("the supervisor does not read")

    def receive(self, room: memoryview, deadline: float) -> int:
        """Receive some bytes before the deadline."""
        assert self._process.stdout
        with contextlib.suppress(ValueError):
            number = self._process.stdout.fileno()
            if readable(number, deadline - time.monotonic()):
                count = os.readv(number, [room])
                if count:
                    return count
        raise Torn("the supervisor exited or does not reply")

    @property
    def guarded(self) -> bool:
        """Whether programs have a user id or a process space of their own, so that they cannot signal the supervisor."""
        return any(GUARDED in line for line in self.hello["isolation"])

    def blame(self) -> str:
        """Explain how the supervisor ended if a program may have signalled it or it gave up by itself; else return ''."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(1) == 0:
                return "its supervisor gave up"
        return "" if self.guarded else "its supervisor ended"

    def hang_up(self) -> None:
        """Close the supervisor's input: it kills what it runs and exits, which ends the stream."""
        with self._sending, contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()

    def alive(self) -> bool:
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
        groups.clear(self.id)
        with contextlib.suppress(OSError):
            clear_away(Path(self._folder))


class ProcessSandbox(Sandbox):
    """Sandbox that runs programs as child processes of this one. Only for code that you trust: it requires `trusted=True`."""

    def __init__(
        self,
        *,
        trusted: bool = False,
        processes: int = 0,
        memory_mb: int = 4096,
        disk_mb: int = 64,
        queue_s: float = 900.0,
        boxes: int = 32,
    ) -> None:
        """Confirm that the code is trusted, and configure the resource limits.

        Args:
            trusted: must be true: this sandbox does not protect this machine's files from untrusted code.
            processes: how many programs run at once; 0: one for each processor.
            memory_mb: memory of one program.
            disk_mb: space for the files that a program writes.
            queue_s: timeout for a program to get a free supervisor, or for a session to get a free slot.
            boxes: how many sessions may be open at once.
        """
        if trusted is not True:
            raise ConfigError(
                "the process sandbox does not protect this machine's files from untrusted code; use the docker sandbox, or, for code that "
                "you would run yourself, set trusted=True: an environment takes --set 'sandbox={name: process, trusted: true}', "
                "`rlvr check sandbox process` takes --set trusted=true"
            )
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 0:
            raise ConfigError(f"process sandbox: processes is {processes!r}; 0 (one for each processor) or more is required")
        if isinstance(boxes, bool) or not isinstance(boxes, int) or boxes < 1:
            raise ConfigError(f"process sandbox: max_sessions is {boxes!r}; 1 or more is required")
        self.memory_mb = memory_mb
        sweep(PREFIX)
        for name in groups.names(PREFIX):
            if not Path(tempfile.gettempdir(), name).exists():
                groups.clear(name)
        self._pool: Pool[Local] = Pool(lambda: Local(disk_mb), processes or processors(), queue_s)
        self._boxes: Boxes[Local] = Boxes(lambda place: Local(place.disk_mb, boxes=True), boxes, queue_s)
        self._reaper = weakref.finalize(self, _close, self._pool, self._boxes)
        atexit.register(self._reaper)

    def run(self, program: Program) -> Outcome:
        """Run the program in the next free supervisor. A failure of the sandbox is an `ExecutionResult` with `INTERNAL_ERROR`."""
        try:
            return self._run(program)
        except SandboxError as error:
            return Outcome(Stop.IE, reason=str(error))

    def _run(self, program: Program) -> Outcome:
        if wrong := refused(program, self.memory_mb, MOST_PROCESSES):
            return wrong
        end = ""
        for _ in range(2):
            channel = self._pool.take()
            sound = False
            try:
                if wrong := lacking(program, channel.hello["languages"]):
                    sound = True
                    return wrong
                outcome, sound = channel.run(program)
                return outcome
            except Torn as error:
                end = str(error)
                if channel.guarded:
                    raise SandboxError(f"the supervisor was killed or blocked from outside: {end}") from error
            finally:
                self._pool.give(channel, sound=sound)
        # it could signal its supervisor, and two of them ended: the program is the cause
        return Outcome(Stop.SV, reason=f"the program broke its supervisor, twice: {end}")

    def open(self, place: Place | None = None) -> Box:
        """Open a session with a supervisor of its own, and with namespaces of its own where the kernel allows them."""
        place = place or Place()
        if place.image:
            raise ConfigError(f"the process sandbox has no images, and the spec names {place.image!r}; use the docker sandbox")
        try:
            return self._boxes.open(place)
        except (Torn, OSError) as error:
            raise SandboxError(f"a session could not be opened: {error}") from error

    @staticmethod
    def missing() -> list[tuple[str, str]]:
        """Return (problem, how to fix it) for everything that prevents this sandbox from working here; used by `rlvr doctor`."""
        return [] if sys.platform == "linux" else [(f"it needs Linux, and this is {sys.platform}", "use the docker sandbox")]

    def close(self) -> None:
        """Stop every supervisor."""
        self._reaper()
        atexit.unregister(self._reaper)


def _close(pool: Pool[Local], boxes: Boxes[Local]) -> None:
    boxes.close()
    pool.close()


make = ProcessSandbox
