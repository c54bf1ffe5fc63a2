"""Connection to a supervisor, wherever it runs: start it with our own files, then send one request and receive one reply at a time.

A connection is any pair of "send bytes" and "receive some bytes" with a deadline. The supervisor's source files are sent over it first,
so that the image needs no file of ours and always matches the installed version.
"""

from __future__ import annotations

import json
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rlvr.contracts import Outcome, Program, Stop
from rlvr.sandbox._inside.frames import pack, unpack

HERE = Path(__file__).parents[1] / "_inside"
FILES = (
    *("frames", "meter", "namespaces", "rights", "places", "probe", "seccomp", "nest", "zygotes", "streams", "ends", "toolchains"),
    *("stage", "zygote", "box/groups", "box/calls", "box/files", "box/processes", "box/keeper", "supervisor"),
)
SESSION = "box/session"
BOOT = """
import json, os, sys, types
def exactly(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
given = json.loads(exactly(int(exactly(10))))
for name in ("rlvr", "rlvr.sandbox", "rlvr.sandbox._inside", "rlvr.sandbox._inside.box"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["rlvr.sandbox._inside"].box = sys.modules["rlvr.sandbox._inside.box"]
for name, source in given["files"]:
    module = types.ModuleType("rlvr.sandbox._inside." + name.replace("/", "."))
    sys.modules[module.__name__] = module
    setattr(sys.modules[module.__name__.rpartition(".")[0]], name.rpartition("/")[2], module)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
settings = given["settings"]
del given
module.main(settings)
"""
COMMAND = ["python3", "-I", "-B", "-c", BOOT]
HARD, PATIENCE_S, AFTER_S, START_S = 10.0, 60.0, 40.0, 120.0
"""The supervisor gives up after HARD times the wall limit; we wait PATIENCE_S longer before we treat it as dead. Finding out why
and removing it takes at most AFTER_S. Their sum is the timeout of every result, counted from the start of the program."""


class Channel(ABC):
    """Connection to a running supervisor over some stream."""

    hello: Mapping[str, Any]
    runs = 0

    @abstractmethod
    def send(self, data: bytes, deadline: float) -> None:
        """Send all the data before the deadline (a `time.monotonic` value), or raise `ConnectionBroken`."""

    @abstractmethod
    def receive(self, room: memoryview, deadline: float) -> int:
        """Read at least one byte into `room` before the deadline and return how many, or raise `ConnectionBroken`."""

    @abstractmethod
    def alive(self) -> bool:
        """Return whether the supervisor still listens, as far as that is known without sending a request."""

    def blame(self) -> str:
        """Explain how the supervisor ended if a program may have caused it; return '' if the cause came from outside."""
        return ""

    @abstractmethod
    def hang_up(self) -> None:
        """End the stream, from any thread: a waiting request raises `ConnectionBroken`, and the supervisor ends. Call `close` next."""

    @abstractmethod
    def close(self) -> None:
        """Release the supervisor, which kills its programs and exits."""

    def boot(self, settings: Mapping[str, Any]) -> None:
        """Send our files and receive the supervisor's first message."""
        deadline = time.monotonic() + START_S
        files = [(name, _text(name)) for name in FILES]
        if settings.get("boxes"):
            settings = {**settings, "session": _text(SESSION)}
        given = json.dumps({"files": files, "settings": settings}).encode()
        self.send(b"%10d" % len(given) + given, deadline)
        self.hello, _ = unpack(lambda count: self._exactly(count, deadline))

    def run(self, program: Program) -> tuple[Outcome, bool]:
        """Run a program; return the result, and whether the supervisor can continue. Raises `ConnectionBroken` if it exited."""
        limits = program.limits
        deadline = time.monotonic() + HARD * limits.wall_s + PATIENCE_S
        parts = {"source": program.source.encode("utf-8", "surrogatepass"), "stdin": program.stdin}
        parts |= {f"file:{name}": data for name, data in program.files.items()}
        if program.judge:
            parts |= {"judge": program.judge.source.encode(), "brief": program.judge.brief}
        header, said = self.ask({"limits": asdict(limits), "language": program.language}, parts, deadline)
        outcome = Outcome(
            stop=Stop(header["stop"]),
            exit_code=header["exit"],
            stdout=said["stdout"],
            stderr=said["stderr"],
            cut=header["cut"],
            cpu_s=header["cpu"],
            wall_s=header["wall"],
            peak_mb=header["peak"] / (1 << 20),
            isolation=tuple(self.hello["isolation"]),
            reason=header["reason"],
            report=said["report"],
        )
        return _syntax(outcome, program), not header["fatal"]

    def ask(self, header: Mapping[str, Any], parts: Mapping[str, bytes], deadline: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Send one request and return the reply, as header and raw parts. Raises `ConnectionBroken` without a reply; never retries."""
        self.runs += 1
        for piece in pack(header, parts):
            self.send(piece, deadline)
        return unpack(lambda count: self._exactly(count, deadline))

    def _exactly(self, count: int, deadline: float) -> bytearray:
        """Receive the next `count` bytes into one buffer of that size: growing buffers would fragment this process's memory."""
        data, at = bytearray(count), 0
        with memoryview(data) as room:
            while at < count:
                at += self.receive(room[at:], deadline)
        return data


def _text(name: str) -> str:
    return (HERE / f"{name}.py").read_text("utf-8")


def readable(number: int, seconds: float) -> bool:
    """Wait up to `seconds` until data (or the end of the stream) can be read from a descriptor; return whether it can."""
    poll = select.poll()  # not `select.select`, which supports the first 1024 descriptors only
    poll.register(number, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))


def writable(number: int, seconds: float) -> bool:
    """Wait up to `seconds` until a descriptor can be written to (or a write fails at once); return whether it can."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(max(seconds, 0) * 1000))


def refused(program: Program, memory_mb: int, processes: int) -> Outcome | None:
    """Return an error result if the program can never run in a sandbox of this size (it requests more than there is); else None."""
    limits, why = program.limits, ""
    if limits.memory_mb > memory_mb:
        why = f"limit memory_mb is {limits.memory_mb}, but this sandbox has {memory_mb}; raise the sandbox's memory_mb"
    elif limits.processes > processes:
        why = f"limit processes is {limits.processes}, but this sandbox has {processes}; raise the sandbox's pids"
    for name in program.files:
        if not name or "/" in name or "\0" in name or name in (".", "..") or len(name.encode("utf-8", "replace")) > 200:
            why = f"a file has the name {name!r}; a file name must be plain, without a folder"
    return Outcome(Stop.IE, reason=why, refused=True) if why else None


def lacking(program: Program, languages: Sequence[str]) -> Outcome | None:
    """Return an error result if the sandbox lacks the program's language (an infrastructure fault); else None."""
    if program.language in languages:
        return None
    return Outcome(Stop.IE, reason=f"no toolchain for {program.language!r}; this sandbox has {', '.join(languages)}")


def _syntax(outcome: Outcome, program: Program) -> Outcome:
    """Change the status to a compile error if the last line of stderr is a Python syntax error; only the displayed status depends on it."""
    last = outcome.stderr.rstrip().rpartition(b"\n")[2]
    wrong = last.startswith((b"SyntaxError", b"IndentationError", b"TabError"))
    if program.language == "python" and outcome.stop is Stop.RE and outcome.exit_code == 1 and not outcome.stdout and wrong:
        return replace(outcome, stop=Stop.CE, reason=last.decode(errors="replace")[:300])
    return outcome
