# ruff: noqa: B006  (tables stand in one line a row)
"""Schemas from signatures, strict arguments, one call at a time, and whose fault it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from rlvr.contracts.schema import SchemaValidationError, build_parameters_schema, build_type_schema, validate_arguments
from rlvr.contracts.tool import FinalAnswer, Tool, ToolContext, run_tool_call, tool, truncate_middle
from rlvr.errors import ConfigError, PluginLoadError, ToolError, ToolInfrastructureError
from rlvr.registry.plugins import build
from rlvr.turns import Call, CallStatus
from tests.tools.fakes import FakeBox


def sample(
    text: str, count: int, share: float = 0.5, on: bool = True, names: list[str] | None = None, more: dict[str, int] = {}, way: Literal["up", "down"] = "up"
) -> str:  # fmt: skip
    """Do it.

    Args:
        text: what is said.
        way: the direction, up or down.
    """
    return ""


def test_a_schema_is_the_signature() -> None:
    schema = build_parameters_schema(sample)
    assert schema["required"] == ["text", "count"] and schema["additionalProperties"] is False
    assert schema["properties"] == {
        "text": {"type": "string", "description": "what is said."},
        "count": {"type": "integer"},
        "share": {"type": "number", "default": 0.5},
        "on": {"type": "boolean", "default": True},
        "names": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        "more": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
        "way": {"type": "string", "enum": ["up", "down"], "default": "up", "description": "the direction, up or down."},
    }


def test_signatures_that_have_no_schema_are_refused() -> None:
    def untyped(x) -> str:  # type: ignore[no-untyped-def]
        return ""

    def many(*xs: int) -> str:
        return ""

    def odd(x: set[int]) -> str:
        return ""

    for function, words in ((untyped, "has no type"), (many, "name each of its arguments"), (odd, "a tool takes")):
        with pytest.raises(PluginLoadError, match=words):
            build_parameters_schema(function)
    with pytest.raises(PluginLoadError, match="one plain type"):
        build_type_schema(Literal["a", 1])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"count": 1}, "argument 'text' is missing"),
    ({"text": "a", "count": "1"}, 'is the text "1"; it must be a whole number'),
    ({"text": "a", "count": 1.0}, "it must be a whole number"),
    ({"text": "a", "count": True}, "is true; it must be a whole number"),
    ({"text": 1, "count": 1}, "it must be a text"),
    ({"text": "a", "count": 1, "on": "true"}, "true or false"),
    ({"text": "a", "count": 1, "on": 1}, "true or false"),
    ({"text": "a", "count": 1, "names": [1]}, "a list or null"),
    ({"text": "a", "count": 1, "more": {"x": "y"}}, "argument 'x'"),
    ({"text": "a", "count": 1, "way": "left"}, 'one of the text "up", the text "down"'),
    ({"text": "a", "count": 1, "wey": "up"}, "did you mean 'way'"),
    ({"text": "a", "count": 1, "share": float("nan")}, "a number"),
    ({"text": "a", "count": 1, "share": 10**400}, "too large"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=range(len(WRONG)))
def test_arguments_are_not_repaired(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaValidationError) as told:
        validate_arguments(build_parameters_schema(sample), given)
    assert words in str(told.value) and "the arguments are text (a text), count (a whole number), share (a number, optional)" in str(
        told.value
    )


def test_a_whole_number_is_a_number() -> None:
    fitted = validate_arguments(build_parameters_schema(sample), {"text": "a", "count": 1, "share": 2})
    assert fitted["share"] == 2.0 and isinstance(fitted["share"], float)


def test_a_value_nested_deeply_is_refused() -> None:
    deep: Any = 0
    for _ in range(500):
        deep = [deep]
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaValidationError, match="levels deep"):
        validate_arguments({"properties": {"x": schema}}, {"x": deep})


class Moody(Tool):
    """Does as it is told."""

    def __init__(self) -> None:
        self.ended = 0

    def setup(self) -> None:
        self.seen: list[str] = []
        if self.context.data.get("fail"):
            raise RuntimeError("no")

    def teardown(self) -> None:
        self.ended += 1
        self.context.data.get("ended", []).append(self)

    @tool
    def do(self, what: str) -> str:
        """Do it."""
        self.seen.append(what)
        match what:
            case "refuse":
                raise ToolError("not today")
            case "crash":
                raise KeyError("gone")
            case "leave":
                raise SystemExit(0)
            case "number":
                return 3  # type: ignore[return-value]
            case "finish":
                return FinalAnswer("x" * 100)
        return what + " " + " ".join(self.seen)


def call(name: str, **given: Any) -> Call:
    return Call("0.0", name, given)


def test_what_the_policy_got_wrong_is_told_and_what_broke_is_raised() -> None:
    with Moody().session() as moody:
        assert run_tool_call(moody, call("do", what="a")).ok
        refused = run_tool_call(moody, call("do", what="refuse"))
        assert (refused.ok, refused.text) == (False, "Error: not today")
        for what, words in (("crash", "raised KeyError"), ("leave", "raised SystemExit")):
            with pytest.raises(ToolInfrastructureError, match=words):
                run_tool_call(moody, call("do", what=what))
        assert run_tool_call(moody, call("do", what="number")).text == "3", "another value than a text is shown as JSON"
        unknown = run_tool_call(moody, call("dos", what="a"))
        assert not unknown.ok and "did you mean 'do'" in unknown.text
        wrong = run_tool_call(moody, call("do", what=3))
        assert not wrong.ok and wrong.text.startswith("Error: this call was not run. ")
        misread = run_tool_call(moody, Call("0.0", "do", None, CallStatus.BAD_JSON, error_detail="no JSON"))
        assert not misread.ok and "no JSON" in misread.text
        assert moody.seen == ["a", "refuse", "crash", "leave", "number"], "what was refused is not run"
        final = run_tool_call(moody, call("do", what="finish"), max_characters=40)
        assert final.done and len(final.text) == 100, "an answer is not cut"
        long = run_tool_call(moody, call("do", what="b" * 500), max_characters=100)
        assert long.truncated and len(long.text) <= 100


def test_each_conversation_has_its_own_state_and_is_ended() -> None:
    plugin = Moody()
    one, other = plugin.start(), plugin.start()
    run_tool_call(one, call("do", what="a"))
    assert (one.seen, other.seen) == (["a"], [])
    ended: list[Any] = []
    with pytest.raises(RuntimeError):
        plugin.start(ToolContext(data={"fail": True, "ended": ended}))
    assert len(ended) == 1, "a tool that fails to begin is put away"


def test_cutting_keeps_head_and_tail_and_the_limit() -> None:
    for limit in (0, 1, 10, 50, 51, 60, 100, 999, 1000, 1001):
        text = truncate_middle("h" * 500 + "t" * 500, limit)
        assert len(text) <= limit or limit >= 1000
    head, note, tail = truncate_middle("h" * 500 + "t" * 500, 200).split("\n")
    left = int(note.split()[1])
    assert set(head) == {"h"} and set(tail) == {"t"} and len(head) + len(tail) + left == 1000


def test_a_tool_in_a_box_says_what_it_needs() -> None:
    from rlvr.tools.python import Python

    with pytest.raises(ConfigError, match="needs a sandbox"):
        Python().start()
    with Python(call_timeout_s=3).session(ToolContext(sandbox_session=(box := FakeBox()))) as python:
        assert run_tool_call(python, call("python", code="print(1)")).text == "print(1)"
    assert box.asked == [("print(1)", "python", 3.0)]


def test_a_tool_without_a_docstring_or_a_method_is_refused() -> None:
    class Silent(Tool):
        @tool
        def do(self) -> str:
            return ""

    class Empty(Tool):
        """Nothing."""

    for cls, words in ((Silent, "no docstring"), (Empty, "marked with @tool")):
        with pytest.raises(PluginLoadError, match=words):
            cls().specs()


class Naps(Tool):
    """Its method is a coroutine function."""

    @tool
    async def nap(self, seconds: float) -> str:
        """Sleep.

        Args:
            seconds: how long.
        """
        await asyncio.sleep(seconds)
        if seconds > 0.01:
            raise ToolError("that is too long")
        return "slept"


def test_a_coroutine_function_is_a_tool_too() -> None:
    assert Naps()(0.001) == "slept"
    with pytest.raises(ToolError, match="too long"):
        Naps()(0.02)

    async def in_a_loop() -> str:
        return Naps()(0.001)

    assert asyncio.run(in_a_loop()) == "slept"


def test_a_function_of_a_file_is_a_tool(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import asyncio\n\n\nasync def add(a: int, b: int) -> int:\n    'Add.'\n    await asyncio.sleep(0)\n    return a + b\n", "utf-8"
    )
    made = build("tool", "function", function=f"{tmp_path / 'mine.py'}:add")
    assert made(a=2, b=3) == "5" and made.specs()[0].name == "add"
