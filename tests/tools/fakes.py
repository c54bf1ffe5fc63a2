"""A sandbox box for tests: files in memory, and programs that are told what to answer."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Literal

from rlvr.contracts import ExecutionResult, ExitStatus, SandboxSession


class FakeBox(SandboxSession):
    """Keeps what it was asked; runs nothing."""

    id = "fake"
    has_failed = False

    def __init__(
        self,
        answer: Callable[[str], ExecutionResult] = lambda source: ExecutionResult(
            ExitStatus.OK, exit_code=0, stdout_bytes=source.encode("utf-8", "replace")
        ),
    ) -> None:
        self.answer, self.asked, self.files = answer, list[tuple[str, str, float | None]](), dict[str, bytes]()

    def run(
        self, source: str | Sequence[str], *, language: Literal["bash", "python"] = "bash", timeout: float | None = None
    ) -> ExecutionResult:
        assert isinstance(source, str)
        self.asked.append((source, language, timeout))
        return self.answer(source)

    def write_file(self, path: str, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if path.startswith("/ro/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        self.files[path] = data

    def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return self.files[path][:max_bytes]

    def close(self) -> None:
        self.files.clear()
