"""Dialect by dialect: what becomes of a call that is right, and of one that is wrong in each of the ways that happen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rlvr.chat.dialects.dialect import Dialect
from rlvr.chat.dialects.table import DIALECTS, detect_dialect, get_dialect
from rlvr.errors import NotFound
from rlvr.turns import STATUS_MESSAGES, Call, CallStatus, ToolSpec

SEARCH = ToolSpec(
    "search",
    "Search.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"}},
        "required": ["query"],
        "additionalProperties": False,
    },
)
TOOLS = (SEARCH, ToolSpec("now", "The time."))
GOOD = Call("0.0", "search", {"query": "rain", "limit": 3})
S = CallStatus


def written(dialect: Dialect, *calls: tuple[str, dict[str, Any]]) -> str:
    return dialect.format_calls([Call(f"0.{n}", name, given) for n, (name, given) in enumerate(calls)], TOOLS)


def good(dialect: Dialect) -> str:
    return dialect.format_calls([GOOD], TOOLS)


def opened(dialect: Dialect) -> tuple[str, str]:
    return dialect.reasoning_marks[0] if dialect.reasoning_marks else ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")


def cut(dialect: Dialect) -> str:
    """Cut off in the middle of the arguments."""
    text = good(dialect)
    return text[: text.index("rain") + 2]


BROKEN: dict[str, tuple[str, str, CallStatus]] = {
    "qwen_xml": ("</parameter>\n</function>", "</function>", S.MALFORMED),
    "glm": ("<arg_value>", "", S.MALFORMED),
    "deepseek_v32": ('string="false">3', 'string="false">3 3', S.BAD_JSON),
    "gemma": ("3", "3 3", S.BAD_JSON),
    "function_gemma": ("3", "3 3", S.BAD_JSON),
    "pythonic": ("3", "3 3", S.BAD_JSON),
}
"""What is replaced in a right call to break it, where it is not JSON, and what that is called. Elsewhere: `3` by `3 3`."""


def broken(dialect: Dialect) -> str:
    old, new, _ = BROKEN.get(dialect.name, ("3", "3 3", S.BAD_JSON))
    assert old in good(dialect)
    return good(dialect).replace(old, new)


OUTCOMES: dict[str, Callable[[Dialect], str]] = {
    "one call": good,
    "two calls": lambda d: written(d, ("search", {"query": "rain", "limit": 3}), ("now", {})),
    "text before": lambda d: "I look it up.\n" + good(d),
    "thought before": lambda d: f"{opened(d)[0]}Hm.{opened(d)[1]}{good(d)}",
    "in a thought": lambda d: f"{opened(d)[0]}Perhaps\n{good(d)}\n{opened(d)[1]}It rains.",
    "cut off": cut,
    "cut off after": good,
    "broken values": broken,
    "unknown tool": lambda d: written(d, ("serch", {"query": "rain"})),
    "wrong type": lambda d: written(d, ("search", {"query": "rain", "limit": "three"})),
    "text for number": lambda d: written(d, ("search", {"query": "rain", "limit": "3"})),
    "missing argument": lambda d: written(d, ("search", {"limit": 3})),
    "unknown argument": lambda d: written(d, ("search", {"query": "rain", "page": 2})),
}
EXPECTED: dict[str, list[CallStatus]] = {
    "one call": [S.OK],
    "two calls": [S.OK, S.OK],
    "text before": [S.OK],
    "thought before": [S.OK],
    "in a thought": [S.IN_THOUGHT],
    "cut off": [S.UNCLOSED],
    "cut off after": [S.OK],
    "broken values": [S.BAD_JSON],
    "unknown tool": [S.UNKNOWN_TOOL],
    "wrong type": [S.BAD_ARGUMENTS],
    "text for number": [S.BAD_ARGUMENTS],
    "missing argument": [S.BAD_ARGUMENTS],
    "unknown argument": [S.BAD_ARGUMENTS],
}
DIFFERENT: dict[tuple[str, str], tuple[list[CallStatus], str]] = {
    ("llama", "in a thought"): ([], "without a mark, only what follows the reasoning can be a call"),
    ("llama", "text before"): ([], "only a turn that is an object as a whole is a call; else it is an answer"),
    ("fenced", "unknown tool"): ([], "a fence that names no tool is code in an answer"),
    ("qwen_xml", "text for number"): ([S.OK], "values have no type: 3 is read as the schema says"),
    ("glm", "text for number"): ([S.OK], "values have no type: 3 is read as the schema says"),
    ("llama", "cut off after"): ([S.UNCLOSED], "a call has no closing mark, so nothing says that it is whole"),
    ("line", "cut off after"): ([S.UNCLOSED], "the end of the line closes a call, and it is not there"),
    ("mistral", "cut off after"): ([S.UNCLOSED], "a call has no closing mark, so nothing says that it is whole"),
    ("mistral_list", "cut off after"): ([S.UNCLOSED], "a call has no closing mark, so nothing says that it is whole"),
}
"""Where a dialect differs, and why."""


def outcome(dialect: Dialect, name: str) -> list[CallStatus]:
    text = OUTCOMES[name](dialect)
    if (dialect.name, name) == ("harmony", "text before"):
        text = "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant" + good(dialect)
    turn = dialect.parse_turn(text, TOOLS, finish_reason="length" if name.startswith("cut off") else "stop")
    return [call.status for call in turn.calls]


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_each_outcome_is_as_declared(dialect: Dialect, name: str) -> None:
    wanted = DIFFERENT.get((dialect.name, name), (EXPECTED[name], ""))[0]
    if name == "broken values" and dialect.name in BROKEN:
        wanted = [BROKEN[dialect.name][2]]
    assert outcome(dialect, name) == wanted


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_content_and_reasoning_are_told_from_calls(dialect: Dialect) -> None:
    if dialect.name in ("harmony", "llama"):
        return  # below
    begin, end = opened(dialect)
    turn = dialect.parse_turn(f"{begin}It may rain.{end}\nI look.\n{good(dialect)}", TOOLS)
    assert (turn.reasoning, turn.content, [call.arguments for call in turn.calls]) == ("It may rain.", "I look.", [GOOD.arguments])
    by_prompt = dialect.parse_turn(f"It may rain.{end}\nI look.\n{good(dialect)}", TOOLS, starts_in_reasoning=True)
    assert (by_prompt.reasoning, by_prompt.content, len(by_prompt.calls)) == ("It may rain.", "I look.", 1)
    unfinished = dialect.parse_turn(f"Perhaps {good(dialect)}", TOOLS, starts_in_reasoning=True)
    assert [call.status for call in unfinished.calls] in ([S.IN_THOUGHT], []) and unfinished.content == ""


def test_harmony_messages() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query": "rain"}<|call|>'
    )
    turn = get_dialect("harmony").parse_turn(text, TOOLS)
    assert (turn.reasoning, turn.content, turn.calls[0].arguments) == ("Hm.", "I look.", {"query": "rain"})
    assert get_dialect("harmony").parse_turn(text.removesuffix("<|call|>"), TOOLS).calls[0].status is S.OK, "the stop token is not decoded"
    assert get_dialect("harmony").parse_turn(text.removesuffix("<|call|>"), TOOLS, finish_reason="length").calls[0].status is S.UNCLOSED
    assert get_dialect("harmony").parse_turn("<|channel|>final<|message|>It rains.<|return|>", TOOLS).content == "It rains."
    assert get_dialect("harmony").parse_turn("just words", TOOLS).content == "just words"


def test_llama_forms() -> None:
    llama = get_dialect("llama")
    assert llama.parse_turn('{"answer": 4}', TOOLS).content == '{"answer": 4}', "an object without a name is an answer"
    assert llama.parse_turn('<think>Hm.</think>{"name": "now", "parameters": {}}', TOOLS).calls[0].status is S.OK
    python = (*TOOLS, ToolSpec("python", "Run.", {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}))
    code = llama.parse_turn("<|python_tag|>print(1)\nprint(2)<|eom_id|>", python).calls[0]
    assert (code.name, code.arguments, code.status) == ("python", {"code": "print(1)\nprint(2)"}, S.OK)
    assert llama.parse_turn("<|python_tag|>print(1)", TOOLS).calls[0].status is S.UNKNOWN_TOOL
    built_in = llama.parse_turn('<|python_tag|>search.call(query="rain", limit=2)<|eom_id|>', TOOLS).calls[0]
    assert (built_in.arguments, built_in.status) == ({"query": "rain", "limit": 2}, S.OK)
    both = {"name": "now", "parameters": {}, "arguments": {}}
    assert llama.parse_turn(str(both).replace("'", '"'), TOOLS).calls[0].status is S.MALFORMED


MISTRAL_FORMS = [
    '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "rain"}, "id": "abcdefghi"}]',
    '[TOOL_CALLS]search{"query": "rain"}',
    '[TOOL_CALLS]search[ARGS]{"query": "rain"}',
    '[TOOL_CALLS]search[CALL_ID]abcdefghi[ARGS]{"query": "rain"}',
]


@pytest.mark.parametrize("text", MISTRAL_FORMS)
def test_every_form_of_mistral_is_read(text: str) -> None:
    (call,) = get_dialect("mistral").parse_turn(text, TOOLS).calls
    assert (call.status, call.arguments) == (S.OK, {"query": "rain"})


STRICT = [
    ('<tool_call>{"name": "search", "arguments": {"query": "a", "limit": NaN}}</tool_call>', S.BAD_JSON, "NaN"),
    ('<tool_call>{"name": "search", "arguments": {"query": "a", "query": "b"}}</tool_call>', S.BAD_JSON, "twice"),
    ('<tool_call>{"name": "search", "arguments": {"query": "a", "limit": ' + "9" * 5000 + "}}</tool_call>", S.BAD_JSON, "cannot be read"),
    ('<tool_call>{"name": "search", "arguments": ' + "[" * 100_000 + "</tool_call>", S.BAD_JSON, "nested"),
    ('<tool_call>{"name": "search", "arguments": {"query": "a", "limit": 3.0}}</tool_call>', S.BAD_ARGUMENTS, "whole number"),
    ('<tool_call>{"name": "search", "arguments": {"query": "a", "limit": true}}</tool_call>', S.BAD_ARGUMENTS, "whole number"),
    ('<tool_call>{"name": "search", "arguments": {"query": null}}</tool_call>', S.BAD_ARGUMENTS, "a text"),
    ('<tool_call>{"name": "search", "arguments": "rain"}</tool_call>', S.BAD_ARGUMENTS, "not an object"),
    ('<tool_call>{"name": "search", "arguments": {"query": "a"}, "parameters": {}}</tool_call>', S.MALFORMED, "only one"),
    ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', S.NO_NAME, '"name"'),
    ("<tool_call>[1, 2]</tool_call>", S.MALFORMED, "object"),
    ("<tool_call>search(rain)</tool_call>", S.BAD_JSON, "JSON"),
    ('<tool_call>{"name": "now", "arguments": {}} now </tool_call>', S.MALFORMED, "the JSON is followed"),
    ('<tool_call>{"name": "now", "arguments": {}}', S.UNCLOSED, ""),
    ('<tool_call>{"name": "now", "arguments": {}}</tool_', S.UNCLOSED, ""),
    ("<tool_call>", S.UNCLOSED, ""),
]


@pytest.mark.parametrize(("text", "status", "words"), STRICT, ids=range(len(STRICT)))
def test_hermes_is_strict_and_says_why(text: str, status: CallStatus, words: str) -> None:
    (call,) = get_dialect("hermes").parse_turn(text, TOOLS).calls
    assert call.status is status and words in call.error_detail, call
    assert call.error_message.startswith("Error: this call was not run. ") and STATUS_MESSAGES[status] in call.error_message


def test_one_broken_call_does_not_take_its_neighbours_along() -> None:
    for dialect in DIALECTS.values():
        text = good(dialect) + "\n" + broken(dialect) + "\n" + good(dialect)
        if dialect.name in ("llama",):
            text = text.replace("\n", ";")
        if dialect.name == "harmony":
            text = text.replace("\n", "<|start|>assistant")
        statuses = [call.status for call in dialect.parse_turn(text, TOOLS).calls]
        bad = BROKEN.get(dialect.name, ("", "", S.BAD_JSON))[2]
        wanted = [S.OK, bad] if dialect.name == "llama" else [S.OK, bad, S.OK]  # what has no marks has no next call
        assert statuses == wanted, dialect.name


def test_a_call_in_a_thought_counts_only_when_nothing_else_was_said() -> None:
    hermes = get_dialect("hermes")
    thought = f"<think>{good(hermes)}</think>"
    assert hermes.parse_turn(thought + "It rains.", TOOLS).calls_needing_result_or_error == ()
    assert len(hermes.parse_turn(thought, TOOLS).calls_needing_result_or_error) == 1
    turn = hermes.parse_turn(thought + good(hermes), TOOLS)
    assert [call.status for call in turn.calls] == [S.IN_THOUGHT, S.OK] and turn.calls_needing_result_or_error == turn.calls[1:]


def test_values_without_types_are_read_as_the_schema_says() -> None:
    given = "<parameter=query>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
    text = f"<tool_call>\n<function=search>\n{given}</function>\n</tool_call>"
    (call,) = get_dialect("qwen_xml").parse_turn(text, TOOLS).calls
    assert call.arguments == {"query": "3", "exact": True}
    (call,) = get_dialect("qwen_xml").parse_turn(text.replace("<tool_call>\n", ""), TOOLS).calls
    assert call.status is S.MALFORMED and "begin with <tool_call>" in call.error_detail


def test_instructions_hold_a_call_that_can_be_read() -> None:
    for dialect in DIALECTS.values():
        text = dialect.format_instructions(TOOLS)
        assert "search" in text and "now" in text
        if dialect.name == "line":
            assert text == 'Tools:\n!search {"query", "limit", "exact"}\n!now'
            continue
        shown = text[text.index("own values:\n") + len("own values:\n") : text.index("\n\nYour turn ends")]
        (call,) = dialect.parse_turn(shown, TOOLS).calls
        assert call.status is S.OK, (dialect.name, call)


CALCULATOR = ToolSpec("calculator", "Compute.", {"properties": {"expression": {"type": "string"}}, "required": ["expression"]})


@pytest.mark.parametrize(
    ("text", "tools", "name", "given", "status"),
    [
        ("!3+4", [CALCULATOR], "calculator", {"expression": "3+4"}, S.OK),
        ("!calculator 3+4", [CALCULATOR], "calculator", {"expression": "3+4"}, S.OK),
        ("so\n!3+4", [CALCULATOR], "calculator", {"expression": "3+4"}, S.OK),
        ('!{"expression": "3\\n4"}', [CALCULATOR], "calculator", {"expression": "3\n4"}, S.OK),
        ("!", [CALCULATOR], "calculator", {}, S.BAD_ARGUMENTS),
        ("!3+4", [CALCULATOR, *TOOLS], "", {}, S.NO_NAME),
        ("!calculate 3+4", [CALCULATOR, *TOOLS], "calculate", {}, S.UNKNOWN_TOOL),
        ("!search rain", TOOLS, "search", None, S.BAD_JSON),
        ("!now", TOOLS, "now", {}, S.OK),
    ],
)
def test_a_call_of_one_line(text: str, tools: Sequence[ToolSpec], name: str, given: Any, status: CallStatus) -> None:
    (call,) = get_dialect("line").parse_turn(text, tools).calls
    assert (call.name, call.arguments, call.status) == (name, given, status)


def test_an_exclamation_in_a_line_is_no_call() -> None:
    assert not get_dialect("line").parse_turn("It is 5! = 120", [CALCULATOR]).calls and not get_dialect("line").parse_turn("!3+4").calls


SIGNS = [
    ("<tool_call>\\n{\"name\": ... \"arguments\": ", "hermes"),
    ("<tool_call>\n<function=' ~ tool_call.name", "qwen_xml"),
    ("'<tool_call>' + tc.name ... <arg_key>", "glm"),
    ("<|start_header_id|> ... \"parameters\": ", "llama"),
    ("[TOOL_CALLS] ... [ARGS]", "mistral"),
    ("[TOOL_CALLS] [", "mistral_list"),
    ("<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜> ```json", "deepseek_v3"),
    ("<｜tool▁call▁begin｜> <｜tool▁sep｜>", "deepseek_v31"),
    ("<｜DSML｜invoke", "deepseek_v32"),
    ("<|start|>assistant<|channel|>commentary ... <|call|>", "harmony"),
    ("'<|tool_call>call:' + function['name']", "gemma"),
    ("<start_function_call>call:", "function_gemma"),
    ("<|tool_call_begin|> <|tool_call_argument_begin|>", "kimi"),
    ("<|tool_call_start|>[", "pythonic"),
    ("<policy>{{ message.content }}<eos>", "line"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "name"), SIGNS)
def test_the_template_says_which_dialect_it_speaks(template: str, name: str) -> None:
    found = detect_dialect(template)
    assert found is not None and found.name == name


def test_every_dialect_but_the_plain_one_has_its_sign() -> None:
    assert {name for _, name in SIGNS} == set(DIALECTS) - {"fenced"}
    assert detect_dialect("{% for m in messages %}{{ m.content }}{% endfor %}") is None
    with pytest.raises(NotFound, match="hermes"):
        get_dialect("herms")


if __name__ == "__main__":  # python -m tests.chat.test_outcomes: the table of dialects and outcomes
    sys.stdout.write("| dialect | " + " | ".join(OUTCOMES) + " |\n|---" * 1 + "|---" * len(OUTCOMES) + "|\n")
    for one in DIALECTS.values():
        row = [", ".join(outcome(one, name)) or "answer" for name in OUTCOMES]
        sys.stdout.write(f"| {one.name} | " + " | ".join(row) + " |\n")
