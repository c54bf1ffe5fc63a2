"""Task folders of Harbor and terminal-bench: a shell in the folder's image; the folder's tests verify the files in a fresh sandbox."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlvr.contracts import Environment, Sandbox, Session
from rlvr.contracts.tool import Tool
from rlvr.envs.external._harbor.folders import TaskFolder, UnsupportedTask, find_task_folders, read_task_folder
from rlvr.envs.external._harbor.images import get_or_build_image
from rlvr.envs.external._harbor.sessions import TaskFolderSession, build_solution_command
from rlvr.envs.external._harbor.verification import TaskFolderVerifier
from rlvr.errors import ConfigError
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call

MAX_LISTED_FOLDERS = 5
SUPPORTED: Mapping[str, str] = {
    "Harbor folders": "task.toml, instruction.md, environment/Dockerfile or docker_image, tests/test.sh, solution/solve.sh",
    "terminal-bench 0.2 folders": "task.yaml, Dockerfile, run-tests.sh, solution.sh, tests judged by the summary of pytest",
    "verifier mode shared": "the working folder is copied to a fresh box; processes and variables of the conversation are not",
    "verifier mode separate": "only the declared artifacts and /logs/artifacts are copied",
}
UNSUPPORTED: Mapping[str, str] = {
    "a network": "boxes have none: a folder whose tests download something gives its own solution no reward",
    "several steps": "only tasks of one step are played",
    "several containers": "a conversation has one",
    "GPUs, MCP servers, health checks, windows": "a box has none",
    "root": "the policy is a user without rights, and can write to the working folder, /tmp, /logs and its home only",
    "an answer that is a change of the image's own virtual environment": "those are restored before the tests run",
    "a verifier with an environment of its own": "the tests run in the image of the task",
}


class Harbor(Environment):
    """Task folders: the policy works in a sandbox with bash; the folder's tests then verify the resulting files in a fresh sandbox.

    Nothing else of the conversation's sandbox affects the verdict: no process, no variable, no other file. The tests
    use the commands and modules of the image, and all their processes have ended before the reward is read. The
    score is 1 for a reward of 1, else 0, unless `partial` is set. The engine builds images at the first use, and keeps them.

    >>> import rlvr
    >>> env = rlvr.make_env("harbor", path="my_tasks")  # doctest: +SKIP
    >>> env.num_tasks("train")  # doctest: +SKIP
    10
    """

    needs = {"tools": ["bash", "submit"], "sandbox": "docker"}
    requires_tool_call = True
    max_turns = 30
    max_new_tokens = 8192

    def __init__(
        self,
        *,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        path: str = "",
        test: str = "",
        max_turns: int | None = None,
        partial: bool = False,
        disk_mb: int = 128,
        verdict_timeout_s: float = 540.0,
        skip_unsupported: bool = False,
        instruction: str = "",
    ) -> None:
        """Read the folders.

        Args:
            tools: the tools of the policy; at least one of them must run in the sandbox.
            sandbox: opens the sessions; it must be the docker sandbox, because folders have images.
            path: a folder of task folders.
            test: another folder, whose tasks are held out; empty: one task in four of `path` is held out, by a hash of its name.
            max_turns: the most turns of the policy, turns with tool calls included.
            partial: whether a reward between 0 and 1 is the score; false: it is worth 0.
            disk_mb: disk space for the files of a conversation.
            verdict_timeout_s: when the tests on an answer are stopped, though the folder allows more; below `rollout.call_timeout_s`, after
                which there is no score.
            skip_unsupported: leave out unsupported folders; by default they are an error.
            instruction: a system message.
        """
        self.tools, self.sandbox, self.disk_mb, self.instruction = tuple(tools), sandbox, disk_mb, instruction
        self.max_turns = self.max_turns if max_turns is None else max_turns
        if isinstance(self.max_turns, bool) or not isinstance(self.max_turns, int) or self.max_turns < 2:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 2 are needed, a call and the answer")
        if isinstance(disk_mb, bool) or not isinstance(disk_mb, int) or not 8 <= disk_mb <= 4096:
            raise ConfigError(f"disk_mb is {disk_mb!r}; a whole number from 8 to 4096 is needed")
        if isinstance(verdict_timeout_s, bool) or not isinstance(verdict_timeout_s, int | float) or not 1 <= verdict_timeout_s < math.inf:
            raise ConfigError(f"verdict_timeout_s is {verdict_timeout_s!r}; a number of seconds from 1 is needed")
        self._folders = {name: _load_folders(where, skip_unsupported) for name, where in (("", path), ("test", test)) if where}
        if not self._folders:
            raise ConfigError("path is empty; give a folder of task folders, each with a task.toml or a task.yaml")
        self.warnings = tuple(note for _, notes in self._folders.values() for note in notes)
        self._tasks = self._split_folders()
        vars(self)["splits"] = tuple(self._tasks)
        folders = {folder.name: folder for rows in self._tasks.values() for folder in rows}
        self.verifier = self.test_verifier = TaskFolderVerifier(
            folders, sandbox=sandbox, disk_mb=disk_mb, partial=partial, timeout_s=verdict_timeout_s
        )
        self.max_prompt_tokens = max(len(folder.instruction.encode()) for folder in folders.values()) + len(instruction.encode()) + 256

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List which parts of the formats are supported and which are not."""
        rows = [{"name": name, "offered": "yes", "why": why} for name, why in SUPPORTED.items()]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in UNSUPPORTED.items()]

    def num_tasks(self, split: str) -> int:
        """Return the number of task folders in the split."""
        return len(self._tasks_of_split(split))

    def task(self, split: str, index: int) -> Task:
        """Return the task of the folder at `index`, ordered by name."""
        rows = self._tasks_of_split(split)
        if not 0 <= index < len(rows):
            raise ConfigError(f"harbor has no {split} task {index}; it has 0 to {len(rows) - 1}")
        folder = rows[index]
        reference = {"folder": folder.name, "digest": folder.digest}
        return Task(
            make_user_prompt(folder.instruction, system=self.instruction),
            reference,
            id=f"harbor/{split}/{folder.name}",
            meta=dict(folder.metadata),
        )

    def gold(self, task: Task) -> str:
        """Return a placeholder answer: only the files are verified."""
        return "done"

    def oracle_turns(self, task: Task) -> list[str | Call] | None:
        """Return the turns that run the folder's solution, or None if it has none."""
        folder = self.test_verifier.folders[task.reference["folder"]]
        return [Call("0.0", "bash", {"command": build_solution_command(folder)}), self.gold(task)] if folder.solution_script else None

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a sandbox session from the image of the folder."""
        folder = self.test_verifier.folders[task.reference["folder"]]
        return TaskFolderSession(task, folder, self.tools, sandbox=self.sandbox, disk_mb=self.disk_mb, seed=seed)

    def prepare(self) -> None:
        """Start the sandbox and build every image, so that a failed build stops the run before it begins."""
        super().prepare()
        for folder in self.test_verifier.folders.values():
            get_or_build_image(folder)

    def _tasks_of_split(self, split: str) -> list[TaskFolder]:
        if split not in self._tasks:
            raise ConfigError(f"harbor has no split {split!r}; allowed: {', '.join(self._tasks)}")
        return self._tasks[split]

    def _split_folders(self) -> dict[str, list[TaskFolder]]:
        rows = self._folders.get("", ([], []))[0]
        if "test" in self._folders:
            test = self._folders["test"][0]
            if both := sorted({folder.name for folder in rows} & {folder.name for folder in test}):
                raise ConfigError(f"the task {both[0]!r} is in path and in test; a task belongs to one of them")
            made = {"train": rows, "test": test}
        else:
            made = {"train": [row for row in rows if not is_held_out(row.name)], "test": [row for row in rows if is_held_out(row.name)]}
        return {name: some for name, some in made.items() if some}


def is_held_out(name: str) -> bool:
    """Return whether a task is held out: one in four, by a hash of its name.

    >>> is_held_out("hello"), is_held_out("b")
    (False, False)
    """
    return hashlib.blake2b(name.encode(), digest_size=4).digest()[0] % 4 == 0


def _load_folders(where: str, skip_unsupported: bool) -> tuple[list[TaskFolder], list[str]]:
    root = Path(where).expanduser()
    if not root.is_dir():
        raise ConfigError(f"there is no folder {where!r}; give a folder of task folders")
    rows, refused = [], []
    for path in find_task_folders(root):
        try:
            rows.append(read_task_folder(path))
        except UnsupportedTask as why:
            refused.append(f"{path.name}: {why}")
    more = f"\n  and {len(refused) - MAX_LISTED_FOLDERS} more" if len(refused) > MAX_LISTED_FOLDERS else ""
    listed = "\n  " + "\n  ".join(refused[:MAX_LISTED_FOLDERS]) + more
    if refused and not skip_unsupported:
        raise ConfigError(
            f"{len(refused)} of the task folders in {where} cannot be played; leave them out with skip_unsupported=true:{listed}"
        )
    if not rows:
        raise ConfigError(
            f"{where} has no task folder that can be played; each has a task.toml or a task.yaml" + (listed if refused else "")
        )
    return rows, [f"{len(refused)} task folders of {where} are left out:{listed}"] if refused else []


make = Harbor
