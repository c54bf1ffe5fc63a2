"""Arguments that JSON can write and no record can hold: numbers beyond all floats, and values nested without end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlvr
from rlvr import Verdict
from rlvr.chat.dialects.dialect import RawCall, validate_call
from rlvr.chat.dialects.json_text import parse_complete_value
from rlvr.chat.openai_calls import build_turn_with_calls
from rlvr.turns import CallStatus, ToolSpec

TOOLS = {"keep": ToolSpec("keep", "Keep a value.", {"type": "object", "properties": {"value": {}}})}
DEEP: object = None
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("1e400", "a number is too large"),
        ('{"a": [1, [-1e999]]}', "a number is too large"),
        ("[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ('{"a":' * 400 + "1" + "}" * 400, "nested deeper than 64 levels"),
    ],
    ids=["large", "large within", "deep list", "deep object"],
)
def test_they_make_a_call_that_cannot_be_read(value: str, problem: str) -> None:
    given = parse_complete_value(f'{{"value": {value}}}')
    call = validate_call(RawCall("keep", given), TOOLS, "0.0", "keep()")
    assert call.status is CallStatus.BAD_JSON and call.arguments is None and problem in call.error_message
    unknown = validate_call(RawCall("lose", given), TOOLS, "0.0", "lose()")
    assert unknown.status is CallStatus.UNKNOWN_TOOL and unknown.arguments is None


def test_what_can_be_stored_is_kept() -> None:
    given = {"value": [[1e308, {"a": -0.5}]] * 3}
    assert validate_call(RawCall("keep", given), TOOLS, "0.0", "keep()").arguments == given


def test_such_a_call_ends_no_evaluation(tmp_path: Path) -> None:
    texts = iter(range(10**6))

    def policy(prompt: str) -> str:
        value = ("1e400", "[" * 320 + "]" * 320, "7")[next(texts) % 3]
        return f'!calculator {{"expression": "1+1", "x": {value}}}'

    env = {"name": "with_tools", "env": "arithmetic", "tools": ["calculator"], "max_turns": 3}
    rlvr.evaluate(env, policy, tasks=4, out=tmp_path / "run", concurrency=1)
    rows = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text("utf-8").splitlines()]
    assert [row["verdict"]["score"] for row in rows] == [0.0] * 4


def test_a_task_with_half_a_character_ends_no_evaluation(tmp_path: Path) -> None:
    """A lone surrogate is no valid text, and data may have one."""
    half = "\ud800"
    tasks = [rlvr.Task(f"q{half}", f"1{half}", id=f"a{half}", meta={"x": half}), rlvr.Task("r", "2", id="b")]
    report = rlvr.evaluate(tasks, lambda prompt: "2", verifier="exact", out=tmp_path / "run")
    assert [sample.score for sample in report.samples] == [0.0, 1.0]
    frame = rlvr.load_evaluation(tmp_path / "run").to_pandas()
    assert list(frame["prompt"]) == ["q?", "r"] and list(frame["task_id"]) == ["a?", "b"]


def test_a_detail_without_end_is_cut() -> None:
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    assert json.dumps(Verdict(0.0, "no", detail={"deep": deep}).to_dict())


@pytest.mark.parametrize("value", [float("nan"), 10**5000, DEEP], ids=["nan", "long", "deep"])
def test_a_function_that_returns_such_a_call_makes_an_unreadable_call(value: object) -> None:
    turn = build_turn_with_calls("", [{"name": "keep", "arguments": {"value": value}}], list(TOOLS.values()), 0)
    assert [(call.status, call.arguments) for call in turn.calls] == [(CallStatus.BAD_JSON, None)]
