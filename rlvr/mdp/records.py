"""Conversion of turns, calls, results and tools to plain JSON and back. Fields with default values are omitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from rlvr.contracts import Heard
from rlvr.turns import Call, CallStatus, Result, ToolSpec, Turn

R = TypeVar("R", Call, Result, ToolSpec, Turn)


def turn_row(turn: Turn) -> dict[str, Any]:
    """Convert a turn with its calls to JSON. The content is omitted if it equals the text.

    >>> turn_row(Turn("4", content="4"))
    {'text': '4'}
    """
    row = _row(turn)
    if turn.calls:
        row["calls"] = [_row(call) for call in turn.calls]
    if turn.content == turn.text:
        row.pop("content", None)
    elif not turn.content:
        row["content"] = ""
    return row


def turn_from(row: Mapping[str, Any]) -> Turn:
    """Build a turn from JSON.

    >>> turn_from({"text": "4"}).content
    '4'
    """
    calls = tuple(_from(Call, {**call, "status": CallStatus(call.get("status", CallStatus.OK))}) for call in row.get("calls", ()))
    return _from(Turn, {"content": row["text"], **row, "calls": calls})


def heard_row(heard: Heard) -> dict[str, Any]:
    """Convert a step result, with its tool results, to JSON.

    >>> heard_row(Heard(over=True))
    {'messages': [], 'over': True}
    """
    row: dict[str, Any] = {"messages": [dict(message) for message in heard.messages], "over": heard.over}
    return row | ({"results": [_row(result) for result in heard.results]} if heard.results else {})


def heard_from(row: Mapping[str, Any]) -> Heard:
    """Build a step result from JSON.

    >>> heard_from({"messages": [], "over": True}).results
    ()
    """
    return Heard(tuple(row["messages"]), over=row["over"], results=tuple(_from(Result, result) for result in row.get("results", ())))


def tool_row(tool: ToolSpec) -> dict[str, Any]:
    """Convert a tool spec to JSON.

    >>> tool_row(ToolSpec("now", "The time."))["name"]
    'now'
    """
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def tool_from(row: Mapping[str, Any]) -> ToolSpec:
    """Build a tool spec from JSON.

    >>> tool_from({"name": "now", "description": "The time.", "parameters": {}}).name
    'now'
    """
    return _from(ToolSpec, row)


def _row(record: Call | Result | Turn) -> dict[str, Any]:
    row = asdict(record)
    return {field.name: row[field.name] for field in fields(record) if field.default != row[field.name] and field.name != "calls"}


def _from(kind: type[R], row: Mapping[str, Any]) -> R:
    known = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in row.items() if key in known})
