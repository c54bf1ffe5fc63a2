"""The sandbox contract: programs in, outcomes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from rlvr.contracts.plugin import Plugin
from rlvr.errors import SandboxError


class Stop(StrEnum):
    """How one run in the sandbox ended, in the abbreviations of programming contests."""

    OK = "OK"  # it exited with status 0
    RE = "RE"  # it exited with another status, or by a signal that it caused itself
    TLE = "TLE"
    MLE = "MLE"
    OLE = "OLE"
    CE = "CE"
    SV = "SV"  # it damaged its container, or did something forbidden
    IE = "IE"  # the sandbox failed: not the program's fault, no score


@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of one program, its child processes included.

    >>> Limits(wall_s=2.0, memory_mb=128).processes
    16
    """

    cpu_s: float = 5.0
    wall_s: float = 10.0
    memory_mb: int = 256
    output_bytes: int = 8_000_000
    file_mb: int = 16
    processes: int = 16

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"limit {name} is {value!r}; it must be a number above 0")


@dataclass(frozen=True, slots=True)
class Judge:
    """A trusted Python program that tests an untrusted one from a separate process, over a channel that carries bytes only.

    Both start together, as different users. Each reads from the other on descriptor 3 and writes to it on descriptor 4.
    Only the judge can write to descriptor 5, which becomes `Outcome.report`. Its standard input is `brief`.

    >>> Judge("import os; os.write(5, os.read(3, 100))").brief
    b''
    """

    source: str
    brief: bytes = b""


@dataclass(frozen=True, slots=True)
class Program:
    """An untrusted program to run once, in isolation.

    >>> Program("print(input())", stdin=b"hello").language
    'python'
    """

    source: str
    stdin: bytes = b""
    language: Literal["python", "cpp", "javascript"] = "python"
    limits: Limits = field(default_factory=Limits)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files in the working folder; the folder and all changes in it are deleted after the run."""
    judge: Judge | None = None
    """The program that tests it while it runs. The run then ends when the judge exits, and the limits apply to both together."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of running a program.

    >>> Outcome(Stop.OK, exit_code=0, stdout=b"hello").stop
    <Stop.OK: 'OK'>
    """

    stop: Stop
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    cut: bool = False  # whether the output was truncated: truncated output is never graded
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    isolation: tuple[str, ...] = ()  # the isolation that was applied, not the one that was requested
    reason: str = ""
    report: bytes = b""
    """What was written to descriptor 5: by the judge if there is one, else by the program itself (and then not to be trusted)."""
    refused: bool = False
    """With `Stop.IE`: the program was asked for in a way that this sandbox can never run it (a limit above its own): the task's fault."""


class Sandbox(Plugin, ABC):
    """Runs untrusted programs, isolated from the host. Callable from any thread."""

    @abstractmethod
    def run(self, program: Program) -> Outcome:
        """Run it until it exits or reaches a limit. A failure of the sandbox is an Outcome with `Stop.IE`, not an exception."""

    def ready(self) -> None:
        """Run an empty program; raise SandboxError if the sandbox fails."""
        if (outcome := self.run(Program(""))).stop is Stop.IE:
            raise SandboxError(outcome.reason)
