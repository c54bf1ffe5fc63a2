"""Plain Python functions as verifiers: `verify(answer, reference)`, TRL's reward functions over a batch, verl's `compute_score`.

Which arguments a function wants is recognized by their names; see `adapt_reward_function`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.contracts.plugin import Plugin
from rlvr.errors import ConfigError

ANSWER_ARGUMENTS = (
    *("completions", "completion", "response", "solution_str", "prediction", "completion_text", "pred", "y_pred", "actual_output"),
)
"""Names that are the policy's answer, whatever the others are: then `answer` is a column of the data, the reference."""
FIRST_ANSWER_ARGUMENTS = ("answer", "output", "text")
"""Names that may be the answer or the reference: the answer is the first of them, as in f(answer, reference)."""
REFERENCE_ARGUMENTS = (
    *("reference", "ground_truth", "gold", "target", "solution", "solutions", "expected", "label", "y_true", "expected_output"),
    *("expected_answer", "correct_answer", "gold_answer", "reference_answer", "answer", "answers"),
)
QUESTION_ARGUMENTS = ("prompts", "prompt", "question", "problem")
VERL_ARGUMENTS: Mapping[str, Any] = {"data_source": "rlvr", "extra_info": None}
"""Arguments of verl's `compute_score` that a reward function may want, where the data has no such column."""

MESSAGE_ARGUMENTS = ("completion", "completions")
"""Arguments that are a list of messages in chats of TRL and verifiers: a function that takes a text for messages is called with messages."""

RewardCall = Callable[[str, Any, str, Mapping[str, Any]], Any]
"""Call a reward function for one answer: (answer, reference, question, meta) -> whatever the function returns for it. The call of a
coroutine function returns a coroutine.
"""


@dataclass(frozen=True, slots=True)
class RewardSignature:
    """Which arguments a reward function takes, and what each of them is."""

    names: tuple[str, ...]
    answer: str
    reference: str
    """The argument that gets the reference; "": the function needs none."""
    is_batched: bool
    """Whether it is called as TRL does, with lists."""
    takes_columns: bool
    """Whether it takes any further keywords, which are columns of the data."""

    @classmethod
    def read(cls, function: Any) -> RewardSignature:
        """Read the arguments of a function; raise ConfigError if it cannot be a reward function.

        >>> RewardSignature.read(lambda completions, **columns: [1.0]).reference
        ''
        """
        if not callable(function) or isinstance(function, Plugin):
            raise ConfigError(f"a reward function is a {type(function).__name__}; give a function such as f(answer, reference) -> float")
        try:
            known = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the arguments of {function!r:.80} cannot be read; wrap it in a Python function f(answer, reference)"
            ) from error
        names = [name for name, p in known.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        is_batched = "completions" in names
        others = (*REFERENCE_ARGUMENTS, *QUESTION_ARGUMENTS, *VERL_ARGUMENTS)
        by_name = [name for name in ANSWER_ARGUMENTS if name in names] or [name for name in names if name in FIRST_ANSWER_ARGUMENTS]
        answer = next(iter([*by_name, *(name for name in names if name not in others), *names]), "")
        if not answer:
            raise ConfigError(
                f"{getattr(function, '__name__', function)!s} takes no named argument; write it as f(answer, reference) -> float"
            )
        reference = next((name for name in REFERENCE_ARGUMENTS if name in names and name != answer), "")
        if not reference and not is_batched:
            rest = [name for name in names if name not in (answer, *QUESTION_ARGUMENTS, *VERL_ARGUMENTS)]
            reference = rest[0] if rest else ""
        takes_columns = any(p.kind is p.VAR_KEYWORD for p in known.values())
        return cls(tuple(names), answer, reference, is_batched, takes_columns)

    def list_columns(self) -> tuple[str, ...]:
        """List the columns of the data that the function takes; "*": all of them.

        >>> RewardSignature.read(lambda completions, answer, level: [1.0]).list_columns()
        ('level',)
        """
        known = (self.answer, self.reference, *QUESTION_ARGUMENTS)
        return ("*",) if self.is_batched and self.takes_columns else tuple(name for name in self.names if name not in known)


def adapt_reward_function(function: Any) -> RewardCall:
    """Return a call that scores one answer with a plain function, whose arguments are recognized by their names.

    A function with an argument `completions` is called as TRL does, with lists of one element; its other arguments are columns of the data,
    found in the task's meta. Any other function gets the answer and the reference.

    >>> adapt_reward_function(lambda answer, reference: answer == reference)("4", "4", "2+2=", {})
    True
    >>> adapt_reward_function(lambda prompts, completions, **columns: [len(text) for text in completions])("four", "4", "2+2=", {})
    4
    """
    known = RewardSignature.read(function)
    names, answer, reference = known.names, known.answer, known.reference

    def call(text: str, expected: Any, question: str, meta: Mapping[str, Any]) -> Any:
        given: dict[str, Any] = {name: value for name, value in meta.items() if name in names or (known.is_batched and known.takes_columns)}
        given |= {answer: text, **{name: meta.get(name, value) for name, value in VERL_ARGUMENTS.items() if name in names}}
        given |= {name: question for name in QUESTION_ARGUMENTS if name in names}
        if reference:
            given[reference] = expected
        elif known.takes_columns:
            given |= {name: expected for name in REFERENCE_ARGUMENTS if name != answer}
        try:
            return call_with(given, meta)
        except TypeError as error:
            if "string indices must be integers" not in str(error) or answer not in MESSAGE_ARGUMENTS:
                raise
            return call_with(given | {answer: [{"role": "assistant", "content": text}]}, meta)

    def call_with(given: Mapping[str, Any], columns: Mapping[str, Any]) -> Any:
        if not known.is_batched:
            return function(**given)
        lists = {name: value if name in VERL_ARGUMENTS and name not in columns else [value] for name, value in given.items()}
        returned = function(**lists)
        return _await_only_reward(returned) if inspect.isawaitable(returned) else _get_only_reward(returned)

    return call


def _get_only_reward(returned: Any) -> Any:
    """Return the reward in what a function over a batch returned for one completion."""
    if not isinstance(returned, list | tuple) or not returned:
        return returned
    reward, *more = returned
    if more and isinstance(returned, list):  # a tuple is a reward with details
        raise ValueError(f"it returned {len(returned)} rewards for 1 completion; it must return a list with one for each")
    return reward


async def _await_only_reward(returned: Awaitable[Any]) -> Any:
    return _get_only_reward(await returned)
