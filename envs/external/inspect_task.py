"""Tasks written for Inspect (inspect-ai): their samples, solver and scorers, run in a process of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr.envs.external._foreign.task_lists import DEFAULT_LIMIT, TaskListEnvironment
from rlvr.envs.external._foreign_host import ForeignHost
from rlvr.errors import ConfigError
from rlvr.task import Task

VERSION_PREFIX = "0.3."
SUPPORTED: Mapping[str, str] = {
    "tasks of text": "a function that returns a Task; its solver may change the prompt and ask several times",
}
UNSUPPORTED: Mapping[str, str] = {
    "tasks with a sandbox, files or a setup": "Inspect would start containers of its own",
    "solvers with tools": "the tools run in Inspect's process; give tools of rlvr by the setting tools",
    "scorers that ask a model": "there is none in the process of the task, so they fail, and there is no score",
}


class InspectTask(TaskListEnvironment):
    """A task of Inspect: the policy answers wherever its solver would call a model, and its scorers verify.

    A score below the full one counts only with `partial`. With `strict`, the last line of the answer must also be one of the targets, up to
    case, spaces and a leading `ANSWER:`. Inspect's own `compare_normalized` and `includes` reward a sentence that denies the target.

    >>> import rlvr
    >>> env = rlvr.make_env("inspect_task", task="evals.py:capitals")  # doctest: +SKIP
    """

    max_prompt_tokens = 8192
    max_new_tokens = 2048

    def __init__(
        self,
        *,
        task: str = "",
        settings: Mapping[str, Any] | None = None,
        strict: bool = True,
        partial: bool = False,
        max_turns: int = 1,
        python: str = "",
        limit: int = DEFAULT_LIMIT,
        instruction: str = "",
    ) -> None:
        """Choose the task.

        Args:
            task: `module:function` or `path/to/file.py:function`; the function returns a Task.
            settings: its arguments.
            strict: whether the answer must also be one of the targets; false if targets are not answers.
            partial: whether a score between 0 and 1 is kept; false: it counts as 0.
            max_turns: the most turns of the policy, for a solver that asks several times.
            python: the interpreter of an environment that has inspect-ai; empty: this one.
            limit: use at most this many samples, the first ones.
            instruction: a system message.
        """
        super().__init__()
        if not isinstance(task, str) or not all(task.rpartition(":")[::2]):
            raise ConfigError(f"task is {task!r}; write module:function or path/to/file.py:function")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 is needed")
        self.limit, self.instruction, self.max_turns = limit, instruction, max_turns
        self.id_prefix = f"inspect_task/{task.rpartition(':')[2]}"
        self.instance_settings = {"task": task, "settings": dict(settings or {}), "strict": bool(strict)}
        self.reference = {"scale": [0.0, 1.0]} if partial else {"won": 1.0, "most": 1.0}
        self.harmless_moves = ("0", "-")
        world = "rlvr.envs.external._foreign.inspect_worker:InspectInstance"
        self.host = ForeignHost(world, extra="inspect", call_timeout_s=30.0, python=python, prepare_args=self.instance_settings)

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        rows = [{"name": name, "offered": "yes", "why": why} for name, why in SUPPORTED.items()]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in UNSUPPORTED.items()]

    def gold(self, task: Task) -> str | None:
        """Return the target in a form that gets the full score; None if there is none."""
        found = self.call_on_temporary_instance("find_gold_answer", number=task.reference["seed"])
        return found if isinstance(found, str) else None

    def prepare(self) -> None:
        """Start the process, compare the version, and read the samples."""
        about = self.host.ensure_started()
        if not str(about["version"]).startswith(VERSION_PREFIX):
            raise ConfigError(f"inspect-ai {about['version']} is installed, {VERSION_PREFIX}x is needed")
        self.list_task_numbers("train")


make = InspectTask
