"""Convert the recorded session of an episode into the conversation on its page: turns, calls with their results, and replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Heard
from rlvr.mdp.records import heard_from, turn_from
from rlvr.turns import Call, CallStatus, Result, Turn


def conversation_of(session: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert a recorded session into its tools, opening messages and turns; None if it has no turns, as in records of earlier versions.

    >>> conversation_of({"turns": [{"text": "4"}], "heard": []})
    {'tools': [], 'opening': [], 'turns': [{'said': '4'}]}
    """
    if not session.get("turns"):
        return None
    turns, heard = [turn_from(row) for row in session["turns"]], [heard_from(row) for row in session["heard"]]
    return {
        "tools": [[str(tool["name"]), str(tool["description"])] for tool in session.get("tools", ())],
        "opening": [_message(message) for message in session.get("opening", ())],
        "turns": [_turn(turn, heard[place] if place < len(heard) else Heard(over=True)) for place, turn in enumerate(turns)],
    }


def _turn(turn: Turn, heard: Heard) -> dict[str, Any]:
    """Convert a turn with the replies to it. Empty fields are left out."""
    results = {result.call: result for result in heard.results}
    shown = {
        "said": turn.content if turn.calls or turn.reasoning else turn.text,
        "reasoning": turn.reasoning,
        "cut": turn.finish == "length",
        "calls": [_call(call, results.get(call.id), ran=call in turn.pending) for call in turn.calls],
        "replies": [_message(message) for message in heard.messages if message["role"] != "tool" or not heard.results],
    }
    if turn.text.strip() != str(shown["said"]).strip():
        shown["raw"] = turn.text
    return {name: value for name, value in shown.items() if value}


def _call(call: Call, result: Result | None, *, ran: bool) -> dict[str, Any]:
    """Convert a call: its state in words, its arguments, and the text that the policy received."""
    if call.status is not CallStatus.OK:
        state = "not run: " + call.status.value.replace("_", " ")
    elif result is None:
        state = "no result" if ran else "not run"
    else:
        state = "ok" if result.ok else "error"
    shown: dict[str, Any] = {"name": call.name, "state": state, "why": call.why}
    shown["arguments"] = [[str(name), _plain(value)] for name, value in call.arguments.items()] if call.arguments is not None else call.raw
    if result is not None:
        shown |= {"output": result.text, "seconds": round(result.seconds, 4), "cut": result.cut, "over": result.over}
    return {name: value for name, value in shown.items() if value}


def _message(message: Mapping[str, Any]) -> Sequence[str]:
    return [str(message["role"]), _plain(message["content"])]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
