"""Convert a conversation to messages: from its state, from the record of its session, or from the tokens of a stored row.

Tokens are decoded strictly: if this tokenizer renders the prompt or a reply differently, there is no result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rlvr.contracts import ChatPrompt, StepResult, Tokenizer
from rlvr.contracts.chat_request import build_assistant_message
from rlvr.errors import RlvrError
from rlvr.mdp.records import load_step_results, request_from_json, turn_from_json
from rlvr.mdp.state import ConversationState
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.task import Message
from rlvr.turns import Call, Turn

REPLY_PLACEHOLDER = "0"
"""A placeholder for a reply, to find the text that a tokenizer puts around one."""


def decode_messages_after_prompt(row: Mapping[str, Any], tokenizer: Tokenizer) -> list[dict[str, str]] | None:
    """Decode the messages after the prompt: alternating policy turns and replies; None if the tokens do not match the tokenizer."""
    try:
        given = tokenizer.render(row["prompt"])
        if row["tokens"][: len(given)] != given:
            return None
        before, _, after = tokenizer.decode(tokenizer.render_environment_reply(REPLY_PLACEHOLDER)).partition(REPLY_PLACEHOLDER)
        turns = []
        later = list(zip(row["tokens"], row["action_mask"], strict=True))[len(given) :]
        for own, stretch in groupby(later, key=lambda pair: bool(pair[1])):
            ids = [token for token, _ in stretch]
            text = tokenizer.decode(ids)
            if not own:
                text = text.removeprefix(before).removesuffix(after)
                if tokenizer.render_environment_reply(text) != ids:
                    return None
            turns.append({"role": "assistant" if own else "user", "content": text})
    except (IndexError, OverflowError, ValueError):  # ids that this tokenizer does not have
        return None
    return turns


def build_chat_prompt(state: ConversationState) -> ChatPrompt | None:
    """Build the chat prompt of a conversation with tools or initial messages; None for others, whose tokens are sufficient."""
    session_handle = state.session_handle
    if state.request is not None:
        return ChatPrompt(state.request.messages, state.request.tools)
    if session_handle is None or not (session_handle.tools or session_handle.initial_messages):
        return None
    return ChatPrompt(
        (*state.task.prompt, *_build_chat_messages(session_handle.initial_messages, state.turns, state.step_results)), session_handle.tools
    )


def load_messages_after_prompt(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Load the messages after the prompt, up to the policy's last turn, from a session record; None if it has no turns. Of an agent's
    conversation these are all that it sent with its last call, and the turn that answers it.

    >>> load_messages_after_prompt({"turns": [{"text": "4"}], "step_results": [{"messages": [], "done": True}]})
    [{'role': 'assistant', 'content': '4'}]
    """
    if not record.get("turns"):
        return None
    turns, heard = list(map(turn_from_json, record["turns"])), load_step_results(record)
    if "first_request" in record:
        requests = [request_from_json(record["first_request"]), *(step_result.request for step_result in heard if step_result.request)]
        last = requests[len(turns) - 1 : len(turns)]
        return [*map(dict, last[0].messages), build_assistant_message(turns[-1], last[0])] if last else None
    return _build_chat_messages(record.get("initial_messages", ()), turns, heard[: len(turns) - 1])


def _build_chat_messages(
    initial_messages: Sequence[Message], turns: Sequence[Turn], step_results: Sequence[StepResult]
) -> list[dict[str, Any]]:
    """Build the initial messages, policy turns and replies in the format of chat servers.

    >>> _build_chat_messages((), [Turn("4", content="4")], [])
    [{'role': 'assistant', 'content': '4'}]
    """
    found: list[dict[str, Any]] = [dict(message) for message in initial_messages]
    for place, turn in enumerate(turns):
        calls = [
            {"id": _format_tool_call_id(call.id), "type": "function", "function": {"name": call.name, "arguments": _format_arguments(call)}}
            for call in turn.calls_needing_result_or_error
        ]
        found.append({"role": "assistant", "content": turn.content if calls else turn.text} | ({"tool_calls": calls} if calls else {}))
        for message in step_results[place].messages if place < len(step_results) else ():
            given: dict[str, Any] = dict(message)
            found.append(given | ({"tool_call_id": _format_tool_call_id(given["tool_call_id"])} if "tool_call_id" in given else {}))
    return found


def _format_tool_call_id(call_id: str) -> str:
    """Convert the id of a call to nine letters and digits, as some servers require.

    >>> _format_tool_call_id("2.1")
    'call00201'
    """
    turn, _, number = call_id.partition(".")
    return f"call{turn:0>3}{number:0>2}"


def _format_arguments(call: Call) -> str:
    return call.raw if call.arguments is None else json.dumps(dict(call.arguments), ensure_ascii=False)


def load_tokenizer_or_none(spec: str) -> Tokenizer | None:
    """Load the tokenizer of a stored run; None if it is not on this machine. Policies without a tokenizer use bytes."""
    try:
        return load_tokenizer(spec if spec.startswith(("chars", "bytes")) or Path(spec).is_dir() else "bytes")
    except (RlvrError, OSError):
        return None
