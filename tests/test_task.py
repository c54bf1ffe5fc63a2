"""The laws of Task and Verdict."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rlvr.task import Fault, Task, Verdict, make_user_prompt


def test_a_task_holds_its_prompt_and_its_question() -> None:
    task = Task(make_user_prompt("2+2=", system="Be brief."), "4", id="t/1")
    assert [m["role"] for m in task.prompt] == ["system", "user"] and task.question == "2+2="
    assert isinstance(Task([{"role": "user", "content": "x"}], None, id="t").prompt, tuple)


@pytest.mark.parametrize(
    "args, words",
    [
        ((make_user_prompt("x"), None, 7), "non-empty id"),
        (((),), "no prompt"),
        ((({"role": "user"},),), "a message is"),
        ((({"role": "user", "content": 5},),), "a message is"),
        ((({"role": "user", "content": "x", "name": "y"},),), "a message is"),
    ],
)
def test_a_task_that_cannot_be_is_refused(args: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Task(*args)


def test_a_text_is_one_user_message_and_the_id_is_a_digest_where_none_is_given() -> None:
    task = Task("2+2=", "4")
    assert task.prompt == make_user_prompt("2+2=") and task.id == Task(make_user_prompt("2+2="), reference="4").id != Task("2+2=", "5").id


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("score", [None, 0.0, 0.5, 1.0])
def test_a_score_is_missing_exactly_when_nobody_can_be_judged(score: float | None, fault: Fault) -> None:
    blameless = fault in (Fault.TASK, Fault.INFRA)
    allowed = (score is None) == blameless and not (fault is Fault.ANSWER and score)
    if allowed:
        verdict = Verdict(score, "why", fault=fault)
        assert (verdict.is_scored, verdict.passed) == (not blameless, score == 1.0)
    else:
        with pytest.raises(ValueError):
            Verdict(score, "why", fault=fault)


@pytest.mark.parametrize("bad", [math.nan, math.inf, True, "1", 1 + 0j, [1.0]])
def test_a_score_is_a_finite_number(bad: Any) -> None:
    with pytest.raises(ValueError, match="score is"):
        Verdict(bad, "why")
    with pytest.raises(ValueError, match="component 'x' is"):
        Verdict(1.0, "why", components={"x": bad})


@pytest.mark.parametrize("reason", [None, 7, b"wrong", ("a", "b")])
def test_a_reason_is_a_text(reason: Any) -> None:
    with pytest.raises(ValueError, match=r"the reason is .* it must be a string"):
        Verdict(1.0, reason)


def test_a_whole_number_becomes_a_float_and_a_word_a_fault() -> None:
    verdict = Verdict(1, "why", components={"x": 0}, fault="none")  # type: ignore[arg-type]
    assert type(verdict.score) is float and type(verdict.components["x"]) is float and verdict.fault is Fault.NONE
    with pytest.raises(ValueError):
        Verdict(1.0, "why", fault="nobody")  # type: ignore[arg-type]


def test_the_record_is_plain_json() -> None:
    verdict = Verdict(0.5, "half", components={"place": 0.5}, detail={"n": 2})
    assert json.loads(json.dumps(verdict.to_dict())) == {
        "score": 0.5,
        "reason": "half",
        "fault": "none",
        "components": {"place": 0.5},
        "detail": {"n": 2},
    }
    assert Verdict(None, "down", fault=Fault.INFRA).to_dict() == {"score": None, "reason": "down", "fault": "infra"}


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Verdict(1.0, "why").score = 0.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Task(make_user_prompt("x"), None, id="t").id = "u"  # type: ignore[misc]


def test_a_record_is_plain_json_whatever_a_verifier_notes() -> None:
    detail: Any = {"ratio": math.nan, "worst": -math.inf, 3: [{"a": {1}}, (None, True, 2.5)], "by": Fault.TASK}
    record = Verdict(1.0, "right", detail=detail).to_dict()
    told = json.loads(json.dumps(record, allow_nan=False))["detail"]
    assert told == {"ratio": "nan", "worst": "-inf", "3": [{"a": "{1}"}, [None, True, 2.5]], "by": "task"}


def test_the_name_of_a_component_is_a_text() -> None:
    parts: dict[Any, float] = {0: 1.0, "b": 0.0}
    assert dict(Verdict(0.5, "half", parts).components) == {"0": 1.0, "b": 0.0}


@pytest.mark.parametrize("name", ["components", "detail", "step_rewards"])
def test_a_part_of_a_verdict_that_is_none_is_empty_and_one_of_a_wrong_type_is_refused(name: str) -> None:
    parts: dict[str, Any] = {name: None}
    assert Verdict(1.0, "right", **parts) == Verdict(1.0, "right")
    for value in (0, "", "x", 5):
        parts[name] = value
        with pytest.raises(ValueError, match=f"{name} is {value!r}; it must be a"):
            Verdict(1.0, "right", **parts)
