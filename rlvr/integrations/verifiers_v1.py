"""Adapter for verifiers (v1): a package with one `Taskset`, for the loop of verifiers and for prime-rl.

    make_task_rows   the data of the tasks
    TasksetRewards   the reward function

The reward raises an error for an answer that could not be verified: the trace is then not `ok`, and its rewards stay None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import VerifierError
from rlvr.integrations.rows import find_task, make_row, warn_if_untested
from rlvr.integrations.texts import FinalTextVerifier
from rlvr.mdp.token_mdp import check_task
from rlvr.turns import extract_final_text

TESTED_VERSION = "0.4.0"
warn_if_untested("verifiers", TESTED_VERSION)


def make_task_rows(environment: Environment, split: str, count: int) -> list[dict[str, Any]]:
    """Make the data of the tasks: prompt, split, index and name."""
    size = environment.num_tasks(split)
    last = count if size is None else min(count, size)
    rows = [make_row(check_task(environment.task(split, index)), split, index) for index in range(last)]
    return [{"prompt": row["prompt"], "split": split, "index": row["index"], "name": row["task_id"]} for row in rows]


class TasksetRewards:
    """Scores answers to the tasks of a single-turn environment, for the reward function of a verifiers `Taskset`."""

    def __init__(self, environment: Environment, *, workers: int = 8, call_timeout_s: float = 600.0) -> None:
        self.environment = environment
        self.scorer = FinalTextVerifier(environment, workers=workers, call_timeout_s=call_timeout_s)

    async def score(self, split: str, index: int, messages: Sequence[Any]) -> float:
        """Return the score of the last of these messages of verifiers; VerifierError if it could not be verified."""
        task = find_task(self.environment, {"split": split, "index": index})
        said = [_to_dict(message) for message in messages]
        verdict = (await asyncio.to_thread(self.scorer.verify_all, [task], [extract_final_text(said)]))[0]
        if verdict.score is None:
            raise VerifierError(f"no score (fault: {verdict.fault.value}): {verdict.reason}")
        return verdict.score


def _to_dict(message: Any) -> Any:
    return message if isinstance(message, dict) else message.model_dump()
