"""The verifier contract: judge one answer, and give examples for its checks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from rlvr.contracts.plugin import Plugin
from rlvr.contracts.session import Transcript
from rlvr.errors import TextOnly
from rlvr.task import Task, Verdict

Begun = Verdict | Callable[[], Coroutine[Any, Any, Verdict]]
"""A verdict, or a function that waits for it without holding a thread."""


@dataclass(frozen=True, slots=True)
class Example:
    """Test cases for a verifier: for one reference, answers that must get the full score and answers that must get the lowest.

    >>> Example(reference="95", right=("95", "95.0"), wrong=("59", "95 or 96")).right[0]
    '95'
    """

    reference: Any
    right: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The task's `meta`, for verifiers that read it."""


class Verifier(TextOnly, Plugin, ABC):
    """Judges one answer. Deterministic (given a sandbox, if it uses one); callable from any thread.

    `verify` gets the whole text of the policy and finds the answer in it by the declared channel. It never raises
    because of what a text contains (only if the answer is not a string); for a task it cannot judge it returns a verdict
    with fault `task`.
    """

    version: ClassVar[str] = "1"
    """Increased whenever a verdict may change; part of every cache key and recorded with every run."""
    examples: ClassVar[Sequence[Example]] = ()
    """Cases that `check_verifier` runs with the default settings; at least one, with a right and a wrong answer."""
    needs_reference: bool = True
    """Whether a task without a reference cannot be judged. False for verifiers that judge the form of an answer alone."""
    instruction: str = ""
    """What a question should say about the form of the answer, for environments whose questions come from data."""

    @abstractmethod
    def verify(self, task: Task, answer: str) -> Verdict:
        """Judge `answer` against `task.reference`."""

    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Judge many answers, in their order. Override it where a batch, or many requests at once, is faster than one after the other."""
        return [self.verify(task, answer) for task, answer in zip(tasks, answers, strict=True)]

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Judge without blocking an event loop. The default runs `begin` in a thread; override it where waiting needs none."""
        return await _ended(await asyncio.to_thread(self.begin, task, Transcript(answer)))

    def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """Judge a whole conversation. The default judges its answer; override it to look at the evidence or at the turns."""
        return self.verify(task, transcript.answer)

    def begin(self, task: Task, transcript: Transcript) -> Begun:
        """Judge as far as no waiting is needed. A verifier made of others overrides it, so that none of them waits in a thread."""
        if type(self).averify is not Verifier.averify and type(self).judge is Verifier.judge:
            return partial(self.averify, task, transcript.answer)
        return self.judge(task, transcript)


def together(begun: Sequence[Begun], finish: Callable[[Sequence[Verdict]], Verdict]) -> Begun:
    """What `finish` makes of several verdicts: at once if all of them are there, else once they are.

    >>> together([Verdict(1.0, "equal")], lambda verdicts: verdicts[0]).score
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
