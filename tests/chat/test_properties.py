"""Any arguments survive writing and reading, any text is read without an error, and time grows with the text alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlvr.chat.dialects.dialect import Dialect, UnwritableCallError
from rlvr.chat.dialects.table import DIALECTS
from rlvr.turns import Call, CallStatus, ToolSpec

ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "share": {"type": "number"},
        "exact": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
        "none": {"type": "null"},
    },
    "required": [],
    "additionalProperties": False,
}
TOOLS = (
    ToolSpec("search", "Search.", PARAMETERS),
    ToolSpec("python", "Run code.", {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}),
    ToolSpec("now", "The time."),
)
MARKS = sorted({mark for d in DIALECTS.values() for mark in (*d.open_marks, *d.close_marks, *d.ignored_marks, *sum(d.reasoning_marks, ()))} | {
    "<parameter=", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", '<|"|>', "<escape>",
    "<|message|>", "<|end|>", "<|call|>", "<|start|>assistant", "[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "\n```json\n", '{"name": ', "call:",
    '"', "'", "\\", "{", "}", "[", "]", "(", ")", ",", ":", "=", "\n", "search", "python", ";", ".call(", " ", "<|tool_call_argument_begin|>",
    " to=functions.search", '<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>", "0", "-", "NaN", "true", "\\u12", "`",
})  # fmt: skip
TEXTS = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(MARKS), max_size=4).map("".join))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "query": TEXTS,
        "limit": st.integers(-(10**20), 10**20),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "exact": st.booleans(),
        "words": st.lists(TEXTS, max_size=3),
        "more": st.dictionaries(TEXTS, VALUES, max_size=3),
        "none": st.none(),
    },
)
CALLS = st.lists(
    st.one_of(
        ARGUMENTS.map(lambda given: ("search", given)),
        TEXTS.map(lambda code: ("python", {"code": code})),
        st.just(("now", {})),
    ),
    min_size=1,
    max_size=3,
)


def read_back(dialect: Dialect, text: str) -> list[tuple[str, Any]]:
    turn = dialect.parse_turn(text, TOOLS)
    assert all(call.status is CallStatus.OK for call in turn.calls), turn.calls
    assert (turn.content, turn.reasoning) == ("", ""), turn
    return [(call.name, call.arguments) for call in turn.calls]


@ALL
@settings(max_examples=80, deadline=None)
@given(calls=CALLS)
@example(calls=[("search", {"query": "</tool_call>"}), ("now", {})])
@example(calls=[("search", {"query": "</think>"})])
@example(calls=[("search", {"query": "\n\n"}), ("search", {"query": "\n"}), ("search", {"query": ""})])
@example(calls=[("python", {"code": "```python\nx\n```"}), ("python", {"code": ""}), ("python", {"code": "\n"})])
@example(calls=[("search", {"query": "3", "limit": 3, "share": 3.5, "exact": True, "words": ["1"], "more": {"a": None}})])
def test_what_is_written_is_read_back(dialect: Dialect, calls: list[tuple[str, dict[str, Any]]]) -> None:
    written = [Call(f"0.{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    try:
        text = dialect.format_calls(written, TOOLS)
    except UnwritableCallError as refused:
        assert any(mark in str(calls) for mark in ("</parameter>", "</arg_value>", "</｜DSML", '<|"|>', "<escape>", "<")), refused
        return
    assert read_back(dialect, text) == calls


@pytest.mark.slow
@ALL
@settings(max_examples=150, deadline=None)
@given(
    text=st.one_of(st.text(max_size=60), st.lists(st.sampled_from(MARKS), max_size=25).map("".join)),
    thinking=st.booleans(),
    finish=st.sampled_from(["stop", "length"]),
)
def test_no_text_is_an_error(dialect: Dialect, text: str, thinking: bool, finish: Any) -> None:
    turn = dialect.parse_turn(text, TOOLS, starts_in_reasoning=thinking, finish_reason=finish)
    assert turn.text == text
    for number, call in enumerate(turn.calls):
        assert call.id == f"0.{number}" and call.raw and call.raw in text
        assert (call.status is CallStatus.OK) == (call.error_message == "")
        assert call.status is not CallStatus.OK or isinstance(call.arguments, dict)


@ALL
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_call_with_a_hole_in_it_is_no_error(dialect: Dialect, data: st.DataObject) -> None:
    text = dialect.format_calls([Call("0.0", "search", {"query": "rain", "limit": 3, "words": ["a"]}), Call("0.1", "now", {})], TOOLS)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    patch = data.draw(st.sampled_from(["", *MARKS]))
    dialect.parse_turn(text[:start] + patch + text[end:], TOOLS)


FLOODS = [
    *MARKS,
    '{"name": "',
    "[[",
    '{"a":',
    "<tool_call>{",
    "call:a{b:",
    "[TOOL_CALLS]a",
    "```python\n",
    "\n```now",
    " \n",
    "<think></think>",
    "<think>x",
]


@pytest.mark.slow
@ALL
def test_time_grows_with_the_text_alone(dialect: Dialect) -> None:
    """Eight times the text takes about eight times as long; where time grows with the square it takes sixty-four times."""

    def seconds(text: str) -> float:
        start = time.thread_time()
        dialect.parse_turn(text, TOOLS)
        dialect.parse_turn(text, TOOLS, starts_in_reasoning=True)
        return time.thread_time() - start

    def ratio(head: str, flood: str) -> float:
        return seconds(head + flood * 32_000) / (seconds(head + flood * 4_000) + 0.0005)

    for flood in FLOODS:
        for head in ("", dialect.open_marks[0]):
            assert any(ratio(head, flood) < 30 for _ in range(4)), (head, flood)
