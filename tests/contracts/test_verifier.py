"""A verifier is called by hand like a function, and is nowhere taken for one."""

from __future__ import annotations

from typing import Any

import pytest

import rlvr
from rlvr.contracts.reward_function import adapt_reward_function
from rlvr.errors import AnswerTypeError, ConfigError
from rlvr.registry.plugins import build, build_from_config
from rlvr.task import Fault, Task, Verdict


class Asks(rlvr.Verifier):
    """Says what it was asked."""

    needs_reference = False

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(1.0, f"{task.question} {task.reference} {dict(task.meta)} {answer}")


def test_a_call_is_the_short_form_of_verify() -> None:
    numeric = rlvr.make_verifier("numeric", tolerance=1e-3)
    assert numeric("it is 0.333", "0.3333").score == 1.0 and numeric("it is 0.3", "0.3333").score == 0.0
    assert numeric("4").fault is Fault.TASK  # without a reference there is nothing to compare with
    assert Asks()("4", "5", prompt="2+2=", level=3).reason == "2+2= 5 {'level': 3} 4"
    chat: list[rlvr.Message] = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2="}]
    assert Asks()("4", prompt=chat).reason == "2+2= None {} 4"
    assert Asks()("4", "5", answer_format="x", reference_text="y").reason.endswith("{'answer_format': 'x', 'reference_text': 'y'} 4")


def test_a_call_with_a_task_names_the_method() -> None:
    with pytest.raises(ConfigError, match=r"write verifier\.verify\(task, answer\)"):
        rlvr.make_verifier("numeric")(Task("2+2=", "4"), "4")  # type: ignore[call-overload]
    with pytest.raises(AnswerTypeError):
        rlvr.make_verifier("numeric")(4, "4")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda v: build("verifier", v, tolerance=1), "the verifier is built already"),
        (lambda v: build_from_config("verifier", {"name": v, "tolerance": 1}), "the verifier is built already"),
        (lambda v: rlvr.make_verifier(v, tolerance=1), "built already"),
        (lambda v: rlvr.make_tool(rlvr.make_tool("calculator"), size=1), "built already"),
        (lambda v: adapt_reward_function(v), "is a Numeric; give a function"),
        (lambda v: rlvr.make_verifier("function", function=v), "is a Numeric; give a function"),
        (lambda v: rlvr.evaluate("arithmetic", v, tasks=1), "the policy is a Numeric"),
    ],
)  # fmt: skip
def test_a_verifier_is_not_taken_for_a_function(use: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        use(rlvr.make_verifier("numeric"))


def test_a_verifier_object_stays_what_it_is() -> None:
    numeric = rlvr.make_verifier("numeric")
    assert rlvr.make_verifier(numeric) is numeric and build_from_config("verifier", numeric) is numeric
    env = rlvr.make_env([{"question": "2+2=", "answer": "4"}], verifier=numeric, holdout=0)
    assert env.verifier is numeric
    assert build("env", "arithmetic", verifier=numeric).verifier is numeric


def test_a_batch_hands_on_only_its_further_columns() -> None:
    seen: list[dict[str, object]] = []

    class Watching(Asks):
        def verify(self, task: Task, answer: str) -> Verdict:
            seen.append(dict(task.meta))
            return Verdict(1.0)

    assert Watching()(prompts=["a"], completions=["4"], answer=["4"], level=[3], trainer_state=None) == [1.0]
    assert seen == [{"level": 3}]


ARGUMENT_ORDERS: list[Any] = [
    lambda y_true, y_pred: (y_pred, y_true),
    lambda expected_output, actual_output: (actual_output, expected_output),
    lambda response, answer: (response, answer),
    lambda answer, prediction: (prediction, answer),
    lambda text, answer: (text, answer),
    lambda answer, output: (answer, output),
    lambda gold, mine: (mine, gold),
    lambda prompt, mine: (mine, "4"),
    lambda solution, answer: (answer, solution),
    lambda answer, solution: (answer, solution),
    lambda a, b: (a, b),
    lambda prompts, completions, answer: [(completions[0], answer[0])],
    lambda data_source, solution_str, ground_truth: (solution_str, ground_truth),
]


@pytest.mark.parametrize("function", ARGUMENT_ORDERS)
def test_the_names_of_arguments_tell_the_answer_from_the_reference(function: Any) -> None:
    """A swap would give wrong scores without a word; an audit reads the names the same way."""
    from rlvr.conformance.audit import worker

    assert adapt_reward_function(function)("5", "4", "2+2=", {}) == ("5", "4")
    seen: list[Any] = []

    def record(*values: Any) -> float:
        seen.append(values)
        return 1.0

    names = ", ".join(function.__code__.co_varnames)
    wrapped = eval(f"lambda {names}: record({names})", {"record": record})
    worker._wrap_reward_function(wrapped)({"answer": "5", "reference": "4", "question": "2+2="})
    adapt_reward_function(wrapped)("5", "4", "2+2=", {})
    assert [value for value in seen[0] if value not in ("audit", "rlvr")] == [value for value in seen[1] if value not in ("audit", "rlvr")]


def test_a_mapping_of_score_and_reason_is_read_and_one_without_a_score_is_said() -> None:
    scored = rlvr.verify(lambda answer, reference: {"score": 1, "reason": "it is the sum"}, answer="4", reference="4")
    assert scored.score == 1.0 and scored.reason.endswith("returned 1: it is the sum")
    wrong = rlvr.verify(lambda answer, reference: {"value": 1}, answer="4", reference="4")
    assert wrong.score is None and wrong.fault is Fault.INFRA and "under `score` or `reward`" in wrong.reason
    none = rlvr.verify(lambda answer, reference: {"score": None}, answer="4", reference="4")
    assert none.score is None and none.fault is Fault.INFRA
