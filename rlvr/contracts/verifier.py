"""The verifier contract: score an answer, and declare examples for the conformance checks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

from rlvr.contracts.explanation import Explanation, explain_verdict
from rlvr.contracts.plugin import Plugin, is_default_implementation, mark_default_implementation, read_signature
from rlvr.contracts.session import Transcript
from rlvr.errors import ConfigError, describe_exception
from rlvr.hints import REFERENCE_COLUMNS, SOLUTION_COLUMNS
from rlvr.synonyms import REFERENCE_WORDS
from rlvr.task import Message, Task, Verdict
from rlvr.turns import extract_final_text


def call_for_future(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function whose outcome goes to an asyncio future. That cannot hold a `StopIteration`, and who waits would wait for ever."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"the function raised {describe_exception(error)}") from error


async def run_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Await a blocking function, in a thread of the event loop."""
    return await asyncio.to_thread(call_for_future, function, *arguments)


RunInThread = Callable[..., Awaitable[Any]]
THREAD_RUNNER: ContextVar[RunInThread] = ContextVar("THREAD_RUNNER", default=run_in_thread)
"""Runs a blocking function in a thread and awaits it. An executor of verifications sets it, so that its own threads are used."""


@dataclass(frozen=True, slots=True)
class VerifierExample:
    """Test cases for a verifier: for one reference, answers that must get the full score and answers that must get the lowest.

    >>> VerifierExample(reference="95", correct=("95", "95.0"), incorrect=("59", "95 or 96")).correct[0]
    '95'
    """

    reference: Any
    correct: tuple[str, ...]
    incorrect: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The task's `meta`, for verifiers that read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierTraits:
    """How a verifier is best called.

    >>> VerifierTraits(is_async=True).takes_transcript
    False
    """

    is_async: bool = False
    """True if the verdict comes from elsewhere and is awaited with `averify`: no thread waits for it."""
    takes_transcript: bool = False
    """True if it reads more of a conversation than the answer."""
    has_batch_method: bool = False
    """True if `verify_many` is faster than a loop."""


class Verifier(Plugin, ABC):
    """Scores one answer. Deterministic (given a sandbox, if it uses one) and thread-safe.

    `verify` receives the whole text of the policy and extracts the answer with the declared extractor. It never raises because of the
    content of a text (only if the answer is not a string). For a task that it cannot verify it returns a verdict with fault `task`.
    """

    _synonyms = {"score": "score_answer"}
    _hints = {
        "verify_batch": "write .verify_many(tasks, answers), or rlvr.verify_many(verifier, answers, references)",
        **dict.fromkeys(
            ("add_reward_func", "add_metric"), "verifiers are joined when they are made: rlvr.make_verifier([verifier, function])"
        ),
        **dict.fromkeys(("check", "grade", "judge"), "write rlvr.verify(verifier, answer, reference).score"),
    }
    version: ClassVar[str] = "1"
    """Increase it whenever a verdict may change. It is part of every cache key and recorded with every run."""
    examples: ClassVar[Sequence[VerifierExample]] = ()
    """Cases that `check_verifier` runs with the default settings; at least one, with a correct and an incorrect answer."""
    needs_reference: bool = True
    """True if every task needs a reference. False for verifiers that check only the form of an answer."""
    has_bounded_score: bool = True
    """True if every score lies between 0 and 1; a score beyond that is then a fault of the verifier. False for a plain reward."""
    columns: Sequence[str] = ()
    """Columns of data that it reads from `task.meta`; "*": all of them."""
    instruction: str = ""
    """An instruction about the answer format, appended to questions by environments whose questions come from data."""

    @cached_property
    def traits(self) -> VerifierTraits:
        """How this verifier is best called, by default derived from the methods that it defines; a verifier that combines others sets
        it in its constructor.
        """
        takes_transcript = not is_default_implementation(self.verify_transcript)
        return VerifierTraits(
            is_async=not takes_transcript and not is_default_implementation(self.averify),
            takes_transcript=takes_transcript,
            has_batch_method=not is_default_implementation(self.verify_many),
        )

    @abstractmethod
    def verify(self, task: Task, answer: str) -> Verdict:
        """Score `answer` against `task.reference`."""

    def score_answer(self, answer: Any = None, reference: Any = None, **columns: Any) -> float | None:
        """Return the score of an answer alone, of what `verifier(answer, reference)` says of it."""
        verdict: Verdict = self(answer, reference, **columns)
        return verdict.score

    @overload
    def __call__(self, answer: str, reference: Any = None, *, prompt: str | Sequence[Message] = "?", **meta: Any) -> Verdict: ...
    @overload
    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, **meta: Any) -> Verdict: ...
    def __call__(self, answer: Any = None, reference: Any = None, *, prompt: str | Sequence[Message] = "?", **meta: Any) -> Any:
        """Score one answer by hand: the short form of `verify(Task(prompt, reference, meta=meta), answer)`.

        With `completions`, a list of texts or of lists of messages, it is a reward function as TRL calls it: `prompts`, the references and
        further columns are lists too, and it returns a list of scores; None for what could not be verified.

        Args:
            answer: the completion of the policy, with the answer in it; beside `completion`, the right answer.
            reference: the right answer; or one of its names in other libraries, such as target, solution and tests.
            prompt: the question, for verifiers that read it.
            meta: further columns of the task, for verifiers that read them.

        >>> import rlvr
        >>> rlvr.make_verifier("numeric", tolerance=0.001)("it is 0.333", "1/3").score
        1.0
        """
        if isinstance(completions := meta.get("completions"), Sequence) and not isinstance(completions, str):
            given = {"answer": answer, "reference": reference, **meta}
            return self._score_batch(completions, {name: column for name, column in given.items() if isinstance(column, Sequence)})
        columns = {*meta} if "*" in self.columns else {*self.columns}
        if "completion" in meta and answer is not None and reference is None:
            answer, reference = meta.pop("completion"), answer
        if reference is None and (word := next((name for name in REFERENCE_WORDS if name in meta), "")):
            reference = meta[word] if word in columns else meta.pop(word)
        if answer is None and "completion" in meta:
            answer = meta.pop("completion")
        settings = {"timeout", "timeout_s", *read_signature(type(self)).parameters}
        if lost := [name for name in meta if name in settings and name not in columns]:
            raise ConfigError(
                f"{lost[0]} is no column of a task; a setting is given when the verifier is made: rlvr.make_verifier(name, {lost[0]}=...)"
            )
        if isinstance(answer, Task):
            raise ConfigError("a verifier is called with the answer, then the reference; with a Task write verifier.verify(task, answer)")
        if answer is None or "completions" in meta or "responses" in meta:
            raise ConfigError(
                "a verifier is called with one answer, which is what the policy wrote, and its reference: verifier('it is 4', '4').score; "
                "for lists write rlvr.verify_many(verifier, answers=[...], references=[...]), or as TRL does "
                "verifier(completions=[...], answer=[...])"
            )
        return self.verify(Task(prompt, reference, meta=meta), answer)

    def _score_batch(self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> list[float | None]:
        """Score a batch of completions as TRL gives it, with columns of the same length."""
        columns = {name: column for name, column in columns.items() if len(column) == len(completions) and not isinstance(column, str)}
        names = [name for name in (*REFERENCE_COLUMNS, *SOLUTION_COLUMNS) if name in columns]
        if not names and self.needs_reference:
            raise ConfigError(
                f"{type(self).__name__} needs the right answers, a list of {len(completions)}, such as answer=[...] or reference=[...]; "
                f"it got {', '.join(sorted(columns))}"
            )
        import rlvr

        own = {"prompts", "completions", *names[:1]}  # what is not a further column of the task
        verdicts = rlvr.verify_many(
            self,
            answers=[extract_final_text(completion) for completion in completions],
            references=columns[names[0]] if names else [None] * len(completions),
            prompts=columns.get("prompts"),
            columns={name: column for name, column in columns.items() if name not in own},
        )
        return [verdict.score for verdict in verdicts]

    if not TYPE_CHECKING:  # a type checker takes it for the name of the class

        @property
        def __name__(self) -> str:
            """The name under which TRL logs the scores of this reward function."""
            return getattr(self, "name", "") or type(self).__name__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} verifier>"

    def explain(self, answer: Any = None, reference: Any = None, *, prompt: str | Sequence[Message] = "?", **meta: Any) -> Explanation:
        """Verify an answer and explain the verdict: the steps, and the function that decided. Slow: for looking at one answer.

        Args:
            answer: the completion of the policy; or the task, and then the completion.
            reference: the right answer; after a task the completion.
            prompt: the question, for verifiers that read it.
            meta: further columns of the task, for verifiers that read them.

        >>> import rlvr
        >>> rlvr.make_verifier("numeric").explain("it is 7", "7").rule
        'Numeric.verify'
        """
        if isinstance(answer, Task):
            return self.explain_task(answer, reference)
        return self.explain_task(Task(prompt, reference, meta=meta), answer)

    @property
    def explained_functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        """Functions whose results are steps of an explanation, after the names of the steps: (("parsed", parse_number),)."""
        return ()

    def explain_task(self, task: Task, answer: str) -> Explanation:
        """Explain a verdict: the default follows `extract_answer` and `explained_functions`."""
        from rlvr.extraction import extract_answer  # only here: it makes large tables

        watched = (("extracted", extract_answer), *self.explained_functions)
        return explain_verdict(lambda: self.verify(task, answer), watched, module=type(self).__module__)

    @mark_default_implementation
    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Score many answers, in their order. Override it if a batch, or concurrent requests, are faster than a loop."""
        return [self.verify(task, answer) for task, answer in zip(tasks, answers, strict=True)]

    @mark_default_implementation
    async def averify(self, task: Task, answer: str) -> Verdict:
        """Score an answer without blocking an event loop. The default runs `verify` in a thread; override it to await a verdict instead."""
        verdict: Verdict = await THREAD_RUNNER.get()(self.verify, task, answer)
        return verdict

    @mark_default_implementation
    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Score a whole conversation. The default scores its answer; override it to use the artifacts or the turns."""
        return self.verify(task, transcript.answer)

    async def averify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Score a whole conversation without blocking an event loop. A verifier that is made of others overrides it to await theirs."""
        if self.traits.is_async:
            return await self.averify(task, transcript.answer)
        verdict: Verdict = await THREAD_RUNNER.get()(self.verify_transcript, task, transcript)
        return verdict
