"""Connection to a supervisor, wherever it runs: start it with our own files, then send one request and receive one reply at a time.

A connection is any pair of "send bytes" and "receive some bytes" with a deadline. The supervisor's source files are sent over it first,
so that the image needs no file of ours and always matches the installed version.
"""

from __future__ import annotations

import json
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rlvr.contracts import ExecutionResult, ExitStatus, Limits, Program
from rlvr.contracts.sandbox import CheckerProgram
from rlvr.sandbox._inside.frames import pack_frame, unpack_frame

BYTES_LIKE = (bytes, bytearray, memoryview)
SUPERVISOR_FOLDER = Path(__file__).parents[1] / "_inside"
SUPERVISOR_FILES = (
    *(
        "frames",
        "sockets",
        "meter",
        "namespaces",
        "capabilities",
        "workdirs",
        "probe",
        "seccomp",
        "pid_namespace",
        "zygote_client",
        "streams",
        "process_killer",
        "toolchains",
    ),
    *("program_io", "zygote", "box/cgroups", "box/calls", "box/files", "box/processes", "box/session_server", "supervisor"),
)
PYTHON_SESSION_FILE = "box/python_session"
BOOTSTRAP_CODE = """
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
BOOTSTRAP_COMMAND = ["python3", "-I", "-B", "-c", BOOTSTRAP_CODE]
MAX_POLL_MS = 2**31 - 1  # a C int: 24 days
MAX_LIMIT = 1e12
"""The largest value of any limit, in its unit: the kernel takes no larger ones, and no infinite ones."""
MAX_WALL_FACTOR, REPLY_TIMEOUT_S, CLEANUP_TIMEOUT_S, START_TIMEOUT_S = 10.0, 60.0, 40.0, 120.0
"""The supervisor gives up after HARD times the wall limit; we wait PATIENCE_S longer before we treat it as dead. Finding out why
and removing it takes at most CLEANUP_TIMEOUT_S. Their sum is the timeout of every result, counted from the start of the program."""


class SupervisorConnection(ABC):
    """Connection to a running supervisor over some stream."""

    handshake: Mapping[str, Any]
    num_requests = 0

    def __init__(self) -> None:
        self._send_lock = threading.Lock()
        """Held while a frame is sent."""

    @abstractmethod
    def send(self, data: bytes, deadline: float) -> None:
        """Send all the data before the deadline (a `time.monotonic` value), or raise `ConnectionBroken`."""

    @abstractmethod
    def receive(self, buffer: memoryview, deadline: float) -> int:
        """Read at least one byte into `buffer` before the deadline and return how many, or raise `ConnectionBroken`."""

    @abstractmethod
    def is_alive(self) -> bool:
        """Return whether the supervisor still listens, as far as that is known without sending a request."""

    def explain_program_caused_exit(self) -> str:
        """Explain how the supervisor ended if a program may have caused it; return '' if the cause came from outside."""
        return ""

    @abstractmethod
    def shut_down(self) -> None:
        """End the stream, from any thread: a waiting request raises `ConnectionBroken`, and the supervisor ends. Call `close` next."""

    @abstractmethod
    def close(self) -> None:
        """Release the supervisor, which kills its programs and exits."""

    def bootstrap_supervisor(self, settings: Mapping[str, Any]) -> None:
        """Send the supervisor its source files and settings over the open stream, and receive its first message."""
        deadline = time.monotonic() + START_TIMEOUT_S
        files = [(name, _read_source(name)) for name in SUPERVISOR_FILES]
        if settings.get("boxes"):
            settings = {**settings, "session": _read_source(PYTHON_SESSION_FILE)}
        given = json.dumps({"files": files, "settings": settings}).encode()
        self.send(b"%10d" % len(given) + given, deadline)
        self.handshake, _ = unpack_frame(lambda count: self._receive_exactly(count, deadline))

    def run_program(self, program: Program) -> tuple[ExecutionResult, bool]:
        """Run a program; return the result, and whether the supervisor can continue. Raises `ConnectionBroken` if it exited."""
        limits = program.limits
        deadline = time.monotonic() + MAX_WALL_FACTOR * limits.wall_s + REPLY_TIMEOUT_S
        parts = {"source": program.source.encode("utf-8", "surrogatepass"), "stdin": program.stdin}
        parts |= {f"file:{name}": data for name, data in program.files.items()}
        if program.checker:
            parts |= {"judge": program.checker.source.encode(), "brief": program.checker.input}
        header, said = self.request({"limits": asdict(limits), "language": program.language}, parts, deadline)
        outcome = ExecutionResult(
            status=ExitStatus(header["stop"]),
            exit_code=header["exit"],
            stdout_bytes=said["stdout"],
            stderr_bytes=said["stderr"],
            truncated=header["cut"],
            cpu_s=header["cpu"],
            wall_s=header["wall"],
            peak_mb=header["peak"] / (1 << 20),
            isolation=tuple(self.handshake["isolation"]),
            reason=header["reason"],
            checker_output=said["report"],
        )
        return _reclassify_syntax_error(outcome, program), not header["fatal"]

    def request(self, header: Mapping[str, Any], parts: Mapping[str, bytes], deadline: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Send one request and return the reply, as header and raw parts. Raises `ConnectionBroken` without a reply; never retries."""
        self.num_requests += 1
        with self._send_lock:
            for piece in pack_frame(header, parts):
                self.send(piece, deadline)
        return unpack_frame(lambda count: self._receive_exactly(count, deadline))

    def send_stop(self, deadline: float) -> None:
        """Have the call of a session killed that is running; its request gets its reply as always. Thread-safe."""
        with self._send_lock:
            for piece in pack_frame({"box": "stop"}, {}):
                self.send(piece, deadline)

    def _receive_exactly(self, count: int, deadline: float) -> bytearray:
        """Receive the next `count` bytes into one buffer of that size: growing buffers would fragment this process's memory."""
        data, at = bytearray(count), 0
        with memoryview(data) as room:
            while at < count:
                at += self.receive(room[at:], deadline)
        return data


def _read_source(name: str) -> str:
    return (SUPERVISOR_FOLDER / f"{name}.py").read_text("utf-8")


def wait_readable(fd: int, timeout_s: float) -> bool:
    """Wait up to `seconds` until data (or the end of the stream) can be read from a descriptor; return whether it can."""
    poll = select.poll()  # not `select.select`, which supports the first 1024 descriptors only
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(_get_poll_timeout_ms(timeout_s)))


def wait_writable(fd: int, timeout_s: float) -> bool:
    """Wait up to `seconds` until a descriptor can be written to (or a write fails at once); return whether it can."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(_get_poll_timeout_ms(timeout_s)))


def _get_poll_timeout_ms(timeout_s: float) -> float:
    return min(max(timeout_s, 0) * 1000, MAX_POLL_MS)


def check_program_fits(program: Program, memory_mb: int | None, processes: int) -> ExecutionResult | None:
    """Return an error result if the program can never run in a sandbox of this size (it requests more than there is); else None.

    Raises ValueError if a part of the program is of a wrong type.
    """
    _check_types(program)
    limits, why = program.limits, ""
    for name, value in asdict(limits).items():
        if value > MAX_LIMIT:
            why = f"limit {name} is {value}; at most {MAX_LIMIT:.0e} is possible"
    if memory_mb is not None and limits.memory_mb > memory_mb:
        why = f"limit memory_mb is {limits.memory_mb}, but this sandbox has {memory_mb}; raise the sandbox's memory_mb"
    elif limits.processes > processes:
        why = f"limit processes is {limits.processes}, but this sandbox has {processes}; raise the sandbox's pids"
    for name in program.files:
        if not name or "/" in name or "\0" in name or name in (".", "..") or len(name.encode("utf-8", "replace")) > 200:
            why = f"a file has the name {name!r}; a file name must be plain, without a folder"
    return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason=why, unsupported=True) if why else None


def _check_types(program: Program) -> None:
    wanted: list[tuple[str, Any, type | tuple[type, ...], str]] = [
        ("source", program.source, str, "a text is"),
        ("stdin", program.stdin, BYTES_LIKE, "bytes are"),
        ("limits", program.limits, Limits, "rlvr.Limits(...) is"),
        ("files", program.files, Mapping, "a mapping of names to bytes is"),
        ("checker", program.checker, (CheckerProgram, type(None)), "a CheckerProgram, or None, is"),
    ]
    if isinstance(program.files, Mapping):
        wanted += [(f"the file {name!r}", data, BYTES_LIKE, "bytes are") for name, data in program.files.items()]
    for name, value, kind, words in wanted:
        if not isinstance(value, kind):
            raise ValueError(f"{name} of the program is {value!r:.80}; {words} needed")


def check_language(program: Program, languages: Sequence[str]) -> ExecutionResult | None:
    """Return an error result if the sandbox lacks the program's language (an infrastructure fault); else None."""
    if program.language in languages:
        return None
    return ExecutionResult(
        ExitStatus.INTERNAL_ERROR, reason=f"no toolchain for {program.language!r}; this sandbox has {', '.join(languages)}"
    )


def _reclassify_syntax_error(result: ExecutionResult, program: Program) -> ExecutionResult:
    """Change the status to a compile error if the last line of stderr is a Python syntax error; only the displayed status depends on it."""
    last = result.stderr_bytes.rstrip().rpartition(b"\n")[2]
    wrong = last.startswith((b"SyntaxError", b"IndentationError", b"TabError"))
    if (
        program.language == "python"
        and result.status is ExitStatus.RUNTIME_ERROR
        and result.exit_code == 1
        and not result.stdout_bytes
        and wrong
    ):
        return replace(result, status=ExitStatus.COMPILE_ERROR, reason=last.decode(errors="replace")[:300])
    return result
