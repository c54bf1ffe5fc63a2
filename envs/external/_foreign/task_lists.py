"""Base class for task lists of foreign packages: tasks have numbers, the question decides the split, turns are actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rlvr.envs.external._game_env import GameEnvironment, is_held_out
from rlvr.errors import ConfigError
from rlvr.task import Message, Task

DEFAULT_LIMIT = 2_000
"""Default limit on the number of tasks that are read."""
ROLES = ("system", "user", "assistant")


class TaskListEnvironment(GameEnvironment):
    """Base class of environments with a list of tasks. The worker class has `list_questions`, `get_prompt_messages`, `reset` and `step`.

    `begin` gets the task's number as its seed and returns the last message of its prompt, which is the question. One question in five is
    held out, by a hash of its text, so that equal questions are in one split.
    """

    limit = DEFAULT_LIMIT
    _numbers: Mapping[str, list[int]] | None = None

    def list_task_numbers(self, split: str) -> list[int]:
        """Return the numbers of the tasks of a split."""
        if self._numbers is None:
            questions = self.call_on_temporary_instance("list_questions", limit=self.limit)
            if not isinstance(questions, list) or not all(isinstance(text, str) and text.strip() for text in questions):
                raise ConfigError(f"{self.id_prefix} lists {questions!r:.200}; each task needs a question")
            made: dict[str, list[int]] = {"train": [], "test": []}
            for number, text in enumerate(questions):
                made["test" if is_held_out(text) else "train"].append(number)
            self._numbers = made
            if not questions:
                raise ConfigError(f"{self.id_prefix} has no tasks")
        if split not in self._numbers:
            raise ConfigError(f"there is no split {split!r}; allowed: {', '.join(self._numbers)}")
        return self._numbers[split]

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks in the split."""
        return len(self.list_task_numbers(split))

    def _make_task(self, split: str, index: int) -> Task:
        numbers = self.list_task_numbers(split)
        if not 0 <= index < len(numbers):
            raise ConfigError(f"{self.id_prefix} has no {split} task {index}; it has {len(numbers)}")
        number = numbers[index]
        prompt = self.call_on_temporary_instance("get_prompt_messages", number=number)
        if not isinstance(prompt, list) or not prompt or not all(_is_message(one) for one in prompt):
            raise ConfigError(
                f"task {number} of {self.id_prefix} has the prompt {prompt!r:.200}; messages with a role and a text are needed"
            )
        head: list[Any] = [{"role": "system", "content": self.instruction}] if self.instruction else []
        return Task(
            tuple(cast("list[Message]", [*head, *prompt])), {**self.reference, "seed": number}, id=f"{self.id_prefix}/{split}/{number}"
        )

    def format_no_move_reply(self) -> str:
        """Return the reply to a turn without text."""
        return "That is no answer. Write a text."

    def parse_move(self, text: str) -> str | None:
        """Return the whole turn, without its reasoning; None if it is empty."""
        return text if text.strip() else None


def _is_message(one: Any) -> bool:
    return isinstance(one, dict) and set(one) == {"role", "content"} and one["role"] in ROLES and isinstance(one["content"], str)
