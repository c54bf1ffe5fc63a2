"""Sandbox environments whose final files are verified: their session and their base class.

The files are read at the end; nothing else in the sandbox affects the verdict.
"""

from __future__ import annotations

import errno
import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlvr.contracts import Environment, Sandbox, SandboxSession, SandboxSpec, ToolSession, Verifier
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task

NAME_STEMS = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heron", "iris", "jade", "kite", "lotus", "maple", "north")
"""Names of folders and packages; each gets a number appended."""
MAX_FILE_BYTES = 200_000
"""Most bytes read of one file; the files of these environments are far smaller."""


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
        """Prepare the session; `tools` opens the sandbox.

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
        self._files, self._artifact_paths, self._executable = files, tuple(artifact_paths), tuple(executable)

    def sandbox_spec(self) -> SandboxSpec:
        """Return the spec of a small sandbox session: the files are texts of some kilobytes."""
        return SandboxSpec(files=self._files, memory_mb=256, disk_mb=32, file_mb=16, processes=48)

    def tools(self) -> Any:
        """Open the sandbox session, and set file permissions before the first turn of the policy."""
        new = self.sandbox_session is None
        specs = super().tools()
        if new and self._executable and self.sandbox_session is not None:
            outcome = self.sandbox_session.run(["chmod", "755", *self._executable])
            if outcome.exit_code != 0:
                raise RuntimeError(f"the file permissions in the sandbox could not be set: {outcome.reason or outcome.stderr!r:.200}")
        return specs

    def artifacts(self) -> Mapping[str, Any]:
        """Return for each artifact path its bytes, None if there is no file, or the name of the error if it cannot be read.

        The files are read from outside. No program in the sandbox is used, since the policy may have replaced any of them.
        """
        return (
            {path: _read_artifact(self.sandbox_session, path) for path in self._artifact_paths} if self.sandbox_session is not None else {}
        )


class SandboxEnvironment(Environment):
    """Base class of environments with several kinds of generated tasks in a sandbox."""

    all_kinds: Sequence[str] = ()
    """All kinds of tasks of the environment."""

    def __init__(
        self,
        *,
        verifier: Verifier,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        kinds: Sequence[str] | None = None,
        max_turns: int | None = None,
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Set the kinds of tasks, the tools and the limits.

        Args:
            verifier: verifies the final files.
            tools: the tools of the policy; at least one of them must run in the sandbox.
            sandbox: opens a session for each conversation.
            kinds: the kinds of tasks, drawn with equal probability; None: all of them.
            max_turns: the most turns of the policy, turns with tool calls included; None: the default of the environment.
            seed: another seed gives different tasks.
            instruction: a system message, for models that were not trained on these prompts.
        """
        listed = list(self.all_kinds) if kinds is None else [] if isinstance(kinds, str) else list(kinds)
        if not listed or any(kind not in self.all_kinds for kind in listed):
            wrong = str(next((kind for kind in listed if kind not in self.all_kinds), kinds))
            raise ConfigError(f"kinds has {wrong!r}; it must be a list of kinds: {format_suggestion(wrong, list(self.all_kinds))}")
        max_turns = self.max_turns if max_turns is None else max_turns
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 2:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 2 are needed, a call and the answer")
        self.verifier, self.tools, self.sandbox, self.kinds = verifier, tuple(tools), sandbox, tuple(listed)
        self.max_turns, self.seed, self.instruction = max_turns, seed, instruction
        self.max_prompt_tokens += len(instruction.encode())


def draw_name_for_split(draw: random.Random, split: str, draw_name: Callable[[], str]) -> str:
    """Draw names until one belongs to the split: one name in five is held out, so that no question is in two splits.

    >>> draw = random.Random(0)
    >>> draw_name_for_split(draw, "train", lambda: str(draw.randrange(100)))
    '5'
    """
    while True:
        found = draw_name()
        held_out = hashlib.blake2b(found.encode(), digest_size=4).digest()[0] % 5 == 0
        if split == ("test" if held_out else "train"):
            return found


def _read_artifact(box: SandboxSession, path: str) -> bytes | str | None:
    try:
        return box.read_file(path, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EIO")
