"""An environment of tasks that exist already, such as those that a program has just made."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.contracts.environment import Environment
from rlvr.contracts.verifier import Verifier
from rlvr.errors import ConfigError
from rlvr.task import Task

CHAT_TEMPLATE_TOKENS = 512
"""Tokens of a prompt that a chat template may add."""


class TaskList(Environment):
    """Tasks that were given as a list, and the verifier of their answers.

    >>> import rlvr
    >>> env = rlvr.make_env([rlvr.Task("2+2=", "4"), rlvr.Task("3+3=", "6")], verifier="numeric")
    >>> env.num_tasks("train"), env.task("train", 1).question
    (2, '3+3=')
    """

    splits = ("train",)
    max_new_tokens = 1024

    def __init__(self, tasks: Sequence[Task], *, verifier: Verifier) -> None:
        """Set the tasks and their verifier."""
        ids = [task.id for task in tasks]
        if twice := next((name for name in ids if ids.count(name) > 1), None) if len(set(ids)) < len(ids) else None:
            raise ConfigError(f"two tasks of the list have the id {twice!r}; give each its own: rlvr.Task(..., id=...)")
        self.tasks, self.verifier = tuple(tasks), verifier
        longest = max(
            (sum(len(message["content"].encode("utf-8", "surrogatepass")) for message in task.prompt) for task in tasks), default=0
        )
        self.max_prompt_tokens = longest + CHAT_TEMPLATE_TOKENS

    def task(self, split: str, index: int) -> Task:
        """Return a task of the list."""
        return self.tasks[index]

    has_loaded_tasks = True

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks."""
        return len(self.tasks)

    def gold(self, task: Task) -> str | None:
        """Return the reference if it is a text that gets the full score, else None."""
        right = task.reference
        return right if isinstance(right, str) and self.verifier.verify(task, right).passed else None
