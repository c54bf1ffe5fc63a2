"""Read the output of a program, capped and without blocking, and provide its input. Runs inside the container: standard library only."""

from __future__ import annotations

import contextlib
import os

from rlvr.sandbox._inside.pid_namespace import PeerExited
from rlvr.sandbox._inside.zygote_client import ChildProcess

CHUNK_BYTES = 1 << 18


class RunState:
    """State of one running program: its output so far, its resource use, and why it was stopped."""

    def __init__(self, limits: dict[str, float]) -> None:
        self.limits = limits
        self.output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray(), "report": bytearray()}
        self.exit_status, self.reason, self.truncated, self.peak_bytes, self.cpu_s, self.wall_s = "", "", False, 0, 0.0, 0.0
        self.children: list[ChildProcess] = []
        self.fatal_error = ""
        self.cpu_wait_s: dict[int, float] = {}  # by process
        self.waited_s = self.unwaited_s = 0.0  # how long any of them waited, and for how long lately none did
        self.waits_read_s = 0.0  # when that was measured, since the start
        self.exit_code: int | None = None

    def record_stop(self, exit_status: str, reason: str) -> None:
        """Record why the program is stopped; only the first reason counts."""
        if not self.exit_status:
            self.exit_status, self.reason = exit_status, reason


def read_output(run: RunState, fd: int, name: str) -> int:
    """Read the available output; return the number of bytes, 0 at the end of the stream, -1 if there is nothing yet."""
    try:
        data = os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return -1
    said, limit = run.output[name], int(run.limits["output_bytes"])
    room = limit - (len(said) if name == "report" else len(run.output["stdout"]) + len(run.output["stderr"]))
    said += data[: max(room, 0)]
    if len(data) > room:
        run.truncated = True
        run.record_stop("OUTPUT_LIMIT", f"the program wrote more than {limit} bytes")
        return 0
    return len(data)


def drain_output(run: RunState, read_ends: dict[int, str]) -> None:
    """Read the remaining output after every writer is dead."""
    for number, name in read_ends.items():
        while read_output(run, number, name) > 0:
            pass


def open_to_all(write_end: int) -> None:
    """Let /dev/stdout be opened by a program that is not our user. gVisor's pipes have no mode: there it cannot."""
    with contextlib.suppress(PermissionError):
        os.fchmod(write_end, 0o222)


def create_memory_file(data: bytes) -> int:
    """Return a read-only descriptor of an unnamed in-memory file that holds `data`."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    number = os.memfd_create("input", os.MFD_CLOEXEC)
    write_all(number, data)
    os.fchmod(number, 0o444)
    try:
        return os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(number)


def read_exactly(count: int) -> bytes:
    """Read the next `count` bytes sent by our owner."""
    data = bytearray()
    while len(data) < count:
        more = os.read(0, min(count - len(data), CHUNK_BYTES))
        if not more:
            raise PeerExited("the owner exited")
        data += more
    return bytes(data)


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data, however many calls it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
