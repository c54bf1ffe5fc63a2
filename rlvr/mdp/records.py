"""Conversion of turns, calls, results and tools to plain JSON and back. Fields with default values are omitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from rlvr.contracts import StepResult
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


def step_result_to_json(step_result: StepResult) -> dict[str, Any]:
    """Convert a step result, with its tool results, to JSON.

    >>> step_result_to_json(StepResult(done=True))
    {'messages': [], 'done': True}
    """
    row: dict[str, Any] = {"messages": [dict(message) for message in step_result.messages], "done": step_result.done}
    row |= {"tool_results": [_to_json(result) for result in step_result.tool_results]} if step_result.tool_results else {}
    return row | ({"reward": step_result.reward} if step_result.reward else {})


def step_result_from_json(row: Mapping[str, Any]) -> StepResult:
    """Build a step result from JSON.

    >>> step_result_from_json({"messages": [], "done": True}).tool_results
    ()
    """
    return StepResult(
        tuple(row["messages"]),
        done=row["done"],
        tool_results=tuple(_from_json(ToolResult, result) for result in row.get("tool_results", ())),
        reward=row.get("reward", 0.0),
    )


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
    return kind(**{key: value for key, value in row.items() if key in known})
