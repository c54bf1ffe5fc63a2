"""Parse the reply of a chat endpoint: text, reasoning, finish reason and token usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STOP_REASONS = frozenset(
    ("stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete", "completed", "tool_calls", "function_call", "tool_use")
)
LENGTH_REASONS = frozenset(("length", "max_tokens", "max_output_tokens", "model_length"))
"""Finish reasons of endpoints, in lower case: of complete answers (above) and of truncated ones."""
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields of a message that contain the reasoning, if it is separate from the answer."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A parsed chat completion.

    >>> parse_chat_reply({"choices": [{"message": {"content": "4"}}]}, 8).finish_reason
    'stop'
    """

    message: Mapping[str, Any]
    text: str
    """The answer, without the reasoning."""
    reasoning: str
    finish_reason: str
    usage: tuple[int, int]

    @property
    def truncated(self) -> bool:
        """Whether the completion ended at a token limit."""
        return self.finish_reason in LENGTH_REASONS


def parse_chat_reply(body: Any, max_tokens: int) -> ChatReply:
    """Parse a reply. Raises LookupError, TypeError, AttributeError or ValueError if it is not a chat completion.

    Some endpoints give no finish reason. Then an answer with the maximum number of tokens counts as truncated.
    """
    choice, usage = body["choices"][0], parse_usage(body.get("usage"))
    message = choice["message"]
    text, thoughts = _split_content(message)
    apart = next((value for name in REASONING_FIELDS if isinstance(value := message.get(name), str) and value), "")
    unsaid = "length" if usage[1] >= max_tokens else "stop"
    return ChatReply(message, text, apart or thoughts, str(choice.get("finish_reason") or unsaid).lower(), usage)


def is_empty_reply(body: Mapping[str, Any]) -> bool:
    """Return whether a reply holds nothing at all and reports 0 tokens: a policy that says nothing has said at least its end.

    >>> is_empty_reply({"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 0}})
    True
    """
    message, usage = body["choices"][0]["message"], body.get("usage")
    said = [message.get(name) for name in ("content", "refusal", "tool_calls", "function_call", *REASONING_FIELDS)]
    return message.get("content") is None and not any(said) and isinstance(usage, dict) and usage.get("completion_tokens") == 0


def _split_content(message: Mapping[str, Any]) -> tuple[str, str]:
    """Split the content of a message (a string, a list of parts, or null) into text and reasoning. A refusal counts as an answer."""
    content = message.get("content")
    if content is None:
        content = message.get("refusal") or ""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise TypeError("its content is neither a string nor a list of parts")
    found: dict[bool, list[str]] = {False: [], True: []}
    for part in content:
        thought = part.get("type") in ("thinking", "reasoning")
        inside = part.get("thinking" if thought else "text", part.get("text", ""))
        texts = [inside] if isinstance(inside, str) else [str(one.get("text", "")) for one in inside]
        found[thought] += texts
    return "".join(found[False]), "".join(found[True])


def parse_usage(usage: Any) -> tuple[int, int]:
    """Parse the reported input and output tokens, hidden reasoning included; 0 if the endpoint does not report them.

    >>> parse_usage({"prompt_tokens": 12, "completion_tokens": 5}), parse_usage({"prompt_tokens": "?"})
    ((12, 5), (0, 0))
    """
    told = usage if isinstance(usage, dict) else {}
    found = (told.get("prompt_tokens"), told.get("completion_tokens"))
    read, written = (int(count) if isinstance(count, int | float) and 0 <= count < 1e12 else 0 for count in found)
    return read, written
