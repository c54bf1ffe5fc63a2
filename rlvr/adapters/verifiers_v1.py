"""Adapter for verifiers (v1): a package with one `Taskset`, for the loop of verifiers and for prime-rl.

    make_task_rows   the data of the tasks
    TasksetRewards   the reward function

The reward raises an error for an answer that could not be verified: the trace is then not `ok`, and its rewards stay None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rlvr.adapters.rows import agreed, row_of, task_of
from rlvr.adapters.texts import Scorer, last_said
from rlvr.contracts import Environment
from rlvr.errors import VerifierError
from rlvr.mdp.rules import posed

TESTED = "0.4.0"
agreed("verifiers", TESTED)


def tasks_of(environment: Environment, split: str, count: int) -> list[dict[str, Any]]:
    """Make the data of the tasks: prompt, split, index and name."""
    size = environment.size(split)
    last = count if size is None else min(count, size)
    rows = [row_of(posed(environment.task(split, index)), split, index) for index in range(last)]
    return [{"prompt": row["prompt"], "split": split, "index": row["index"], "name": row["task_id"]} for row in rows]


class Rewards:
    """The reward of a single-turn environment."""

    def __init__(self, environment: Environment, *, workers: int = 8, deadline_s: float = 600.0) -> None:
        self.environment = environment
        self.scorer = Scorer(environment, workers=workers, deadline_s=deadline_s)

    async def of(self, split: str, index: int, messages: Sequence[Any]) -> float:
        """Return the score of the last of these messages of verifiers; VerifierError if it could not be verified."""
        task = task_of(self.environment, {"split": split, "index": index})
        said = [_plain(message) for message in messages]
        verdict = (await asyncio.to_thread(self.scorer.verdicts, [task], [last_said(said)]))[0]
        if verdict.score is None:
            raise VerifierError(f"no score (fault: {verdict.fault.value}): {verdict.reason}")
        return verdict.score


def _plain(message: Any) -> Any:
    return message if isinstance(message, dict) else message.model_dump()
