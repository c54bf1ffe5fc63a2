"""Conversion of turns, calls, results and tools to plain JSON and back. Fields with default values are omitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import takewhile
from typing import Any, TypeVar

from rlvr.contracts import StepResult
from rlvr.contracts.chat_request import ChatRequest
from rlvr.turns import Call, CallStatus, ToolResult, ToolSpec, Turn

R = TypeVar("R", Call, ToolResult, ToolSpec, Turn)


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """Convert a turn with its calls to JSON. The content is omitted if it equals the text.

    >>> turn_to_json(Turn("4", content="4"))
    {'text': '4'}
    """
    row = _to_json(turn)
    if turn.calls:
        row["calls"] = [_to_json(call) for call in turn.calls]
    if turn.content == turn.text:
        row.pop("content", None)
    elif not turn.content:
        row["content"] = ""
    return row


def turn_from_json(row: Mapping[str, Any]) -> Turn:
    """Build a turn from JSON.

    >>> turn_from_json({"text": "4"}).content
    '4'
    """
    calls = tuple(_from_json(Call, {**call, "status": CallStatus(call.get("status", CallStatus.OK))}) for call in row.get("calls", ()))
    return _from_json(Turn, {"content": row["text"], **row, "calls": calls})


def step_result_to_json(step_result: StepResult, previous: ChatRequest | None = None) -> dict[str, Any]:
    """Convert a step result, with its tool results, to JSON. An agent's call is written as what it adds to the `previous` one.

    >>> step_result_to_json(StepResult(done=True))
    {'messages': [], 'done': True}
    """
    row: dict[str, Any] = {"messages": [dict(message) for message in step_result.messages], "done": step_result.done}
    row |= {"tool_results": [_to_json(result) for result in step_result.tool_results]} if step_result.tool_results else {}
    row |= {"request": request_to_json(step_result.request, previous)} if step_result.request is not None else {}
    return row | ({"reward": step_result.reward} if step_result.reward else {})


def step_result_from_json(row: Mapping[str, Any], previous: ChatRequest | None = None) -> StepResult:
    """Build a step result from JSON. Without the `previous` call of an agent, its next one has only the messages that it adds.

    >>> step_result_from_json({"messages": [], "done": True}).tool_results
    ()
    """
    return StepResult(
        tuple(row["messages"]),
        done=row["done"],
        tool_results=tuple(_from_json(ToolResult, result) for result in row.get("tool_results", ())),
        reward=row.get("reward", 0.0),
        request=request_from_json(row["request"], previous) if "request" in row else None,
    )


def load_step_results(record: Mapping[str, Any]) -> list[StepResult]:
    """Build the step results of a session record, with the whole conversation in each call of an agent."""
    previous = request_from_json(record["first_request"]) if "first_request" in record else None
    found = list[StepResult]()
    for row in record["step_results"]:
        found.append(step_result_from_json(row, previous))
        previous = found[-1].request or previous
    return found


def request_to_json(request: ChatRequest, previous: ChatRequest | None = None) -> dict[str, Any]:
    """Convert a call of an agent to JSON: its messages after those that the `previous` one has, too; and its tools, if they are others.

    >>> first = ChatRequest(({"role": "user", "content": "2+2="},))
    >>> request_to_json(ChatRequest((*first.messages, {"role": "user", "content": "?"})), first)
    {'same': 1, 'messages': [{'role': 'user', 'content': '?'}]}
    """
    before = previous.messages if previous is not None else ()
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(before, request.messages, strict=False))
    same = sum(1 for _ in pairs)
    row: dict[str, Any] = {"same": same, "messages": [dict(message) for message in request.messages[same:]]}
    if request.tools != (previous.tools if previous is not None else ()):
        row["tools"] = [tool_spec_to_json(tool) for tool in request.tools]
    return (
        row
        | ({"max_tokens": request.max_tokens} if request.max_tokens is not None else {})
        | ({"stop": list(request.stop)} if request.stop else {})
    )


def request_from_json(row: Mapping[str, Any], previous: ChatRequest | None = None) -> ChatRequest:
    """Build a call of an agent from JSON.

    >>> request_from_json({"same": 0, "messages": [{"role": "user", "content": "2+2="}]}).tools
    ()
    """
    before = previous.messages[: row["same"]] if previous is not None else ()
    tools = previous.tools if previous is not None and "tools" not in row else map(tool_spec_from_json, row.get("tools", ()))
    messages = tuple(row["messages"])
    if not all(isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages):
        raise ValueError(f"the messages of a call are {messages!r:.80}; each must have a role")
    return ChatRequest((*before, *messages), tuple(tools), row.get("max_tokens"), tuple(row.get("stop", ())))


def tool_spec_to_json(tool: ToolSpec) -> dict[str, Any]:
    """Convert a tool spec to JSON.

    >>> tool_spec_to_json(ToolSpec("now", "The time."))["name"]
    'now'
    """
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def tool_spec_from_json(row: Mapping[str, Any]) -> ToolSpec:
    """Build a tool spec from JSON.

    >>> tool_spec_from_json({"name": "now", "description": "The time.", "parameters": {}}).name
    'now'
    """
    return _from_json(ToolSpec, row)


def _to_json(record: Call | ToolResult | Turn) -> dict[str, Any]:
    row = asdict(record)
    return {field.name: row[field.name] for field in fields(record) if field.default != row[field.name] and field.name != "calls"}


def _from_json(kind: type[R], row: Mapping[str, Any]) -> R:
    known = {field.name for field in fields(kind)}
    if "usage" in row and "usage" in known:
        row = {**row, "usage": tuple(row["usage"])}
    return kind(**{key: value for key, value in row.items() if key in known})
