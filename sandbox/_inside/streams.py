"""Read the output of a program, capped and without blocking, and provide its input. Runs inside the container: standard library only."""

from __future__ import annotations

import os

from rlvr.sandbox._inside.zygotes import Born

CHUNK = 1 << 18


class Run:
    """State of one running program: its output so far, its resource use, and why it was stopped."""

    def __init__(self, limits: dict[str, float]) -> None:
        self.limits = limits
        self.said: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray(), "report": bytearray()}
        self.stop, self.reason, self.cut, self.peak, self.cpu, self.wall = "", "", False, 0, 0.0, 0.0
        self.born: list[Born] = []
        self.fatal = ""
        self.waited: dict[int, float] = {}
        self.exit: int | None = None

    def halt(self, stop: str, reason: str) -> None:
        """Record why the program is stopped; only the first reason counts."""
        if not self.stop:
            self.stop, self.reason = stop, reason


def read(run: Run, number: int, name: str) -> int:
    """Read the available output; return the number of bytes, 0 at the end of the stream, -1 if there is nothing yet."""
    try:
        data = os.read(number, CHUNK)
    except BlockingIOError:
        return -1
    said, limit = run.said[name], int(run.limits["output_bytes"])
    room = limit - (len(said) if name == "report" else len(run.said["stdout"]) + len(run.said["stderr"]))
    said += data[: max(room, 0)]
    if len(data) > room:
        run.cut = True
        run.halt("OLE", f"the program wrote more than {limit} bytes")
        return 0
    return len(data)


def drain(run: Run, ours: dict[int, str]) -> None:
    """Read the remaining output after every writer is dead."""
    for number, name in ours.items():
        while read(run, number, name) > 0:
            pass


def memory_file(data: bytes) -> int:
    """Return a read-only descriptor of an unnamed in-memory file that holds `data`."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    number = os.memfd_create("input", os.MFD_CLOEXEC)
    write(number, data)
    os.fchmod(number, 0o444)
    try:
        return os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(number)


def write(number: int, data: bytes) -> None:
    """Write all of the data, however many calls it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
