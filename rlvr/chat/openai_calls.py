"""Tool calls in OpenAI's format, `{"function": {"name": ..., "arguments": ...}}`, which chat servers and clients of a session write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.dialects.dialect import MAX_CALLS, RawCall, validate_call
from rlvr.chat.dialects.json_text import format_json, parse_complete_value
from rlvr.turns import Call, CallStatus, ToolSpec, Turn


def build_turn_with_calls(
    content: str, calls: Any, tools: Sequence[ToolSpec], turn: int, *, reasoning: str = "", truncated: bool = False
) -> Turn:
    """Build a turn from its visible text and its calls, which are validated against the tools.

    The text is not searched for calls. `calls` is a list of `{"function": {"name", "arguments"}}`, or of `{"name", "arguments"}`; the
    arguments are an object, or JSON in a text. Raises TypeError if it is anything else.

    >>> build_turn_with_calls("", [{"name": "now", "arguments": {}}], [ToolSpec("now", "The time.")], 0).calls[0].status.value
    'ok'
    """
    if not isinstance(calls, list):
        raise TypeError("its tool_calls are not a list")
    by_name = {spec.name: spec for spec in tools}
    found = [
        _parse_call(call, by_name, f"{turn}.{place}", truncated=truncated and call is calls[-1])
        for place, call in enumerate(calls[:MAX_CALLS])
    ]
    text = "\n".join([*([content] if content else []), *(f"{call.name}({call.raw})" for call in found)])
    return Turn(text, content, reasoning, tuple(found), "length" if truncated else "stop")


def _parse_call(call: Any, tools: Mapping[str, ToolSpec], number: str, *, truncated: bool) -> Call:
    function = call.get("function", call if "name" in call else None) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise TypeError("one of its tool_calls has no function")
    name, given = function.get("name"), function.get("arguments", {})
    raw = ""
    try:
        raw = given if isinstance(given, str) else format_json(given)
        read = RawCall(str(name or ""), parse_complete_value(raw) if raw.strip() else {})
    except (ValueError, RecursionError) as broken:  # NaN and what is nested too deeply have no JSON
        read = RawCall(
            str(name or ""), None, CallStatus.UNCLOSED if truncated else CallStatus.BAD_JSON, str(broken) or type(broken).__name__
        )
    return validate_call(read, tools, number, raw)
