"""Tool calls over a chat endpoint: reported by the endpoint (`tool_calls`), or written in its text in a dialect."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.dialects.dialect import Dialect, UnwritableCallError
from rlvr.chat.openai_calls import build_turn_with_calls
from rlvr.contracts import ChatPrompt, Request, Tokenizer
from rlvr.mdp.tokenizers import EOS, POLICY, USER
from rlvr.samplers._chat import ChatReply
from rlvr.turns import Call, ToolSpec, Turn


def parse_tool_turn(reply: ChatReply, request: Request) -> Turn:
    """Make a turn from the calls that a chat server has parsed. The content is not searched for calls.

    Raises TypeError if the calls are not in the usual format.
    """
    message, content, cut = reply.message, reply.text, reply.truncated
    older = message.get("function_call")  # the legacy field has one call at most
    calls = message.get("tool_calls") or ([{"function": older}] if older else [])
    tools = request.chat_prompt.tools if request.chat_prompt else ()
    return build_turn_with_calls(content, calls, tools, request.turn, reasoning=reply.reasoning, truncated=cut)


def parse_text_turn(reply: ChatReply, request: Request, dialect: Dialect) -> Turn:
    """Parse a turn whose calls are written in its text.

    If the dialect writes plain text, the turn ends at its first complete call.
    """
    tools = request.chat_prompt.tools if request.chat_prompt else ()
    text, cut = reply.text, reply.truncated
    if dialect.is_plain_text:
        ends = [place + 1 for place, sign in enumerate(text) if sign == "\n"]
        first = bisect_left(ends, True, key=lambda end: dialect.has_complete_call(text[:end], tools))
        whole_call = text if first == len(ends) else text[: ends[first]]
        text, cut = whole_call, cut and first == len(ends)
    turn = dialect.parse_turn(text, tools, turn=request.turn, finish_reason="length" if cut else "stop")
    return Turn(turn.text, turn.content, reply.reasoning or turn.reasoning, turn.calls, turn.finish_reason)


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
            message = {
                "role": "user",
                "content": dialect.format_result_as_user_message(str(message.get("name", "tool")), str(message["content"])),
            }
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


def decode_messages_by_role_tokens(request: Request, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the messages so far: the task's prompt, then the decoded turns. The tokenizer must be one with role tokens (`chars`, `bytes`)."""
    assert request.task is not None
    messages = [dict(message) for message in request.task.prompt]
    later = list(request.prompt[len(tokenizer.render(request.task.prompt)) :])
    role, said = "assistant", list[int]()
    for token in later:
        if token in (USER, POLICY, EOS):
            if said or (role, token) in (("assistant", EOS), ("user", POLICY)):  # a turn may be empty
                messages.append({"role": role, "content": tokenizer.decode(said)})
            role, said = ("user" if token == USER else "assistant"), []
        else:
            said.append(token)
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in messages]
