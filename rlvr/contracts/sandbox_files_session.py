"""A conversation in a sandbox whose final files are judged: the base of a world in a container.

The files are read at the end, from outside; nothing else in the sandbox affects the verdict.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlvr.contracts.sandbox import Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.tool import Tool
from rlvr.contracts.toolsession import ToolSession
from rlvr.task import Task

MAX_FILE_BYTES = 200_000
"""The maximum number of bytes that is read of one file."""


class SandboxFilesSession(ToolSession):
    """A conversation in a sandbox with files, some of which become artifacts at its end."""

    def __init__(
        self,
        task: Task,
        tools: Sequence[Tool],
        *,
        sandbox: Sandbox | None,
        seed: int = 0,
        files: Mapping[str, bytes],
        artifact_paths: Iterable[str] = (),
        executable: Sequence[str] = (),
    ) -> None:
        """Prepare the session; `start_tools` opens the sandbox.

        Args:
            task: the task of this conversation.
            tools: the environment's tools.
            sandbox: opens the sandbox session.
            seed: ignored, because the files depend on the task alone.
            files: the initial files.
            artifact_paths: the paths that are read at the end, whether they exist at the beginning or not.
            executable: the paths that are made executable.
        """
        super().__init__(task, tools, sandbox=sandbox, seed=seed)
        self._files, self._executable = files, tuple(executable)
        self.artifact_paths = tuple(artifact_paths)
        """The paths that are read at the end."""

    def sandbox_spec(self) -> SandboxSpec:
        """Return the spec of a small sandbox session: the files are texts of some kilobytes."""
        return SandboxSpec(files=self._files, memory_mb=256, disk_mb=32, file_mb=16, processes=48)

    def start_tools(self) -> Any:
        """Open the sandbox session, and set file permissions before the first turn of the policy."""
        new = self.sandbox_session is None
        specs = super().start_tools()
        if new and self._executable and self.sandbox_session is not None:
            outcome = self.sandbox_session.run(["chmod", "755", *self._executable])
            if outcome.exit_code != 0:
                raise RuntimeError(f"the file permissions in the sandbox could not be set: {outcome.reason or outcome.stderr_bytes!r:.200}")
        return specs

    def artifacts(self) -> Mapping[str, Any]:
        """Return the bytes of each artifact file, by its path.

        The value is None if there is no file, and the name of the error if the file cannot be read. The files are read from outside: no
        program in the sandbox is used, since the policy may have replaced any of them.
        """
        return (
            {path: _read_artifact(self.sandbox_session, path) for path in self.artifact_paths} if self.sandbox_session is not None else {}
        )


def _read_artifact(box: SandboxSession, path: str) -> bytes | str | None:
    try:
        return box.read_file(path, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EIO")
