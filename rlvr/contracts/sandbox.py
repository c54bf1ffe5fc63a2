"""The sandbox contract: one-off programs, and sandbox sessions that last for a conversation."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, Self

from rlvr.contracts.admission import CapacityLimiter
from rlvr.contracts.plugin import Plugin, mark_default_implementation
from rlvr.errors import ConfigError, SandboxError
from rlvr.hints import Hinted, add_usage_to_constructor_errors
from rlvr.synonyms import accept_synonyms_in_constructor

MAX_FILE_BYTES = 16_000_000
"""The largest file that a session writes or reads at once."""
OWN_FOLDERS = ("/tmp", "/dev", "/proc", "/sys")
"""Nothing of this machine is mounted in these folders of a session."""


class ExitStatus(StrEnum):
    """How a run in the sandbox ended. The values are the abbreviations of programming contests."""

    OK = "OK"  # exit code 0
    RUNTIME_ERROR = "RUNTIME_ERROR"  # another exit code, or a signal that the program caused
    TIMEOUT = "TIMEOUT"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    COMPILE_ERROR = "COMPILE_ERROR"
    SANDBOX_VIOLATION = "SANDBOX_VIOLATION"  # the program damaged its container or did something forbidden
    INTERNAL_ERROR = "INTERNAL_ERROR"  # the sandbox failed; no score


@accept_synonyms_in_constructor
@add_usage_to_constructor_errors
@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of one program, its child processes included.

    >>> Limits(wall_s=2.0, memory_mb=128).processes
    16
    """

    cpu_s: float = 5.0
    """Seconds of processor time."""
    wall_s: float = 10.0
    """Seconds from start to end, less those in which it waited for a processor."""
    memory_mb: int = 256
    output_bytes: int = 8_000_000
    """The most that it may write to standard output and standard error together."""
    file_mb: int = 16
    """The maximum size of one file."""
    processes: int = 16
    """Processes and threads at one time."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"limit {name} is {value!r}; it must be a number above 0")


@dataclass(frozen=True, slots=True)
class CheckerProgram:
    """A trusted Python program that runs beside an untrusted one, exchanges data with that program, and decides whether it is right.

    Both start together, as different users. Each reads from the other on descriptor 3 and writes to it on descriptor 4. Only the checker
    can write to descriptor 5, which becomes `ExecutionResult.checker_output`. Its standard input is `input`.

    >>> CheckerProgram("import os; os.write(5, os.read(3, 100))").input
    b''
    """

    source: str
    input: bytes = b""


Language = Literal["python", "bash", "cpp", "csharp", "go", "java", "javascript", "r", "rust", "typescript"]
"""The languages of programs."""


@dataclass(frozen=True, slots=True)
class Program:
    """An untrusted program, with its input, files and limits, to run once in a sandbox.

    >>> Program("print(input())", stdin=b"hello").language
    'python'
    """

    source: str
    stdin: bytes = b""
    language: Language = "python"
    """A language other than Python runs where its compiler or interpreter is installed."""
    limits: Limits = field(default_factory=Limits)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files in the working folder; the folder and all changes in it are deleted after the run."""
    checker: CheckerProgram | None = None
    """The checker that tests the program while it runs. The run ends when the checker exits; the limits apply to both together."""


@dataclass(frozen=True, slots=True)
class ExecutionResult(Hinted):
    """The result of running a program. `stdout` is its output as a text; `stdout_bytes` has the bytes.

    >>> result = ExecutionResult(ExitStatus.OK, exit_code=0, stdout_bytes=b"hello")
    >>> result.status, result.ok, result.stdout
    (<ExitStatus.OK: 'OK'>, True, 'hello')
    """

    _synonyms = {
        **dict.fromkeys(("success", "succeeded", "passed"), "ok"),
        **dict.fromkeys(("returncode", "return_code", "exitcode"), "exit_code"),
        **dict.fromkeys(("output", "text", "stdout_text"), "stdout"),
        "stderr_text": "stderr",
    }
    _hints = {
        **dict.fromkeys(("out", "result"), "write .stdout, or .stdout_bytes for the bytes"),
        **dict.fromkeys(("error", "err", "exception"), "write .stderr, or .reason for what the sandbox says"),
        **dict.fromkeys(("timeout", "is_timeout"), "write .timed_out"),
        "is_ok": "write .ok",
        "code": "write .exit_code",
        **dict.fromkeys(("duration", "elapsed", "time"), "write .wall_s, or .cpu_s"),
        "memory": "write .peak_mb",
    }
    status: ExitStatus
    exit_code: int | None = None
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    truncated: bool = False  # True if the output was truncated; truncated output is never graded
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    isolation: tuple[str, ...] = field(default=(), repr=False)  # the isolation that was actually applied
    reason: str = ""
    checker_output: bytes = b""
    """The bytes written to descriptor 5: by the checker if there is one, otherwise by the (untrusted) program."""
    message: str = ""
    """A message to the policy about side effects in the session, such as lost variables of the Python interpreter."""
    unsupported: bool = False
    """With INTERNAL_ERROR: this sandbox can never run such a program (e.g. a limit above its own). The task is at fault."""

    def __repr__(self) -> str:
        """Return the fields that are set; a long output is cut."""
        shown = [(spec.name, getattr(self, spec.name)) for spec in fields(self) if spec.repr and getattr(self, spec.name) != spec.default]
        texts = [
            f"{name}={value[:150]!r}...{value[-150:]!r} ({len(value)} bytes)"
            if isinstance(value, bytes) and len(value) > 400
            else f"{name}={value!r}"
            for name, value in shown
        ]
        return f"ExecutionResult({', '.join(texts)})"

    @property
    def stdout(self) -> str:
        """The standard output as a text; what is not UTF-8 is replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """The standard error as a text; what is not UTF-8 is replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.status is ExitStatus.OK

    @property
    def timed_out(self) -> bool:
        """Whether the program ran out of time."""
        return self.status is ExitStatus.TIMEOUT


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The specification of a sandbox session: its files, its image and its limits, shared by all its processes.

    >>> SandboxSpec(files={"data/numbers.txt": b"1 2 3"}, memory_mb=256).wall_s
    30.0
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to write into the working folder before the first call, by relative path."""
    image: str = ""
    """The image to start from (docker only; it needs python3 and bash). Empty: the sandbox's default."""
    memory_mb: int = 512
    """Memory of all processes and files together; files are kept in memory."""
    processes: int = 64
    disk_mb: int = 64
    """Space for files in the working folder."""
    file_mb: int = 64
    """The maximum size of one file."""
    wall_s: float = 30.0
    """The default timeout of a call."""
    output_bytes: int = 1_000_000
    """The maximum output of one call; a call that writes more is stopped."""
    network: bool = False
    """Must be False: no sandbox of rlvr provides a network."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Files and folders of this machine that the session sees, read-only: the path there, and the path here (docker and bubblewrap only)."""
    loopback: bool = False
    """Whether the session's processes may open TCP connections to each other, on 127.0.0.1 (docker and bubblewrap only)."""
    limit_addresses: bool = True
    """Whether a process may reserve few more addresses than it has memory, where the kernel does not limit the memory of a whole session.
    Runtimes such as Node and Bun reserve far more than they use; their memory is measured all the same."""

    def __post_init__(self) -> None:
        if self.network is not False:
            raise ValueError(f"network is {self.network!r}; a session has no network: set it to False, put needed files into `files`")
        for place, source in self.mounts.items():
            if not all(
                isinstance(path, str) and os.path.isabs(path) and os.path.normpath(path) == path and path[:2] != "//"
                for path in (place, source)
            ):
                raise ValueError(f"a mount of {source!r} at {place!r}; both must be absolute paths, without .. or a slash at the end")
            if place == "/" or any(place == folder or place.startswith(f"{folder}/") for folder in OWN_FOLDERS):
                raise ValueError(f"a mount at {place!r}; {', '.join(OWN_FOLDERS)} and what is in them belong to the session itself")
        for name in ("memory_mb", "processes", "disk_mb", "file_mb", "output_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number above 0")
        if isinstance(self.wall_s, bool) or not isinstance(self.wall_s, int | float) or not 0 < self.wall_s < float("inf"):
            raise ValueError(f"wall_s is {self.wall_s!r}; it must be a number of seconds above 0")
        if self.memory_mb < 2 * self.disk_mb + 64:
            raise ValueError(
                f"memory_mb is {self.memory_mb} and disk_mb {self.disk_mb}; files are kept in memory, so at least "
                f"2 * disk_mb + 64 = {2 * self.disk_mb + 64} MB are needed"
            )


class SandboxSession(Hinted, ABC):
    """A sandbox session, usually for one conversation: files, working folder and background processes last between calls.

    Bash: each call starts a new shell with the working folder and the exported variables of the previous call. Functions, aliases and
    unexported variables do not persist. Python: one interpreter, whose variables and imports persist. Background processes keep
    running after a call; their later standard output is discarded.

    Calls from several threads run one after the other. No call is ever retried: if the result of a call is unknown, `failure` is set and
    every later call returns INTERNAL_ERROR. If a program in the session broke it, every later call returns SANDBOX_VIOLATION, and
    `write_file` and `read_file` raise OSError.
    """

    _synonyms = dict.fromkeys(("exec", "execute", "run_command"), "run")
    _hints = {
        **dict.fromkeys(
            ("exec_run", "commands"),
            "write .run(['ls', '-l']), or .run('ls | wc -l'); the result has ok, exit_code and stdout",
        ),
        **dict.fromkeys(("write", "put", "put_archive", "upload"), "write .write_file('a.txt', 'hello')"),
        **dict.fromkeys(("read", "get", "readfile", "download"), "write .read_file('a.txt')"),
    }
    id: str
    """The name of the session, unique on this machine."""

    @property
    @abstractmethod
    def has_failed(self) -> bool:
        """Whether the sandbox failed. The session can then only be closed."""

    @abstractmethod
    def run(
        self, source: str | Sequence[str], *, language: Literal["bash", "python"] = "bash", timeout: float | None = None
    ) -> ExecutionResult:
        """Run a script, or a program with its arguments, and kill it after the timeout (None: the spec's); the session stays usable.

        `ExecutionResult.message` reports side effects, such as lost variables of a killed Python interpreter. A failure of the sandbox
        returns INTERNAL_ERROR.

        Raises:
            ValueError: the arguments are invalid.
        """

    @abstractmethod
    def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file in the working folder, and create its parent folders; a text is written as UTF-8.

        Raises:
            OSError: the file cannot be written.
            SandboxError: the session failed or is closed.
        """

    @abstractmethod
    def read_file(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the first `max_bytes` bytes of a file in the working folder.

        Raises:
            OSError: there is no such file, or a link leads out of the working folder.
            SandboxError: the session failed or is closed.
        """

    def stop_call(self) -> None:
        """Kill the call that runs in another thread: it returns TIMEOUT, and the session stays usable. Does nothing if none runs.

        Raises:
            ConfigError: sessions of this sandbox cannot.
        """
        raise ConfigError(f"a running call of {type(self).__name__} cannot be stopped; give `run` a timeout, or close the session")

    def kill_processes(self) -> None:
        """Kill everything that runs in the session, between two calls; its files stay, and it can be used.

        Raises:
            ConfigError: sessions of this sandbox cannot.
            SandboxError: the session failed or is closed.
        """
        raise ConfigError(f"the processes of {type(self).__name__} cannot be killed; close the session")

    @abstractmethod
    def close(self) -> None:
        """Kill all processes and delete all files. Idempotent and thread-safe; a running call returns INTERNAL_ERROR."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


FILE_HINT = "files are those of a session: with sandbox.create_session() as session: session.write_file('a.txt', 'hello')"
COMMAND_HINT = (
    "a command is a list, .run(['ls', '-l']); several in one place: with sandbox.create_session() as session: session.run('ls | wc -l')"
)


class Sandbox(Plugin, ABC):
    """Runs untrusted programs, isolated from the host. Thread-safe."""

    _synonyms = dict.fromkeys(("exec", "execute", "run_code", "run_command", "run_python"), "run")
    _hints = {
        **dict.fromkeys(("write_file", "read_file", "put", "get", "put_archive", "upload", "copy_to"), FILE_HINT),
        **dict.fromkeys(("exec_run", "commands"), f"write .run(code), the text of a Python program; {COMMAND_HINT}"),
    }

    memory_mb: int | None = None
    """The most memory that one program may use, and what one gets that is given as a text; None: the default of `Limits`."""

    def run(
        self,
        program: Program | str | Sequence[str],
        *,
        stdin: str | bytes = b"",
        timeout: float | None = None,
        memory_mb: int | None = None,
    ) -> ExecutionResult:
        """Run a program until it exits or reaches a limit.

        Args:
            program: the program, or the text of a Python program; or a command with its arguments, which runs in a session of its own.
            stdin: the standard input of a program that is given as a text.
            timeout: the time limit in seconds of a text or a command; None: that of `Limits`, or of the session.
            memory_mb: the memory limit of a text or a command; None: the sandbox's `memory_mb`, or that of the session.

        Returns:
            What happened. A failure of the sandbox is the status INTERNAL_ERROR; it does not raise.
        """
        if isinstance(program, Program):
            if stdin or timeout is not None or memory_mb is not None:
                raise ConfigError(
                    "stdin, timeout and memory_mb go with a text; set them in the Program: "
                    "Program(source, stdin, limits=Limits(wall_s=5, memory_mb=512))"
                )
            return self.run_program(program)
        if isinstance(program, list | tuple):
            if stdin:
                raise ConfigError("a command that is a list has no stdin; write it to a file of a session, or give a Program")
            with self.create_session(None if memory_mb is None else SandboxSpec(memory_mb=memory_mb)) as session:
                return session.run(program, timeout=timeout)
        if not isinstance(program, str):
            raise ConfigError(
                f"the program is a {type(program).__name__}; give the text of a Python program, or an rlvr.Program; {COMMAND_HINT}"
            )
        limits = self.build_limits(timeout, memory_mb)
        return self.run_program(Program(program, stdin.encode() if isinstance(stdin, str) else stdin, limits=limits))

    def build_limits(self, timeout: float | None = None, memory_mb: int | None = None) -> Limits:
        """Return the limits of a program that is given as a text: those of `Limits`, but the memory that the sandbox has."""
        memory = self.memory_mb if memory_mb is None else memory_mb
        given: dict[str, Any] = {"cpu_s": timeout, "wall_s": timeout, "memory_mb": memory}
        return Limits(**{name: value for name, value in given.items() if value is not None})

    @abstractmethod
    def run_program(self, program: Program) -> ExecutionResult:
        """Run a program until it exits or reaches a limit. A failure of the sandbox returns INTERNAL_ERROR; it does not raise."""

    @property
    def session_limiter(self) -> CapacityLimiter | None:
        """The limiter that admits sessions, which `create_session` acquires; None if their number is not limited."""
        return None

    @mark_default_implementation
    def create_session(self, spec: SandboxSpec | None = None) -> SandboxSession:
        """Create a session.

        Raises:
            SandboxError: no session could be created in time.
            ConfigError: this sandbox does not support the spec.
        """
        raise ConfigError(f"{type(self).__name__} has no sessions; use the docker sandbox, or the process sandbox for code that you trust")

    def prepare(self) -> None:
        """Run an empty program; raise SandboxError if the sandbox fails."""
        if (outcome := self.run(Program(""))).status is ExitStatus.INTERNAL_ERROR:
            raise SandboxError(outcome.reason)
