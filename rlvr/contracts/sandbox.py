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
    """The verdict of the sandbox on one run, in the words of programming contests."""

    OK = "OK"  # it ran to its end with exit status 0
    RE = "RE"  # it ended by itself with another status, or by a signal of its own making
    TLE = "TLE"
    MLE = "MLE"
    OLE = "OLE"
    CE = "CE"
    SV = "SV"  # it broke what it ran in, or did what is forbidden
    IE = "IE"  # the sandbox failed: never the program's fault, and never a score


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use, children included.

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
    """A Python program of ours that questions a foreign one from a process of its own, across a channel that carries bytes only.

    Both start together, as different users. Each reads what the other says from descriptor 3 and answers on descriptor 4;
    what the judge alone writes to descriptor 5 is `Outcome.report`. Its standard input is `brief`.

    >>> Judge("import os; os.write(5, os.read(3, 100))").brief
    b''
    """

    source: str
    brief: bytes = b""


@dataclass(frozen=True, slots=True)
class Program:
    """A foreign program to run once, in a place of its own.

    >>> Program("print(input())", stdin=b"hello").language
    'python'
    """

    source: str
    stdin: bytes = b""
    language: Literal["python", "cpp", "javascript"] = "python"
    limits: Limits = field(default_factory=Limits)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that lie in the working folder; what the program does to them goes with the folder."""
    judge: Judge | None = None
    """Who questions it while it runs. The run then ends when the judge ends, and the limits hold for both together."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program.

    >>> Outcome(Stop.OK, exit_code=0, stdout=b"hello").stop
    <Stop.OK: 'OK'>
    """

    stop: Stop
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    cut: bool = False  # whether the output was cut short: a cut output is never graded
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    isolation: tuple[str, ...] = ()  # what really was applied, not what was asked for
    reason: str = ""
    report: bytes = b""
    """What came out of descriptor 5: the judge's word where there is a judge, else the program's own (and worth no more)."""
    refused: bool = False
    """With `Stop.IE`: the program was asked for in a way that this sandbox can never run it (a limit above its own): the task's fault."""


class Sandbox(Plugin, ABC):
    """Runs foreign programs where they can reach nothing of ours. Callable from any thread."""

    @abstractmethod
    def run(self, program: Program) -> Outcome:
        """Run it to its end or to its limits. A failure of the machinery is an Outcome with `Stop.IE`, not an exception."""

    def ready(self) -> None:
        """Run an empty program; SandboxError when the machinery fails even then."""
        if (outcome := self.run(Program(""))).stop is Stop.IE:
            raise SandboxError(outcome.reason)
