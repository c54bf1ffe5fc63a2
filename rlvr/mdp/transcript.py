"""Convert a conversation to messages: from its state, from the record of its session, or from the tokens of a stored row.

Tokens are decoded strictly: if this tokenizer renders the prompt or a reply differently, there is no result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rlvr.contracts import Heard, Said, Tokenizer
from rlvr.errors import RlvrError
from rlvr.mdp.records import heard_from, turn_from
from rlvr.mdp.state import State
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.task import Message
from rlvr.turns import Call, Turn

MARK = "0"
"""A placeholder for a reply, to find the text that a tokenizer puts around one."""


def messages_of(row: Mapping[str, Any], tokenizer: Tokenizer) -> list[dict[str, str]] | None:
    """Decode the messages after the prompt: alternating policy turns and replies; None if the tokens do not match the tokenizer."""
    try:
        given = tokenizer.render(row["prompt"])
        if row["tokens"][: len(given)] != given:
            return None
        before, _, after = tokenizer.decode(tokenizer.render_reply(MARK)).partition(MARK)
        turns = []
        later = list(zip(row["tokens"], row["acted"], strict=True))[len(given) :]
        for own, stretch in groupby(later, key=lambda pair: bool(pair[1])):
            ids = [token for token, _ in stretch]
            text = tokenizer.decode(ids)
            if not own:
                text = text.removeprefix(before).removesuffix(after)
                if tokenizer.render_reply(text) != ids:
                    return None
            turns.append({"role": "assistant" if own else "user", "content": text})
    except (IndexError, OverflowError, ValueError):  # ids that this tokenizer does not have
        return None
    return turns


def said_so_far(state: State) -> Said | None:
    """Build the chat prompt of a conversation with tools or initial messages; None for others, whose tokens are sufficient."""
    lease = state.lease
    if lease is None or not (lease.tools or lease.opening):
        return None
    return Said((*state.task.prompt, *messages_between(lease.opening, state.turns, state.heard)), lease.tools)


def recorded_messages(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Load the messages after the prompt, up to the policy's last turn, from a session record; None if it has no turns.

    >>> recorded_messages({"turns": [{"text": "4"}], "heard": [{"messages": [], "over": True}]})
    [{'role': 'assistant', 'content': '4'}]
    """
    if not record.get("turns"):
        return None
    turns, heard = list(map(turn_from, record["turns"])), list(map(heard_from, record["heard"]))
    return messages_between(record.get("opening", ()), turns, heard[: len(turns) - 1])


def messages_between(opening: Sequence[Message], turns: Sequence[Turn], heard: Sequence[Heard]) -> list[dict[str, Any]]:
    """Build the initial messages, policy turns and replies in the format of chat servers.

    >>> messages_between((), [Turn("4", content="4")], [])
    [{'role': 'assistant', 'content': '4'}]
    """
    found: list[dict[str, Any]] = [dict(message) for message in opening]
    for place, turn in enumerate(turns):
        calls = [
            {"id": server_id(call.id), "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in turn.pending
        ]
        found.append({"role": "assistant", "content": turn.content if calls else turn.text} | ({"tool_calls": calls} if calls else {}))
        for message in heard[place].messages if place < len(heard) else ():
            given: dict[str, Any] = dict(message)
            found.append(given | ({"tool_call_id": server_id(given["tool_call_id"])} if "tool_call_id" in given else {}))
    return found


def server_id(call: str) -> str:
    """Convert the id of a call to nine letters and digits, as some servers require.

    >>> server_id("2.1")
    'call00201'
    """
    turn, _, number = call.partition(".")
    return f"call{turn:0>3}{number:0>2}"


def _arguments(call: Call) -> str:
    return call.raw if call.arguments is None else json.dumps(dict(call.arguments), ensure_ascii=False)


def tokenizer_of(spec: str) -> Tokenizer | None:
    """Load the tokenizer of a stored run; None if it is not on this machine. Policies without a tokenizer use bytes."""
    try:
        return tokenizer_from(spec if spec.startswith(("chars", "bytes")) or Path(spec).is_dir() else "bytes")
    except (RlvrError, OSError):
        return None
