"""Agents in boxes: sessions of a sandbox that see the agent's installation and the gateway, and nothing else of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlvr.contracts import CapacityLimiter, ExecutionResult, ExitStatus, Program, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.sandbox import OWN_FOLDERS
from rlvr.errors import ConfigError, SandboxError
from rlvr.gateway.agents import MAX_OUTPUT_BYTES, RunningAgent

GATEWAY_FOLDER, PORT = "/rlvr-gateway", 8377
"""Where a box has the socket of the gateway, and the port of its own at which the agent finds it."""
BOX_URL = f"http://127.0.0.1:{PORT}"
HOME = "/dev/shm/agent"
"""The home of an agent. It is wiped with the box, and is not in the working folder, which is the task's."""
START_FILE = ".rlvr-start.json"
"""What the launcher reads from the working folder, and deletes before the agent starts."""
OUTPUT_BYTES = 16 << 20
STOP_INTERVAL_S, STOP_TIMEOUT_S, EXTRA_TIMEOUT_S = 0.5, 60.0, 60.0
"""How often a running agent is asked to be killed, how long that is tried, and how long its session may outlast its own timeout."""
MOVED_FOLDER = "/outside"
"""Where a box has what it cannot have at its own path."""
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
"""What a box has of its own: that of this machine (bubblewrap), or that of its image (docker)."""


@dataclass(frozen=True, slots=True)
class BoxLimits:
    """What the boxes of agents may use at least; a task that allows more keeps what it has.

    >>> BoxLimits().memory_mb
    2048
    """

    memory_mb: int = 2048
    disk_mb: int = 256
    processes: int = 256


class AgentSandbox(Sandbox):
    """Creates the boxes of another sandbox, with the mounts, the loopback network and the limits that agents need."""

    def __init__(self, sandbox: Sandbox, mounts: Callable[[], Mapping[str, str]], limits: BoxLimits) -> None:
        """Wrap a sandbox; `mounts` returns what each box sees of this machine, when the first one is created."""
        self.sandbox, self._mounts, self._limits = sandbox, mounts, limits

    def run_program(self, program: Program) -> ExecutionResult:
        """Run a program as the other sandbox does."""
        return self.sandbox.run_program(program)

    def prepare(self) -> None:
        """Prepare the other sandbox."""
        self.sandbox.prepare()

    @property
    def session_limiter(self) -> CapacityLimiter | None:
        """The limiter of the other sandbox."""
        return self.sandbox.session_limiter

    def create_session(self, spec: SandboxSpec | None = None) -> SandboxSession:
        """Create a box for an agent."""
        spec = spec or SandboxSpec()
        disk_mb = max(spec.disk_mb, self._limits.disk_mb)
        wanted = replace(
            spec,
            memory_mb=max(spec.memory_mb, self._limits.memory_mb, 2 * disk_mb + 64),
            disk_mb=disk_mb,
            processes=max(spec.processes, self._limits.processes),
            output_bytes=max(spec.output_bytes, OUTPUT_BYTES),
            mounts={**spec.mounts, **self._mounts()},
            loopback=True,
            limit_addresses=False,
        )
        return self.sandbox.create_session(wanted)

    def close(self) -> None:
        """Close the other sandbox."""
        self.sandbox.close()


class BoxAgent(RunningAgent):
    """An agent that runs in a box, as one call of its session."""

    def __init__(
        self,
        box: SandboxSession,
        command: Sequence[str],
        *,
        variables: Mapping[str, str],
        files: Mapping[str, str],
        path: Sequence[str],
        stdin: str,
        timeout_s: float,
        on_end: Callable[[], None],
    ) -> None:
        """Start the agent; `files` are those of its home, by absolute path, and `path` are folders in which programs are found first."""
        self._box = box
        self._result: ExecutionResult | None = None
        self._is_killed = False
        start = {
            "command": list(command),
            "variables": dict(variables),
            "files": dict(files),
            "path": list(path),
            "stdin": stdin,
            "home": HOME,
            "port": PORT,
            "gateway": f"{GATEWAY_FOLDER}/socket",
        }
        box.write_file(START_FILE, json.dumps(start))
        self._thread = threading.Thread(target=self._run, args=(timeout_s + EXTRA_TIMEOUT_S, on_end), name="rlvr-agent", daemon=True)
        self._thread.start()

    def _run(self, timeout_s: float, on_end: Callable[[], None]) -> None:
        source = Path(__file__).with_name("launcher.py").read_text("utf-8")
        # the Python of a box has one of two names
        python = 'exec "$(command -v python3 || command -v python)" -I -B -c "$@"'
        try:
            self._result = self._box.run(["bash", "-c", python, "bash", source, START_FILE], timeout=timeout_s)
        except BaseException as error:  # such as a session that was closed meanwhile
            self._result = ExecutionResult(ExitStatus.INTERNAL_ERROR, reason=f"{type(error).__name__}: {error}")
        on_end()

    def get_end(self) -> str | None:
        """Return how the agent ended. Raises SandboxError if its box failed, which is no fault of the agent."""
        result = self._result
        if result is None:
            return None
        if result.status is ExitStatus.INTERNAL_ERROR:
            raise SandboxError(f"the box of the agent failed: {result.reason}")
        if result.status is ExitStatus.OK:
            return ""
        if result.status is ExitStatus.RUNTIME_ERROR and result.exit_code is not None and result.exit_code >= 0:
            return f"the agent ended with exit code {result.exit_code}"
        return f"the agent was ended: {result.reason}"

    def kill(self) -> None:
        """End the agent and all that it started, and wait for that."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._box.stop_call()
            self._thread.join(STOP_INTERVAL_S)
        if not self._is_killed and not self._thread.is_alive():
            self._is_killed = True
            with suppress(SandboxError):  # a box that is closed has no processes, and one that failed is found by who reads its files
                self._box.kill_processes()

    def read_output(self) -> str:
        """Return the end of what the agent has printed; it is known once the agent has ended."""
        return "" if self._result is None else self._result.stdout_bytes[-MAX_OUTPUT_BYTES:].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class BoxCommand:
    """A command as it is called in a box, and what the box must have of this machine for it.

    >>> prepare_command(["bash", "-c", "exit"]).mounts
    {}
    """

    words: tuple[str, ...]
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Files and folders of this machine, by their paths in the box."""
    path: tuple[str, ...] = ()
    """Folders of the box in which programs are looked for first."""


def prepare_command(command: Sequence[str]) -> BoxCommand:
    """Find out what a box must have for a command: the installation of its program, and the files that its words name.

    A program that is part of the system, or is not on this machine, is left to the box.
    """
    words = [os.path.expanduser(command[0])]
    mounts: dict[str, str] = {}
    path: list[str] = []
    found = shutil.which(words[0])
    if found is not None and not _is_in(found := os.path.abspath(found), SYSTEM_FOLDERS):
        _refuse_lost_interpreter(found)
        words[0], folders, path = _find_installation(words[0], found)
        mounts |= {get_place_in_box(folder): folder for folder in folders if not _is_in(folder, SYSTEM_FOLDERS)}
    for word in command[1:]:
        if (named := _find_named_path(word)) and not _is_in(named, SYSTEM_FOLDERS):
            mounts[get_place_in_box(named)] = named
            word = word.removesuffix(named) + get_place_in_box(named)
        words.append(word)
    return BoxCommand(tuple(words), mounts, tuple(path))


def _find_named_path(word: str) -> str:
    """Return the path of this machine that a word names, alone or after an equals sign; empty if there is none."""
    for path in (word, word.partition("=")[2]):
        if (
            os.path.isabs(path)
            and os.path.normpath(path) == path
            and path.strip("/")
            and not path.startswith("//")
            and os.path.exists(path)
        ):
            return path
    return ""


def get_place_in_box(path: str) -> str:
    """Return where a file or folder of this machine is in a box: at its own path, unless that belongs to the box.

    >>> get_place_in_box("/opt/agent"), get_place_in_box("/tmp/agent")
    ('/opt/agent', '/outside/tmp/agent')
    """
    return f"{MOVED_FOLDER}{path}" if _is_in(path, OWN_FOLDERS) else path


def _find_installation(name: str, found: str) -> tuple[str, list[str], list[str]]:
    """Return how a program is called in a box, the folders of this machine that it needs (a package of npm, a virtual environment, or the
    file alone), and the folders with programs that it calls.
    """
    real = os.path.realpath(found)
    parts = Path(real).parts
    if "node_modules" in parts:
        node = os.path.realpath(shutil.which("node") or "/usr/bin/node")
        package = str(Path(*parts[: parts.index("node_modules") + 1]))
        return get_place_in_box(real), [package, node], [os.path.dirname(get_place_in_box(node))]
    above = [(path, folder) for path in (found, real) for folder in Path(path).parents]
    for place, folder in above:  # also of a link, as pipx makes it
        if (folder / "pyvenv.cfg").is_file():
            base = Path(os.path.realpath(folder / "bin" / "python")).parents[1]
            # a name stays a name: in a container without the Python of the environment, it is the program of the image
            program = name if os.sep not in name and place == found else get_place_in_box(place)
            return program, [str(folder), str(base)], [get_place_in_box(str(folder / "bin"))]
    if re.fullmatch(r"python[\d.]*", os.path.basename(found)) and (prefix := _ask_python_for_prefix(found)):
        return name if os.sep not in name else os.path.basename(found), [prefix], [get_place_in_box(f"{prefix}/bin")]
    return get_place_in_box(found), [found], []


def _ask_python_for_prefix(program: str) -> str:
    """Return the folder of an interpreter that may be a script which chooses one, as pyenv installs it; empty if it does not say."""
    with suppress(OSError, subprocess.SubprocessError):
        command = [program, "-I", "-c", "import sys; print(sys.base_prefix)"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    return ""


def _refuse_lost_interpreter(program: str) -> None:
    """Raise ConfigError for a script whose first line names an interpreter in a folder of which a box has its own."""
    with open(program, "rb") as file:
        first = file.readline(4096)
    interpreter = first.removeprefix(b"#!").split()[0].decode("utf-8", "replace") if first.startswith(b"#!") and first[2:].strip() else ""
    if _is_in(interpreter, OWN_FOLDERS):
        raise ConfigError(
            f"the agent {program} starts {interpreter}, and a box has folders {', '.join(OWN_FOLDERS)} of its own; install the agent elsewhere, "
            "or set trusted: true to run it on this machine as you"
        )


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
