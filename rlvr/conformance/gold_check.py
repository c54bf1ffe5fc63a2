"""Find the references of an environment that its verifier cannot read, before any training."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rlvr.contracts import Environment
from rlvr.errors import ConfigError
from rlvr.task import Fault

MAX_TASKS_PER_SPLIT, MAX_GENERATED_TASKS = 20_000, 500
"""Maximum number of tasks of each split that are read: of a data set, where each row may be wrong, and of tasks that a program makes."""
MAX_CHECK_S = 30.0
MAX_LISTED_TASKS = 50


@dataclass(frozen=True, slots=True)
class UnreadableReferences:
    """The tasks whose reference the verifier cannot read: no answer to them gets a score.

    >>> print(UnreadableReferences(2, ["row 2: it is no number"]).describe())
    1 of 2 references cannot be read by the verifier; answers to these questions get no score:
      row 2: it is no number
    """

    num_read: int = 0
    problems: list[str] = field(default_factory=list)
    """One line for each, with the name of the task."""

    def describe(self, max_listed: int = MAX_LISTED_TASKS) -> str:
        """Describe the problems, one a line; "" without any."""
        if not self.problems:
            return ""
        head = (
            f"{len(self.problems)} of {self.num_read} references cannot be read by the verifier; answers to these questions get no score:"
        )
        rest = len(self.problems) - max_listed
        return "\n  ".join([head, *self.problems[:max_listed], *([f"and {rest} more"] if rest > 0 else [])])

    def raise_if_none_readable(self) -> None:
        """Raise ConfigError if no reference at all can be read."""
        if self.problems and len(self.problems) == self.num_read:
            raise ConfigError(
                f"none of the {self.num_read} references can be read by the verifier, so no answer would get a score; "
                f"choose another verifier (`rlvr list verifiers`), or correct the references:\n  {self.problems[0]}"
            )


def find_unreadable_references(env: Environment, *, timeout_s: float = MAX_CHECK_S) -> UnreadableReferences:
    """Verify an empty answer to every task: with a reference that cannot be read, the verdict has fault `task`.

    Verifiers that run code or ask another machine are not called. The check ends after `timeout_s` with what it has read.

    >>> import rlvr
    >>> find_unreadable_references(rlvr.make_env([{"question": "2+2=", "answer": "four"}], verifier="numeric", holdout=0)).problems
    ["dataset/train/row 1: the reference 'four' is not a number"]
    """
    verifier = env.verifier
    if verifier.traits.is_async or verifier.traits.takes_transcript or getattr(verifier, "sandbox", None) is not None:
        return UnreadableReferences()
    num_read, problems, until = 0, list[str](), time.monotonic() + timeout_s
    for split in env.splits:
        size = env.num_tasks(split)
        for index in range(MAX_GENERATED_TASKS if size is None else min(MAX_TASKS_PER_SPLIT, size)):
            if time.monotonic() > until:
                break
            task, num_read = env.task(split, index), num_read + 1
            verdict = verifier.verify(task, "")
            if verdict.fault is Fault.TASK:
                problems.append(f"{task.id}: {verdict.reason}")
    return UnreadableReferences(num_read, problems)
