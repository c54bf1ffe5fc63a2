"""The file descriptors of one program and its checker: their numbers in the child, and the ends that the supervisor keeps.

Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select

from rlvr.sandbox._inside import streams

PIPE_SIZE = 1 << 20


class Stage:
    """Pipes and input files of a program, and of its checker if there is one.

    >>> sorted(Stage({"source": b"print(1)"}).program)
    [0, 1, 2, 5, 8, 9]
    """

    def __init__(self, parts: dict[str, bytes]) -> None:
        self.ours: dict[int, str] = {}
        """The read ends that we keep, with the name of the stream that each carries."""
        self.settled: list[int] = []
        """Pipes from the program and its checker; each receives one byte once its process is set up."""
        self._theirs: list[int] = []
        self.program: dict[int, int] = {
            0: self._given(parts.get("stdin", b"")),
            1: self._out("stdout"),
            2: self._out("stderr"),
            9: self._given(parts.get("source", b"")),
        }
        self.judge: dict[int, int] = {}
        if "judge" in parts:
            (from_program, to_judge), (from_judge, to_program) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            self._theirs += [from_program, to_judge, from_judge, to_program]
            self.program |= {3: from_judge, 4: to_judge}
            self.judge = {0: self._given(parts["brief"]), 3: from_program, 4: to_program, 5: self._out("report")}
            self.judge[1] = self.judge[2] = self._out("stderr")  # a pipe separate from the program's, so that the program cannot affect it
            self.judge[9] = self._given(parts["judge"])
        else:
            self.program[5] = self._out("report")
        for ports in (self.program, self.judge):
            if ports:
                read, ports[8] = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(read, False)
                self.settled.append(read)
                self._theirs.append(ports[8])

    def _given(self, data: bytes) -> int:
        number = streams.memory_file(data)
        self._theirs.append(number)
        return number

    def _out(self, name: str) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self.ours[read] = name
        self._theirs.append(write)
        if name != "report":
            os.fchmod(write, 0o222)  # so that /dev/stdout opens for a program that is not our user
            with contextlib.suppress(OSError):
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return write

    def hand_over(self) -> None:
        """Close the children's ends in this process, once all children have started."""
        for number in set(self._theirs):
            os.close(number)
        self._theirs = []

    def judge_settled(self, seconds: float) -> bool:
        """Wait until the checker is set up; the program starts only then, so that it cannot disturb the setup."""
        return bool(select.select(self.settled[1:], [], [], seconds)[0]) and _first(self.settled[1]) == b"+"

    def program_settled(self) -> bool:
        """Return whether the program was set up; from then on, every failure is caused by the program."""
        return _first(self.settled[0]) == b"+"

    def close(self) -> None:
        """Close all open descriptors."""
        self.hand_over()
        for number in [*self.ours, *self.settled]:
            os.close(number)


def _first(number: int) -> bytes:
    try:
        return os.read(number, 1)
    except BlockingIOError:
        return b""
