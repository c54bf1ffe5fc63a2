"""The verifier contract: score an answer, and declare examples for the conformance checks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from rlvr.contracts.plugin import Plugin
from rlvr.contracts.session import Transcript
from rlvr.errors import StringAnswerMixin
from rlvr.task import Task, Verdict

Begun = Verdict | Callable[[], Coroutine[Any, Any, Verdict]]
"""A verdict, or an async function that returns it."""


@dataclass(frozen=True, slots=True)
class Example:
    """Test cases for a verifier: for one reference, answers that must get the full score and answers that must get the lowest.

    >>> Example(reference="95", correct=("95", "95.0"), incorrect=("59", "95 or 96")).correct[0]
    '95'
    """

    reference: Any
    correct: tuple[str, ...]
    incorrect: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The task's `meta`, for verifiers that read it."""


class Verifier(StringAnswerMixin, Plugin, ABC):
    """Scores one answer. Deterministic (given a sandbox, if it uses one) and thread-safe.

    `verify` receives the whole text of the policy and extracts the answer with the declared extractor. It never raises because of the
    content of a text (only if the answer is not a string). For a task that it cannot verify it returns a verdict with fault `task`.
    """

    version: ClassVar[str] = "1"
    """Increase it whenever a verdict may change. It is part of every cache key and recorded with every run."""
    examples: ClassVar[Sequence[Example]] = ()
    """Cases that `check_verifier` runs with the default settings; at least one, with a correct and an incorrect answer."""
    needs_reference: bool = True
    """True if every task needs a reference. False for verifiers that check only the form of an answer."""
    instruction: str = ""
    """An instruction about the answer format, appended to questions by environments whose questions come from data."""

    @abstractmethod
    def verify(self, task: Task, answer: str) -> Verdict:
        """Score `answer` against `task.reference`."""

    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Score many answers, in their order. Override it if a batch, or concurrent requests, are faster than a loop."""
        return [self.verify(task, answer) for task, answer in zip(tasks, answers, strict=True)]

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Score an answer without blocking an event loop. The default runs in a thread; override it for asynchronous verifiers."""
        return await _ended(await asyncio.to_thread(self.begin, task, Transcript(answer)))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Score a whole conversation. The default scores its answer; override it to use the artifacts or the turns."""
        return self.verify(task, transcript.answer)

    def begin(self, task: Task, transcript: Transcript) -> Begun:
        """Start verification; return the verdict, or a function that awaits it. Composite verifiers override it."""
        if type(self).averify is not Verifier.averify and type(self).verify_transcript is Verifier.verify_transcript:
            return partial(self.averify, task, transcript.answer)
        return self.verify_transcript(task, transcript)


def together(begun: Sequence[Begun], finish: Callable[[Sequence[Verdict]], Verdict]) -> Begun:
    """Combine several verdicts with `finish`: immediately if all are available, otherwise when the last one is.

    >>> together([Verdict(1.0, "equal")], lambda verify_all: verify_all[0]).compute_logprobs
    1.0
    """
    known = [one for one in begun if isinstance(one, Verdict)]
    if len(known) == len(begun):
        return finish(known)

    async def waited() -> Verdict:
        return finish(await asyncio.gather(*map(_ended, begun)))

    return waited


async def _ended(begun: Begun) -> Verdict:
    return begun if isinstance(begun, Verdict) else await begun()
