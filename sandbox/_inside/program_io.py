"""The file descriptors of one program and its checker: their numbers in the child, and the ends that the supervisor keeps.

Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select

from rlvr.sandbox._inside import streams

PIPE_BYTES = 1 << 20


class ProgramIO:
    """Pipes and input files of a program, and of its checker if there is one.

    >>> sorted(ProgramIO({"source": b"print(1)"}).program_fds)
    [0, 1, 2, 5, 8, 9]
    """

    def __init__(self, parts: dict[str, bytes]) -> None:
        self.read_ends: dict[int, str] = {}
        """The read ends that we keep, with the name of the stream that each carries."""
        self.ready_pipes: list[int] = []
        """Pipes from the program and its checker; each receives one byte once its process is set up."""
        self._child_ends: list[int] = []
        self.program_fds: dict[int, int] = {
            0: self._make_input(parts.get("stdin", b"")),
            1: self._make_output("stdout"),
            2: self._make_output("stderr"),
            9: self._make_input(parts.get("source", b"")),
        }
        self.checker_fds: dict[int, int] = {}
        if "judge" in parts:
            (from_program, to_judge), (from_judge, to_program) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            self._child_ends += [from_program, to_judge, from_judge, to_program]
            self.program_fds |= {3: from_judge, 4: to_judge}
            self.checker_fds = {0: self._make_input(parts["brief"]), 3: from_program, 4: to_program, 5: self._make_output("report")}
            self.checker_fds[1] = self.checker_fds[2] = self._make_output(
                "stderr"
            )  # a pipe separate from the program's, so that the program cannot affect it
            self.checker_fds[9] = self._make_input(parts["judge"])
        else:
            self.program_fds[5] = self._make_output("report")
        for ports in (self.program_fds, self.checker_fds):
            if ports:
                read, ports[8] = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(read, False)
                self.ready_pipes.append(read)
                self._child_ends.append(ports[8])

    def _make_input(self, data: bytes) -> int:
        number = streams.create_memory_file(data)
        self._child_ends.append(number)
        return number

    def _make_output(self, name: str) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self.read_ends[read] = name
        self._child_ends.append(write)
        if name != "report":
            streams.open_to_all(write)
            with contextlib.suppress(OSError):
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return write

    def close_child_ends(self) -> None:
        """Close the children's ends in this process, once all children have started."""
        for number in set(self._child_ends):
            os.close(number)
        self._child_ends = []

    def wait_until_checker_is_ready(self, timeout_s: float) -> bool:
        """Wait until the checker is set up; the program starts only then, so that it cannot disturb the setup."""
        return bool(select.select(self.ready_pipes[1:], [], [], timeout_s)[0]) and _read_first_byte(self.ready_pipes[1]) == b"+"

    def is_program_set_up(self) -> bool:
        """Return whether the program was set up; from then on, every failure is caused by the program."""
        return _read_first_byte(self.ready_pipes[0]) == b"+"

    def close(self) -> None:
        """Close all open descriptors."""
        self.close_child_ends()
        for number in [*self.read_ends, *self.ready_pipes]:
            os.close(number)


def _read_first_byte(number: int) -> bytes:
    try:
        return os.read(number, 1)
    except BlockingIOError:
        return b""
