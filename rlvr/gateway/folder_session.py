"""A folder of this machine as the sandbox of a task whose agent runs on this machine. It isolates nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.sandbox import MAX_FILE_BYTES
from rlvr.errors import ConfigError


class FolderSession(SandboxSession):
    """A temporary folder with the files of a task, which is deleted at the end."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.id, self._spec = f"folder-{uuid.uuid4().hex[:12]}", spec
        self._whole = Path(tempfile.mkdtemp(prefix="rlvr-agent-"))
        self.home, self.folder = self._whole / "home", self._whole / "work"
        """The home of the agent, and its working folder."""
        self.home.mkdir()
        self.folder.mkdir()
        for path, data in spec.files.items():
            self.write_file(path, data)

    @property
    def has_failed(self) -> bool:
        """Whether the folder is lost: never."""
        return False

    def run(
        self, source: str | Sequence[str], *, language: Literal["bash", "python"] = "bash", timeout: float | None = None
    ) -> ExecutionResult:
        """Run a command of the task's preparation as this process's user."""
        command = list(source) if not isinstance(source, str) else [*(("bash", "-c") if language == "bash" else ("python3", "-c")), source]
        try:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=timeout or self._spec.wall_s, check=False)
        except subprocess.TimeoutExpired:
            return ExecutionResult(ExitStatus.TIMEOUT, reason="the command did not end in time")
        status = ExitStatus.OK if done.returncode == 0 else ExitStatus.RUNTIME_ERROR
        return ExecutionResult(status, exit_code=done.returncode, stdout_bytes=done.stdout, stderr_bytes=done.stderr)

    def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file in the working folder."""
        target = self._find(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)

    def read_file(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Read the beginning of a file in the working folder. A link that leads out of it, and what is no plain file, is an OSError."""
        target = self._find(path)
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not os.path.isfile(f"/proc/self/fd/{descriptor}") or not self._is_inside(Path(os.readlink(f"/proc/self/fd/{descriptor}"))):
                raise OSError(40, os.strerror(40), path)
            return file.read(max_bytes)

    def _find(self, path: str) -> Path:
        target = self.folder / path
        if not self._is_inside(target.parent.resolve() / target.name):
            raise OSError(40, os.strerror(40), path)
        return target

    def _is_inside(self, target: Path) -> bool:
        return target.is_relative_to(self.folder.resolve())

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self._whole, ignore_errors=True)


class FolderSandbox(Sandbox):
    """Creates folders for tasks whose agent runs on this machine."""

    def run_program(self, program: Program) -> ExecutionResult:
        """Refuse a program: verifiers need a sandbox that isolates."""
        raise ConfigError("a folder isolates nothing, so no program runs in it; use the sandbox docker or bubblewrap")

    def prepare(self) -> None:
        """Prepare nothing: a folder needs no engine."""

    def create_session(self, spec: SandboxSpec | None = None) -> FolderSession:
        """Create a folder with the files of the spec."""
        return FolderSession(spec or SandboxSpec())
