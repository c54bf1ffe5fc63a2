"""A `StopIteration` of somebody's function must not leave an awaiting verification without an end: a future cannot hold it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rlvr import Task, Verdict, Verifier, make_verifier
from rlvr.mdp.verifier_executor import DaemonThreadExecutor

TASK = Task("The capital of France?", "Paris", id="t")


class Ends(Verifier):
    """Raises `StopIteration`, as `next` of an empty iterator does."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return next(iter(()))


class Awaits(Ends):
    """Awaits a verifier that raises."""

    async def averify(self, task: Task, answer: str) -> Verdict:
        return await Ends().averify(task, answer)


def test_judge_function() -> None:
    def judge(prompt: str) -> Any:
        return next(iter(())) if "odd" in prompt else "no verdict"

    began = time.monotonic()
    with make_verifier("llm_judge", model=judge, retries=0, timeout_s=5) as verifier:
        verdict = verifier.verify(TASK, "odd")
    assert verdict.score == 0 and time.monotonic() - began < 5


def test_averify() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(Ends().averify(TASK, "Rome"), 5))


def test_thread_of_the_executor() -> None:
    executor = DaemonThreadExecutor(1)
    try:
        with pytest.raises(RuntimeError, match="StopIteration"):
            executor.submit(Awaits().averify, TASK, "Rome").result(5)
    finally:
        executor.close()
