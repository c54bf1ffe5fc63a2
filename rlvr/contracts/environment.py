"""The environment contract: pose tasks, reply to the policy, choose the text to judge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from rlvr.contracts.plugin import Plugin
from rlvr.contracts.verifier import Verifier
from rlvr.task import Earned, Task, Verdict


class Environment(Plugin, ABC):
    """Poses tasks, in text. Subclass it, set `needs`, and write `task`. `reply`, `answer` and `earned` run in other threads.

    >>> class Doubling(Environment):
    ...     needs = {"verifier": "exact"}
    ...     def __init__(self, *, verifier: Verifier) -> None: self.verifier = verifier
    ...     def task(self, split: str, index: int) -> Task:
    ...         return Task(f"doubling/{split}/{index}", user(f"2 * {index} ="), reference=str(2 * index))
    """

    verifier: Verifier
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    max_turns: int = 1  # the most turns that the policy may take
    max_prompt_tokens: int = 96  # the default limit on the prompt, for a character tokenizer
    max_new_tokens: int = 32  # the default limit on the policy's tokens, all turns together

    @abstractmethod
    def task(self, split: str, index: int) -> Task:
        """The task at `index`: always the same for the same environment settings, split and index."""

    def size(self, split: str) -> int | None:
        """How many tasks the split has; None if they are generated without end."""
        return None

    def gold(self, task: Task) -> str | None:
        """A text that gets the full score (in a multi-turn task: the first turn), or None if none is known."""
        return None

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        """The environment's reply to the policy's turns `said`; None ends the conversation."""
        return None

    def answer(self, task: Task, said: Sequence[str]) -> str:
        """The text to be judged at the end. The default: the policy's last turn."""
        return said[-1] if said else ""

    def earned(self, task: Task, said: Sequence[str], verdict: Verdict) -> Sequence[Earned]:
        """When the score was earned; the amounts add up to it. The default: as in the verdict; if that is empty, all at the end."""
        return verdict.earned

    def close(self) -> None:
        """Close the verifier; an environment that holds other resources overrides this to close them too."""
        if (verifier := getattr(self, "verifier", self)) is not self:
            verifier.close()
