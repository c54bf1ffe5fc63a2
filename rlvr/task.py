"""The records of a question and its verification: `Task` and `Verdict`.

Both are frozen dataclasses that any layer may use; neither depends on tokens, models or sandboxes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NoReturn, NotRequired, TypedDict

from rlvr.hints import Hinted, add_usage_to_constructor_errors, add_usage_to_errors
from rlvr.synonyms import accept_synonyms, accept_synonyms_in_constructor

EMPTY_MAPPING: Mapping[str, Any] = MappingProxyType({})
MAX_REWARD = 1e15
"""The largest reward, in either direction: the square of a larger one does not fit beside others into a float32."""


class Message(TypedDict):
    """One message of a conversation.

    >>> Message(role="user", content="What is 2 + 2?")
    {'role': 'user', 'content': 'What is 2 + 2?'}
    """

    role: str
    content: str
    name: NotRequired[str]
    """For role `tool`: the name of the tool."""
    tool_call_id: NotRequired[str]
    """For role `tool`: the id of the call."""


@dataclass(frozen=True, slots=True, init=False)
class Task(Hinted):
    """A question whose answer can be checked; a pure function of (environment, split, index).

    >>> Task("2+2=", reference="4").prompt
    ({'role': 'user', 'content': '2+2='},)
    """

    _synonyms = {
        **dict.fromkeys(("answer", "target", "label", "gold", "ground_truth"), "reference"),
        "input": "question",
        "messages": "prompt",
        **dict.fromkeys(("metadata", "extra_info"), "meta"),
    }
    prompt: tuple[Message, ...]
    """The messages that the policy answers. A plain text is one user message."""
    reference: Any = None
    """The reference for the verifier. Never shown to the policy."""
    id: str = ""
    """The name of the task, unique in its environment. Left out: a digest of prompt and reference."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Further data for the environment or the verifier, such as the level or the source."""

    @accept_synonyms
    @add_usage_to_errors
    def __init__(self, prompt: str | Sequence[Message], reference: Any = None, id: str = "", meta: Mapping[str, Any] | None = None) -> None:
        prompt = make_user_prompt(prompt) if isinstance(prompt, str) else tuple(prompt)
        for name, value in (
            ("prompt", prompt),
            ("reference", reference),
            ("id", id or _digest_task(prompt, reference)),
            ("meta", {} if meta is None else meta),
        ):
            object.__setattr__(self, name, value)
        said = [set(message) == {"role", "content"} and isinstance(message["content"], str) for message in self.prompt]
        if not (self.id and isinstance(self.id, str) and said and all(said)):
            raise self._build_error(said)

    def _build_error(self, said: Sequence[bool]) -> ValueError:
        if not self.id or not isinstance(self.id, str):
            return ValueError(f"a task needs a non-empty id, got {self.id!r}")
        if not said:
            return ValueError(f"task {self.id!r} has no prompt: at least one message is needed")
        return ValueError(f"task {self.id!r}: a message is {{'role', 'content'}} with text, got {self.prompt[said.index(False)]!r}")

    @property
    def question(self) -> str:
        """The text of the last message, which usually is the question itself."""
        return self.prompt[-1]["content"]


def _digest_task(prompt: Sequence[Message], reference: Any) -> str:
    text = json.dumps([prompt, reference], sort_keys=True, default=str)
    return f"task-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


class Fault(StrEnum):
    """The cause of a problem during verification."""

    NONE = "none"
    """No problem: the score is valid."""
    ANSWER = "answer"
    """The answer made verification fail (its program crashed or exceeded a limit): it is wrong, score 0."""
    TASK = "task"
    """The task cannot be verified (for example, its reference does not parse): no answer to it gets a score."""
    INFRA = "infra"
    """The infrastructure failed (a dead sandbox, a full disk, a verifier that did not return in time): no score; `--retry` samples again."""


@dataclass(frozen=True, slots=True)
class StepReward:
    """A part of a score and its position: the end of a turn, or a number of characters into it.

    >>> StepReward(0.25, turn=0), StepReward(0.75, characters=12).turn
    (StepReward(amount=0.25, turn=0, characters=None), -1)
    """

    amount: float
    """May be negative, for a step that loses an earlier reward."""
    turn: int = -1
    """The index of the policy's turn, as in a Python list; -1 is the last one."""
    characters: int | None = None
    """The number of characters of the turn after which the amount is paid. None: at the end of the turn."""

    def __post_init__(self) -> None:
        whole = (self.turn, 0 if self.characters is None else self.characters)
        check_payable(self.amount, "the amount of a step reward")
        if any(isinstance(n, bool) or not isinstance(n, int) for n in whole) or whole[1] < 0:
            raise ValueError(f"turn {self.turn!r} and characters {self.characters!r} of {self!r} must be whole numbers, characters from 0")


EXTRACTED_HINT = (
    "what was extracted from the answer is shown by verifier.explain(task, answer).steps, or by `rlvr verify NAME --explain`; "
    "rlvr.extraction.extract_answer(answer, 'auto').text extracts it alone"
)


@accept_synonyms_in_constructor
@add_usage_to_constructor_errors
@dataclass(frozen=True, slots=True)
class Verdict(Hinted):
    """The result of verifying one answer; its score is None if the answer could not be verified.

    A score of None is never turned into 0. The verifiers of this library score from 0 to 1. A reward function of yours may give any number
    from -1e15 to 1e15. An answer that makes verification fail (fault `answer`) gets 0, or with plain rewards what an empty or a harmless
    answer gets, if that is less.

    >>> Verdict(1.0, "12 equals 12").passed
    True
    >>> Verdict(None, "the engine does not answer", fault=Fault.INFRA).is_scored
    False
    """

    _synonyms = {
        **dict.fromkeys(("reward", "value"), "score"),
        **dict.fromkeys(("correct", "is_correct", "success"), "passed"),
        **dict.fromkeys(("details", "metadata"), "detail"),
        **dict.fromkeys(("explanation", "message", "rationale", "feedback"), "reason"),
    }
    _hints = {
        "ok": "write .passed",
        "info": "write .detail",
        "error": "write .fault, and .reason",
        **dict.fromkeys(("answer", "extracted", "extracted_answer", "prediction", "parsed"), EXTRACTED_HINT),
    }
    score: float | None
    """1 for a right answer, 0 for a wrong one; None: not verified."""
    reason: str = ""
    components: Mapping[str, float] = field(default_factory=dict)
    """Named partial scores, for display and for reward weights."""
    fault: Fault = Fault.NONE
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Details as plain JSON: parsed forms, results of each test, comparison rules used."""
    step_rewards: Sequence[StepReward] = ()
    """Step rewards, if the score is not paid at the end. Their amounts must add up to the score."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fault", Fault(self.fault))
        if self.score is not None:
            object.__setattr__(self, "score", check_payable(self.score, "score"))
        is_unpaid = self.score is not None and self.score <= 0
        possible = {Fault.NONE: self.score is not None, Fault.ANSWER: is_unpaid}.get(self.fault, self.score is None)
        if not possible or not isinstance(self.reason, str):
            raise self._build_error()
        if not (isinstance(self.components, Mapping) and isinstance(self.detail, Mapping) and isinstance(self.step_rewards, list | tuple)):
            self._fill_parts()
        if self.components or self.step_rewards:
            self._check_components()

    def _build_error(self) -> ValueError:
        if not isinstance(self.reason, str):
            return ValueError(f"the reason is {self.reason!r:.80}; it must be a string")
        if self.score is not None and self.fault is Fault.ANSWER:
            return ValueError(f"with fault 'answer' the score is 0 or less, not {self.score}")
        return ValueError(f"score {self.score!r} with fault {self.fault.value!r}: a score is None exactly when the task or infra failed")

    def _fill_parts(self) -> None:
        """Replace a part that is None by an empty one; raise ValueError for a part of a wrong type."""
        for name, empty in (("components", {}), ("detail", {}), ("step_rewards", ())):
            if (value := getattr(self, name)) is None:
                object.__setattr__(self, name, empty)
            elif not isinstance(value, (list | tuple) if name == "step_rewards" else Mapping):
                kind = "a list of StepReward" if name == "step_rewards" else "a mapping"
                raise ValueError(f"{name} is {value!r:.80}; it must be {kind}")

    def _check_components(self) -> None:
        object.__setattr__(
            self, "components", {str(name): check_payable(value, f"component {name!r}") for name, value in self.components.items()}
        )
        object.__setattr__(self, "step_rewards", tuple(e if isinstance(e, StepReward) else StepReward(**e) for e in self.step_rewards))
        total = math.fsum(e.amount for e in self.step_rewards)
        if self.step_rewards and (self.score is None or abs(total - self.score) > 1e-6):
            raise ValueError(f"the step rewards add up to {total:g}, and the score is {self.score}; they must be equal")

    @property
    def is_scored(self) -> bool:
        """Whether the verdict has a score."""
        return self.score is not None

    @property
    def passed(self) -> bool:
        """Whether the score is the full score: 1 or more."""
        return self.score is not None and self.score >= 1.0

    def __float__(self) -> float:
        """Return the score; raise TypeError if there is none."""
        if self.score is None:
            raise TypeError(f"this verdict has no score: {self.reason}")
        return self.score

    def __bool__(self) -> NoReturn:
        """Raise an error: `if verdict:` would hold for a wrong answer, or would take an unscored one for a wrong one."""
        raise TypeError(
            f"a verdict is neither true nor false, and this one has the score {self.score}; write verdict.passed, or compare verdict.score"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain JSON, for logs and the command line."""
        row: dict[str, Any] = {"score": self.score, "reason": self.reason, "fault": self.fault.value}
        row |= ({"components": dict(self.components)} if self.components else {}) | (
            {"detail": to_plain_json(self.detail)} if self.detail else {}
        )
        return row | ({"step_rewards": [asdict(e) for e in self.step_rewards]} if self.step_rewards else {})


MAX_DETAIL_DEPTH = 64
MAX_DETAIL_BITS = 4096
"""The largest integer of a detail; Python writes at most 4,300 decimal digits."""


def to_plain_json(value: Any, max_depth: int = MAX_DETAIL_DEPTH) -> Any:
    """Convert a value to plain JSON types; anything else, including NaN and infinity, becomes a string.

    What is deeper than `max_depth` is left out, and so are the digits of an integer that Python does not write.

    >>> to_plain_json({"ratio": float("nan"), 1: {2}})
    {'ratio': 'nan', '1': '{2}'}
    >>> to_plain_json([[[1]]], max_depth=2)
    [['...']]
    """
    if isinstance(value, Mapping | list | tuple) and max_depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(inner, max_depth - 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_json(inner, max_depth - 1) for inner in value]
    if isinstance(value, int) and value.bit_length() > MAX_DETAIL_BITS:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def is_payable(value: object) -> bool:
    """Return whether a value can be a reward: a number, and not so large that means and squares of rewards lose all others.

    >>> is_payable(-2.5), is_payable(float("nan")), is_payable(1e300), is_payable(10**5000), is_payable(True)
    (True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_REWARD <= value <= MAX_REWARD


def check_payable(value: Any, name: str) -> float:
    """Return a reward as a float; raise ValueError if the value cannot be one."""
    if not is_payable(value):
        shown = f"a number of {value.bit_length()} bits" if type(value) is int else f"{value!r:.80}"  # Python refuses to write 5,000 digits
        raise ValueError(f"{name} is {shown}; it must be a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}")
    return float(value)


def make_user_prompt(text: str, *, system: str = "") -> tuple[Message, ...]:
    """Build a prompt of one user message, after a system message if one is given.

    >>> make_user_prompt("2+2=")
    ({'role': 'user', 'content': '2+2='},)
    """
    head: Sequence[Message] = ({"role": "system", "content": system},) if system else ()
    return (*head, {"role": "user", "content": text})
