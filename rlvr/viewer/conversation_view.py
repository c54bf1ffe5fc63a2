"""Convert the recorded session of an episode into the conversation on its page: turns, calls with their results, and replies."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from rlvr.contracts import StepResult
from rlvr.contracts.chat_request import ChatRequest
from rlvr.mdp.records import load_step_results, request_from_json, tool_spec_to_json, turn_from_json
from rlvr.turns import Call, CallStatus, ToolResult, Turn

MAX_LEFT_CHARS = 20_000
"""Maximum length in characters of one value or file of a session on the page."""


def build_conversation_view(session: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert a recorded session into plain data for the page: tools, initial messages, turns and artifacts; None if it has no turns.

    >>> build_conversation_view({"turns": [{"text": "4"}], "step_results": []})
    {'tools': [], 'opening': [], 'turns': [{'said': '4'}]}
    """
    if not session.get("turns"):
        return None
    turns, heard = [turn_from_json(row) for row in session["turns"]], load_step_results(session)
    first = request_from_json(session["first_request"]) if "first_request" in session else None
    opening = session.get("initial_messages", ()) if first is None else first.messages
    tools = session.get("tools", ()) if first is None else [tool_spec_to_json(tool) for tool in first.tools]
    if first is not None:
        heard = _show_requests_as_replies(first, heard)
    values = [(name, _to_text(value)) for name, value in (session.get("values") or {}).items()]
    files = [(name, _decode_file(text)) for name, text in (session.get("files") or {}).items()]
    left = [[str(name), text if len(text) <= MAX_LEFT_CHARS else f"{text[:MAX_LEFT_CHARS]} ..."] for name, text in (*values, *files)]
    return ({"left": left} if left else {}) | {
        "tools": [[str(tool["name"]), str(tool["description"])] for tool in tools],
        "opening": [_format_message(message) for message in opening],
        "turns": [_format_turn(turn, heard[place] if place < len(heard) else StepResult(done=True)) for place, turn in enumerate(turns)],
    }


def _show_requests_as_replies(first: ChatRequest, step_results: Sequence[StepResult]) -> list[StepResult]:
    """Show each call of an agent as the messages that it adds to the call before; say where it continues something else."""
    found, earlier = list[StepResult](), [first]
    for step_result in step_results:
        if (request := step_result.request) is None:
            found.append(step_result)
            continue
        known, number = max((_count_common(request.messages, other.messages), number) for number, other in enumerate(earlier))
        added = list(request.messages[known:])
        is_continued = number == len(earlier) - 1 and known == len(earlier[-1].messages) and added and added[0]["role"] == "assistant"
        if is_continued:
            added = added[1:]  # the turn itself
        else:
            where = f"after message {known} of call {number + 1}" if known else "from nothing"
            added.insert(0, {"role": "another branch", "content": f"the agent goes on {where}"})
        found.append(StepResult(tuple(_add_calls_to_content(message) for message in added), done=step_result.done, request=request))
        earlier.append(request)
    return found


def _count_common(messages: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(messages, others, strict=False)))


def _add_calls_to_content(message: Mapping[str, Any]) -> Any:
    """Show the calls in a message that the agent wrote as text."""
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()]
    return {"role": str(message["role"]), "content": "\n".join(filter(None, (_to_text(message["content"]), *calls)))}


def _format_turn(turn: Turn, step_result: StepResult) -> dict[str, Any]:
    """Convert a turn with the replies to it. Empty fields are left out."""
    results = {result.call: result for result in step_result.tool_results}
    shown = {
        "said": turn.content if turn.calls or turn.reasoning else turn.text,
        "reasoning": turn.reasoning,
        "cut": turn.finish_reason == "length",
        "calls": [_format_call(call, results.get(call.id), was_run=call in turn.calls_needing_result_or_error) for call in turn.calls],
        "replies": [
            _format_message(message) for message in step_result.messages if message["role"] != "tool" or not step_result.tool_results
        ],
    }
    if turn.text.strip() != str(shown["said"]).strip():
        shown["raw"] = turn.text
    return {name: value for name, value in shown.items() if value}


def _format_call(call: Call, result: ToolResult | None, *, was_run: bool) -> dict[str, Any]:
    """Convert a call: its state in words, its arguments, and the text that the policy received."""
    if call.status is not CallStatus.OK:
        state = "not run: " + call.status.value.replace("_", " ")
    elif result is None:
        state = "no result" if was_run else "not run"
    else:
        state = "ok" if result.ok else "error"
    shown: dict[str, Any] = {"name": call.name, "state": state, "why": call.error_detail}
    shown["arguments"] = (
        [[str(name), _to_text(value)] for name, value in call.arguments.items()] if call.arguments is not None else call.raw
    )
    if result is not None:
        shown |= {"output": result.text, "duration_s": round(result.duration_s, 4), "cut": result.truncated, "over": result.done}
    return {name: value for name, value in shown.items() if value}


def _decode_file(encoded: str) -> str:
    """Decode a file of the artifacts for the page; of other bytes than text, say how many there are."""
    content = base64.b64decode(encoded)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(content):,} bytes that are no text"


def _format_message(message: Mapping[str, Any]) -> Sequence[str]:
    return [str(message["role"]), _to_text(message["content"])]


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
