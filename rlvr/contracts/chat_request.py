"""A call of a model as an agent makes it: the whole conversation so far, in the format of chat servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.turns import UNREADABLE_STATUSES, CallStatus, ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call of the model. Each call brings its whole history, which the agent may have rewritten.

    >>> ChatRequest(({"role": "user", "content": "2+2="},)).tools
    ()
    """

    messages: tuple[Mapping[str, Any], ...]
    """Messages of the roles system, user, assistant and tool, with texts as contents; an assistant's may have `tool_calls`, and a tool's has a
    `tool_call_id`, in OpenAI's format. The last one is not the assistant's.
    """
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """The most tokens of the reply; None: as many as the episode may have."""
    stop: tuple[str, ...] = ()
    """Texts that end the reply, which does not include them."""


def build_assistant_message(turn: Turn, request: ChatRequest, call_prefix: str = "call") -> dict[str, Any]:
    """Build the message that the agent receives for a turn: visible text, reasoning, and calls.

    A call that cannot be parsed stays text, as with a chat server. So does any call if the request has no tools. A call of an unknown tool,
    or with arguments that its schema forbids, is passed on: the agent answers it.

    >>> build_assistant_message(Turn("4", content="4"), ChatRequest(()))
    {'role': 'assistant', 'content': '4'}
    """
    calls = [call for call in turn.calls if call.status is not CallStatus.IN_THOUGHT] if request.tools else []
    readable = [call for call in calls if call.status not in UNREADABLE_STATUSES and call.arguments is not None]
    raw = list(dict.fromkeys(call.raw for call in turn.calls if call not in readable and call.status is not CallStatus.IN_THOUGHT))
    content = "\n".join(filter(None, (turn.content, *raw)))
    for stop in request.stop:
        content = content.partition(stop)[0]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if readable:
        message["tool_calls"] = [
            {
                "id": f"{call_prefix}_{call.id.replace('.', '_')}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments or {}), ensure_ascii=False)},
            }
            for call in readable
        ]
    return message
