"""A coroutine function is a verifier: its answers are awaited together, and what one of them does reaches no other."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import rlvr

NUM_ANSWERS = 20


class Meeting:
    """A verifier whose answers wait until all have come, so that it ends only if they are awaited together."""

    def __init__(self) -> None:
        self.waiting, self.all_here = 0, asyncio.Event()

    async def __call__(self, answer: str, reference: str) -> bool:
        self.waiting += 1
        if self.waiting == NUM_ANSWERS:
            self.all_here.set()
        await asyncio.wait_for(self.all_here.wait(), 60)
        return answer == reference


def test_answers_are_awaited_together() -> None:
    verdicts = rlvr.verify_many(Meeting(), answers=["4", "5"] * (NUM_ANSWERS // 2), references=["4"] * NUM_ANSWERS)
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0] * (NUM_ANSWERS // 2)


def test_an_evaluation_awaits_them_in_one_loop() -> None:
    loops = set()

    async def score(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        loops.add((id(asyncio.get_running_loop()), threading.get_ident()))
        await asyncio.sleep(0)
        return [1.0 for _ in completions]

    result = rlvr.evaluate("arithmetic", policy="scripted:gold", tasks=10, verifier=score)
    assert result["arithmetic"].mean_score.value == 1.0 and len(loops) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, ValueError, KeyError])
def test_what_it_raises_for_one_answer_reaches_no_other(error: type[BaseException]) -> None:
    async def score(answer: str, reference: str) -> bool:
        await asyncio.sleep(0)
        if answer == "bad":
            raise error
        return answer == reference

    verifier = rlvr.make_verifier(score)
    verdicts = rlvr.verify_many(verifier, answers=["4", "bad", "5", "4"], references=["4"] * 4)
    verifier.close()
    assert [verdict.score for verdict in verdicts] == [1.0, None, 0.0, 1.0] and error.__name__ in verdicts[1].reason


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_a_task_of_it_raises_leaves_the_loop_to_the_others(error: type[BaseException]) -> None:
    async def check(answer: str, reference: str) -> bool:
        await asyncio.sleep(0)
        if answer == "bad":
            raise error
        return answer == reference

    async def score(answer: str, reference: str) -> bool:
        return await asyncio.wait_for(check(answer, reference), 60)

    verifier = rlvr.make_verifier(score)
    verdicts = rlvr.verify_many(verifier, answers=["4", "bad", "5", "4"], references=["4"] * 4)
    assert [verdict.score for verdict in verdicts] == [1.0, None, 0.0, 1.0]
    assert rlvr.verify(verifier, answer="4", reference="4").score == 1.0
    verifier.close()


def test_no_answer_is_asked_twice_because_of_another() -> None:
    asked: list[str] = []

    async def score(answer: str, reference: str) -> bool:
        asked.append(answer)
        return {"4": True, "5": False}[answer]

    verdicts = rlvr.verify_many(score, answers=["4", "5", "6"], references=["4"] * 3)
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0, None] and sorted(asked) == ["4", "5", "6"]


def test_as_many_answers_are_open_as_is_said() -> None:
    num_open, most = 0, 0

    async def score(answer: str, reference: str) -> bool:
        nonlocal num_open, most
        num_open += 1
        most = max(most, num_open)
        await asyncio.sleep(0.01)
        num_open -= 1
        return True

    rlvr.verify_many(rlvr.make_verifier(score, concurrency=3), answers=["4"] * 20, references=["4"] * 20)
    assert most == 3


def test_closing_ends_a_wait_whose_end_waits_too() -> None:
    async def score(answer: str, reference: str) -> bool:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # as a client does that closes its connection
        return True

    verifier = rlvr.make_verifier(score)
    waiting = threading.Thread(target=lambda: rlvr.verify_many(verifier, answers=["4"], references=["4"]), daemon=True)
    waiting.start()
    time.sleep(0.2)
    verifier.close()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_text_without_an_answer_pays_no_more_than_an_empty_one() -> None:
    async def score(answer: str) -> float:
        return -1.0 if not answer else 0.5

    verifier = rlvr.make_verifier(score, extractor="boxed")
    assert [rlvr.verify(verifier, answer=text).score for text in ("no box", r"\boxed{4}")] == [-1.0, 0.5]
    verifier.close()


def test_a_function_that_returns_a_coroutine_is_told_what_to_write() -> None:
    async def score(answer: str, reference: str) -> bool:
        return answer == reference

    verdict = rlvr.verify(lambda answer, reference: score(answer, reference), answer="4", reference="4")
    assert verdict.score is None and "`async def`" in verdict.reason
