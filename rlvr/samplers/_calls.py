"""Tool calls over a chat endpoint: reported by the endpoint (`tool_calls`), or written in its text in a dialect."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Request, Said
from rlvr.dialects.dialect import MAX_CALLS, Dialect, Found, Unwritable, checked
from rlvr.dialects.jsontext import Broken, dumps, whole
from rlvr.samplers._chat import Reading
from rlvr.turns import Call, CallStatus, ToolSpec, Turn


def turn_of(said: Reading, request: Request) -> Turn:
    """Make a turn from the calls that a chat server has parsed. The content is not searched for calls.

    Raises TypeError if the calls are not in the usual format.
    """
    message, content, cut = said.message, said.text, said.cut
    older = message.get("function_call")  # the legacy field has one call at most
    calls = message.get("tool_calls") or ([{"function": older}] if older else [])
    if not isinstance(calls, list):
        raise TypeError("its tool_calls are not a list")
    tools = {spec.name: spec for spec in (request.said.tools if request.said else ())}
    found = [_call(call, tools, f"{request.turn}.{place}", cut=cut and call is calls[-1]) for place, call in enumerate(calls[:MAX_CALLS])]
    shown = "\n".join([*([content] if content else []), *(f"{call.name}({call.raw})" for call in found)])
    return Turn(shown, content, said.reasoning, tuple(found), "length" if cut else "stop")


def written_turn(said: Reading, request: Request, dialect: Dialect) -> Turn:
    """Parse a turn whose calls are written in its text. If the dialect writes plain text, the turn ends at its first complete call."""
    tools = request.said.tools if request.said else ()
    text, cut = said.text, said.cut
    if dialect.plain_text:
        ends = [place + 1 for place, sign in enumerate(text) if sign == "\n"]
        first = bisect_left(ends, True, key=lambda end: dialect.complete(text[:end], tools))
        whole_call = text if first == len(ends) else text[: ends[first]]
        text, cut = whole_call, cut and first == len(ends)
    turn = dialect.read(text, tools, turn=request.turn, finish="length" if cut else "stop")
    return Turn(turn.text, turn.content, said.reasoning or turn.reasoning, turn.calls, turn.finish)


def written_messages(said: Said, dialect: Dialect) -> list[dict[str, Any]]:
    """Format a conversation with tools as plain messages: tools in the system message, calls and results as text."""
    messages = [dict(message) for message in said.messages]
    about = dialect.instructions(said.tools)
    if messages and messages[0]["role"] == "system":
        messages[0] = {"role": "system", "content": f"{about}\n\n{messages[0]['content']}"}
    else:
        messages.insert(0, {"role": "system", "content": about})
    found: list[dict[str, Any]] = []
    heard = False
    for message in messages:
        if calls := message.get("tool_calls"):
            lines = [str(message["content"]), *(_written(call["function"], said.tools, dialect) for call in calls)]
            message = {"role": "assistant", "content": "\n".join(filter(None, lines))}
        result = message["role"] == "tool"
        if result:
            message = {"role": "user", "content": dialect.result(str(message.get("name", "tool")), str(message["content"]))}
        if heard and message["role"] == "user":
            found[-1]["content"] += "\n" + message["content"]
        else:
            found.append(message)
        heard = result or (heard and message["role"] == "user")
    return found


def _written(function: Mapping[str, Any], tools: Sequence[ToolSpec], dialect: Dialect) -> str:
    """Format a call in the dialect; the raw arguments if that is not possible."""
    raw = str(function["arguments"])
    try:
        given = json.loads(raw)
        return dialect.write([Call("", str(function["name"]), given)], tools) if isinstance(given, dict) else raw
    except (ValueError, RecursionError, Unwritable):
        return raw


def _call(call: Any, tools: Mapping[str, ToolSpec], number: str, *, cut: bool) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise TypeError("one of its tool_calls has no function")
    name, given = function.get("name"), function.get("arguments")
    raw = given if isinstance(given, str) else dumps(given)
    try:
        read = Found(str(name or ""), whole(raw) if raw.strip() else {})
    except Broken as broken:
        read = Found(str(name or ""), None, CallStatus.UNCLOSED if cut else CallStatus.BAD_JSON, str(broken))
    return checked(read, tools, number, raw)
