"""A plain Python function as a verifier: `f(answer, reference)`, or a reward function in TRL's shape."""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from rlvr.contracts import Verifier, VerifierExample, VerifierTraits
from rlvr.contracts.reward_function import RewardSignature, adapt_reward_function
from rlvr.errors import ConfigError, RlvrError, describe_exception, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.mdp.sessions import RAISED, build_unscored_verdict
from rlvr.task import MAX_REWARD, Fault, Task, Verdict
from rlvr.verifiers._endpoint import BackgroundEventLoop


def _match_exactly(answer: str, reference: str | None) -> bool | None:
    """Return whether the answer is the reference, character by character, or None without one: the function of the verifier's own examples."""
    return None if reference is None else answer == reference


class RewardFunctionError(RlvrError):
    """Raised if a function of the user raises; the message says where, and what the function was given."""

    def __init__(self, message: str, *, is_certain: bool = False) -> None:
        super().__init__(message)
        self.is_certain = is_certain
        """Whether the function fails for any text: it takes the answer for messages, or its arguments are others."""


class FunctionVerifier(Verifier):
    """Scores with a function of yours: its return value is the score.

    `f(answer, reference)` returns a number, True or False, None for *not scored*, a number with a reason, or a verdict. A reward function of TRL,
    `f(prompts, completions, **columns) -> list`, works too, and so does a coroutine function: its answers are awaited concurrently, in one
    event loop. An evaluation reports accuracy and pass@k of scores from 0 to 1; other
    numbers are rewards to train with, and are reported as a mean.

    >>> import rlvr
    >>> rlvr.verify(lambda answer, reference: answer == reference, answer="4", reference="4").score
    1.0
    """

    version = "4"  # 4: a number with a reason is a score; 3: f(response, answer) and f(y_true, y_pred) get the answer and the reference the right way round
    examples = (VerifierExample(reference="4", correct=("4",), incorrect=("5", "44")),)

    def __init__(
        self,
        *,
        function: Callable[..., Any] = _match_exactly,
        extractor: str = "whole",
        score_range: tuple[float, float] | None = None,
        concurrency: int = 64,
    ) -> None:
        """Set the function.

        Args:
            function: the function, with arguments named as in TRL (prompts, completions, columns) or f(answer, reference).
            extractor: where the answer is in the completion, one of `rlvr.extraction`; whole: the function gets the whole text.
            score_range: the lowest and the highest value that the function returns, which become the scores 0 and 1; None: the value is
                the score.
            concurrency: how many answers of a coroutine function are awaited at the same time.
        """
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency!r}; it must be a whole number of at least 1")
        extract_answer("", extractor)  # raises now for an unknown extractor, not at the first answer
        low, high = (-math.inf, math.inf) if score_range is None else score_range
        if score_range is not None and not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"score_range is {score_range!r}; it must be two numbers, the lowest and the highest, such as (0, 5)")
        self.function, self.extractor, self.score_range = function, extractor, (float(low), float(high)) if score_range else None
        self.has_bounded_score = score_range is not None
        self.name = getattr(function, "__name__", type(function).__name__)
        self._call = adapt_reward_function(function)
        is_coroutine = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(type(function).__call__)
        self._loop = BackgroundEventLoop() if is_coroutine else None
        self._concurrency, self._places = concurrency, WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()
        self.traits = VerifierTraits(is_async=is_coroutine, has_batch_method=is_coroutine)
        known = RewardSignature.read(function)
        self.needs_reference, self.columns = bool(known.reference), known.list_columns()

    def __repr__(self) -> str:
        return f"<verifier of the function {self.name}>"

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Call the function; what is not a number in the range is no score, with the value in the reason."""
        if self._loop is not None:
            return self._loop.submit(self._averify_answer(task, answer)).result()
        text = answer if self.extractor == "whole" else extract_answer(answer, self.extractor).text
        if text is not None:
            return self._score(task, text)
        try:
            empty = None if self.has_bounded_score else self._score(task, "").score
        except RewardFunctionError:
            empty = None
        return self._build_missing_verdict(empty)

    @require_text_answers
    async def averify(self, task: Task, answer: str) -> Verdict:
        """Await the verdict of a coroutine function; a plain function is called in a thread."""
        if self._loop is None:
            return await super().averify(task, answer)
        return await asyncio.wrap_future(self._loop.submit(self._averify_answer(task, answer)))

    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Score many answers, in their order; those of a coroutine function are awaited concurrently."""
        if self._loop is None:
            return super().verify_many(tasks, answers)
        started = [self._loop.submit(self._averify_safely(task, answer)) for task, answer in zip(tasks, answers, strict=True)]
        return [verdict.result() for verdict in started]

    async def _averify_safely(self, task: Task, answer: str) -> Verdict:
        """Await one answer of many: what the function raises for it is its verdict, so that no other is asked again."""
        try:
            return await self._averify_answer(task, answer)
        except Exception as error:
            return build_unscored_verdict(type(self).__name__, error)

    def close(self) -> None:
        """Stop the event loop of a coroutine function; a wait that goes on is cancelled."""
        if self._loop is not None:
            self._loop.close()

    async def _averify_answer(self, task: Task, answer: str) -> Verdict:
        text = answer if self.extractor == "whole" else extract_answer(answer, self.extractor).text
        if text is not None:
            return await self._ascore(task, text)
        try:
            empty = None if self.has_bounded_score else (await self._ascore(task, "")).score
        except RewardFunctionError:
            empty = None
        return self._build_missing_verdict(empty)

    def _build_missing_verdict(self, empty_score: float | None) -> Verdict:
        """Build the verdict on a text without an answer: where rewards are negative, a 0 would pay for leaving the answer out."""
        return Verdict(min(0.0, empty_score or 0.0), f"no answer was found (extractor {self.extractor})")

    def _score(self, task: Task, text: str) -> Verdict:
        """Call the function on the text of the answer."""
        with self._describe_mistakes():
            returned = self._call(text, task.reference, task.question, task.meta)
        return self._build_verdict(task, returned)

    async def _ascore(self, task: Task, text: str) -> Verdict:
        """Await the function on the text of the answer."""
        with self._describe_mistakes():
            try:
                async with self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._concurrency)):
                    returned = self._call(text, task.reference, task.question, task.meta)
                    returned = await returned if inspect.isawaitable(returned) else returned
            except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:  # none of them comes from outside here
                raise RewardFunctionError(f"the function {self.name} raised {describe_exception(error)}") from error
            except asyncio.CancelledError as error:
                if (waiting := asyncio.current_task()) is not None and waiting.cancelling():
                    raise
                raise RewardFunctionError(f"the function {self.name} raised {describe_exception(error)}") from error
        return self._build_verdict(task, returned)

    @contextmanager
    def _describe_mistakes(self) -> Iterator[None]:
        """Turn the errors of a wrong idea of the arguments into one that says what the function was given."""
        try:
            yield
        except (AttributeError, LookupError, NameError, TypeError) as error:
            raise RewardFunctionError(self._describe_error(error), is_certain=self._is_certain(error)) from error

    def _build_verdict(self, task: Task, returned: Any) -> Verdict:
        """Build the verdict from what the function returned."""
        if isinstance(returned, Verdict):
            return returned
        if inspect.iscoroutine(returned):
            returned.close()
            reason = f"{self.name} returned a coroutine; write the function itself as `async def`, then its result is awaited"
            return Verdict(None, reason, fault=Fault.INFRA, detail={RAISED: "TypeError"})
        why: Any = None
        if (
            isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], str | Mapping | None)
        ):  # as other libraries have it
            returned, why = returned
        value: Any = returned.get("score", returned.get("reward")) if isinstance(returned, Mapping) else returned
        if isinstance(returned, Mapping) and not returned.keys() & {"score", "reward"}:
            reason = f"{self.name} returned {returned!r:.80}; a mapping has the score under `score` or `reward`"
            return Verdict(None, reason, fault=Fault.INFRA, detail={RAISED: "KeyError"})
        if value is None:  # a function that cannot score without a reference says so by None: then the task is what lacks something
            reason = f"{self.name} returned None" + (f": {why}" if isinstance(why, str) and why else "")
            return Verdict(None, reason, fault=Fault.TASK if task.reference is None else Fault.INFRA)
        if not isinstance(value, bool | int | float) and not hasattr(value, "__float__"):
            reason = f"{self.name} returned {value!r:.80}; it must return a number, True, False or None"
            return Verdict(None, reason, fault=Fault.INFRA, detail={RAISED: "TypeError"})
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            reason = (
                f"{self.name} returned {type(value).__name__} that is not a float ({error}); it must return a number, True, False or None"
            )
            return Verdict(None, reason, fault=Fault.INFRA, detail={RAISED: type(error).__name__})
        low, high = self.score_range or (-MAX_REWARD, MAX_REWARD)
        if not low <= number <= high:
            allowed = (
                f"outside of its score_range, {low:g} to {high:g}; widen it, or leave it out"
                if self.score_range
                else f"and a score is a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}"
            )
            return Verdict(
                None, f"{self.name} returned {number:g}, {allowed}", fault=Fault.INFRA, detail={"out_of_range": True, RAISED: "ValueError"}
            )
        score = (number - low) / (high - low) if self.score_range else number
        why = returned.get("reason", why) if isinstance(returned, Mapping) else why
        return Verdict(score, f"{self.name} returned {number:g}" + (f": {why}" if isinstance(why, str) and why else ""))

    def _describe_error(self, error: Exception) -> str:
        """Describe what the function raised, with its own last line, and what its argument for the answer is."""
        where = ""
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code is getattr(inspect.unwrap(self.function), "__code__", None):
                where = f" in line {line} of {Path(frame.f_code.co_filename).name}"
        known = RewardSignature.read(self.function)
        given = f"`{known.answer}` is {'a list of texts' if known.is_batched else 'a text'}: what the policy wrote, without roles"
        given += f"; `{known.reference}` is the reference of the task" if known.reference else ""
        return f"the function {self.name}{where} raised {describe_exception(error)}; {given}"

    def _is_certain(self, error: Exception) -> bool:
        """Whether the function fails for any text."""
        if not isinstance(error, TypeError):
            return False
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        was_called = any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))
        is_wrong_call = "string indices must be integers" in str(error) or str(error).startswith("rlvr.Verdict: ")
        return is_wrong_call or (code is not None and not was_called)


make = FunctionVerifier
