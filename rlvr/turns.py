"""Records of a policy's turn and of the results of its tool calls, independent of tokens, models and sandboxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

EMPTY_PARAMETERS_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool for the policy: its name, what it does, and the schema of its arguments.

    Constant during a conversation.

    >>> ToolSpec("now", "The time of day.").to_openai_format()["function"]["name"]
    'now'
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(EMPTY_PARAMETERS_SCHEMA))
    """JSON Schema of the arguments, in the subset that `rlvr.contracts.schema` validates."""

    def to_openai_format(self) -> dict[str, Any]:
        """Convert to the OpenAI format, which chat templates and chat servers expect."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


class CallStatus(StrEnum):
    """Whether a call can be executed; if not, the first problem with it."""

    OK = "ok"
    IN_THOUGHT = "in_thought"
    """Written inside the reasoning. Such a call is not executed."""
    UNCLOSED = "unclosed"
    """The turn ended before the call was complete."""
    BAD_JSON = "bad_json"
    """The arguments are not JSON, or not the values that the dialect uses instead."""
    MALFORMED = "malformed"
    """The marks of the dialect are there, in the wrong order or number."""
    NO_NAME = "no_name"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    """Parsed, but rejected by the schema: an argument is missing, unknown or of another type."""


STATUS_MESSAGES: Mapping[CallStatus, str] = {
    CallStatus.IN_THOUGHT: "It is inside the reasoning. Finish the reasoning first, then write the call",
    CallStatus.UNCLOSED: "It is not complete. Write the whole call, to its closing mark",
    CallStatus.BAD_JSON: "Its arguments cannot be read. Write them again",
    CallStatus.MALFORMED: "It is not in the expected form. Write it again",
    CallStatus.NO_NAME: "It does not name a tool. Write the name of the tool",
    CallStatus.UNKNOWN_TOOL: "There is no such tool. Use one of the tools you were given",
    CallStatus.BAD_ARGUMENTS: "Its arguments are not what the tool accepts. Correct them",
}
"""The message to the policy for each status, before the detail."""
UNREADABLE_STATUSES = frozenset({CallStatus.UNCLOSED, CallStatus.BAD_JSON, CallStatus.MALFORMED, CallStatus.NO_NAME})
"""The statuses of calls that could not be parsed: their form is wrong, independent of the tools."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call, parsed from a turn.

    >>> Call("0.0", "search", status=CallStatus.UNKNOWN_TOOL, error_detail="'search' is unknown; allowed: calculator").error_message
    "Error: this call was not run. There is no such tool. Use one of the tools you were given: 'search' is unknown; allowed: calculator."
    """

    id: str
    """The turn and the call within it, counted from 0: "2.1"."""
    name: str
    arguments: Mapping[str, Any] | None = None
    """None if they could not be parsed."""
    status: CallStatus = CallStatus.OK
    raw: str = ""
    """The part of the turn that was parsed as this call."""
    error_detail: str = ""
    """The details of the problem, if the call cannot be executed."""

    @property
    def error_message(self) -> str:
        """The error message that the policy receives instead of a result. Empty for a call that can be executed."""
        if self.status is CallStatus.OK:
            return ""
        detail = f": {self.error_detail}" if self.error_detail else ""
        return f"Error: this call was not run. {STATUS_MESSAGES[self.status]}{detail}."


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy, split into content, reasoning and calls.

    >>> Turn("4", content="4").calls_needing_result_or_error
    ()
    """

    text: str
    content: str = ""
    """The visible text, without reasoning and calls."""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: Literal["stop", "length"] = "stop"
    usage: tuple[int, int] = (0, 0)
    """The number of tokens of its prompt and its own, where an agent is told them."""

    @property
    def calls_needing_result_or_error(self) -> tuple[Call, ...]:
        """The calls that need a result or an error message. If there are none, the turn is an answer.

        A call inside the reasoning counts only if the turn has nothing else: reasoning about a call is not an error.
        """
        outside = tuple(call for call in self.calls if call.status is not CallStatus.IN_THOUGHT)
        return outside if outside or self.content.strip() else self.calls

    @property
    def has_malformed_call(self) -> bool:
        """Whether a call could not be parsed. A parsed call that cannot be executed (an unknown tool) does not count."""
        return any(call.status in UNREADABLE_STATUSES for call in self.calls_needing_result_or_error)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call.

    >>> ToolResult("0.0", "4", ok=True).done
    False
    """

    call: str
    """The id of the call."""
    text: str
    """The text that the policy receives."""
    ok: bool
    duration_s: float = 0.0
    truncated: bool = False
    """True if `text` is shorter than the output of the tool."""
    done: bool = False
    """True if the conversation ends here; `text` is then the answer."""


def extract_final_text(completion: object) -> str:
    """Extract the final text of the policy: the last message, if it is from the assistant and has no tool calls; else "".

    The output of a tool is never an answer.

    >>> extract_final_text([{"role": "assistant", "content": "4"}, {"role": "tool", "content": "5"}])
    ''
    """
    if isinstance(completion, str):
        return completion
    messages: list[Mapping[str, Any]] = list(completion) if isinstance(completion, Sequence) else [{}]
    if not isinstance(completion, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise TypeError(f"a completion is {completion!r:.80}; it must be a text or a list of messages")
    last = messages[-1] if messages else {}
    said: Any = last.get("content") if last.get("role") == "assistant" and not last.get("tool_calls") else ""
    if not isinstance(said, str | None):
        said = "".join(str(part.get("text", "")) for part in said)
    return said or ""
