"""Tool calls over a chat endpoint: reported by the endpoint (`tool_calls`), or written in its text in a dialect."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.dialects.dialect import MAX_CALLS, Dialect, RawCall, UnwritableCallError, validate_call
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_complete_value
from rlvr.contracts import ChatPrompt, Request
from rlvr.samplers._chat import ChatReply
from rlvr.turns import Call, CallStatus, ToolSpec, Turn


def parse_tool_turn(reply: ChatReply, request: Request) -> Turn:
    """Make a turn from the calls that a chat server has parsed. The content is not searched for calls.

    Raises TypeError if the calls are not in the usual format.
    """
    message, content, cut = reply.message, reply.text, reply.truncated
    older = message.get("function_call")  # the legacy field has one call at most
    calls = message.get("tool_calls") or ([{"function": older}] if older else [])
    if not isinstance(calls, list):
        raise TypeError("its tool_calls are not a list")
    tools = {spec.name: spec for spec in (request.chat_prompt.tools if request.chat_prompt else ())}
    found = [
        _parse_call(call, tools, f"{request.turn}.{place}", cut=cut and call is calls[-1]) for place, call in enumerate(calls[:MAX_CALLS])
    ]
    shown = "\n".join([*([content] if content else []), *(f"{call.name}({call.raw})" for call in found)])
    return Turn(shown, content, reply.reasoning, tuple(found), "length" if cut else "stop")


def parse_text_turn(reply: ChatReply, request: Request, dialect: Dialect) -> Turn:
    """Parse a turn whose calls are written in its text. If the dialect writes plain text, the turn ends at its first complete call."""
    tools = request.chat_prompt.tools if request.chat_prompt else ()
    text, cut = reply.text, reply.truncated
    if dialect.is_plain_text:
        ends = [place + 1 for place, sign in enumerate(text) if sign == "\n"]
        first = bisect_left(ends, True, key=lambda end: dialect.has_complete_call(text[:end], tools))
        whole_call = text if first == len(ends) else text[: ends[first]]
        text, cut = whole_call, cut and first == len(ends)
    turn = dialect.parse_turn(text, tools, turn=request.turn, finish="length" if cut else "stop")
    return Turn(turn.text, turn.content, reply.reasoning or turn.reasoning, turn.calls, turn.finish)


def format_messages_as_text(chat_prompt: ChatPrompt, dialect: Dialect) -> list[dict[str, Any]]:
    """Format a conversation with tools as plain messages: tools in the system message, calls and results as text."""
    messages = [dict(message) for message in chat_prompt.messages]
    about = dialect.format_instructions(chat_prompt.tools)
    if messages and messages[0]["role"] == "system":
        messages[0] = {"role": "system", "content": f"{about}\n\n{messages[0]['content']}"}
    else:
        messages.insert(0, {"role": "system", "content": about})
    found: list[dict[str, Any]] = []
    heard = False
    for message in messages:
        if calls := message.get("tool_calls"):
            lines = [str(message["content"]), *(_format_call(call["function"], chat_prompt.tools, dialect) for call in calls)]
            message = {"role": "assistant", "content": "\n".join(filter(None, lines))}
        result = message["role"] == "tool"
        if result:
            message = {"role": "user", "content": dialect.format_result(str(message.get("name", "tool")), str(message["content"]))}
        if heard and message["role"] == "user":
            found[-1]["content"] += "\n" + message["content"]
        else:
            found.append(message)
        heard = result or (heard and message["role"] == "user")
    return found


def _format_call(function: Mapping[str, Any], tools: Sequence[ToolSpec], dialect: Dialect) -> str:
    """Format a call in the dialect; the raw arguments if that is not possible."""
    raw = str(function["arguments"])
    try:
        given = json.loads(raw)
        return dialect.format_calls([Call("", str(function["name"]), given)], tools) if isinstance(given, dict) else raw
    except (ValueError, RecursionError, UnwritableCallError):
        return raw


def _parse_call(call: Any, tools: Mapping[str, ToolSpec], number: str, *, cut: bool) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise TypeError("one of its tool_calls has no function")
    name, given = function.get("name"), function.get("arguments")
    raw = given if isinstance(given, str) else format_json(given)
    try:
        read = RawCall(str(name or ""), parse_complete_value(raw) if raw.strip() else {})
    except ValueSyntaxError as broken:
        read = RawCall(str(name or ""), None, CallStatus.UNCLOSED if cut else CallStatus.BAD_JSON, str(broken))
    return validate_call(read, tools, number, raw)
