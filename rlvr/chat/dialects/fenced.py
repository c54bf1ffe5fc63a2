"""The dialect `fenced`, for base models and templates without tools: a fenced block whose first line names the tool."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.chat.dialects.dialect import CallScanResult, Dialect, RawCall
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_complete_value
from rlvr.turns import Call, CallStatus, ToolSpec

FENCE_PATTERN = re.compile(r"(`{3,64})([^`\n]*)(\n|$)")


class NamedFenceDialect(Dialect):
    """A block fenced with three or more backticks, with the tool's name after the first fence.

    For a tool with a single string argument the block is the argument; for any other tool it is a JSON object.
    A fence that does not name a tool is part of the content: code in an answer is not a call.
    """

    name = "fenced"
    description = "base models: a fenced block that names the tool"
    open_marks = ("```",)
    close_marks = ("```",)
    is_plain_text = True

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call; the fence is longer than any in the text."""
        return "\n".join(self._format_block(call, tools) for call in calls)

    def _format_block(self, call: Call, tools: Sequence[ToolSpec]) -> str:
        key = _find_single_text_argument(call.name, tools)
        given = dict(call.arguments or {})
        body = given[key] if key in given and len(given) == 1 else format_json(given)
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
        return f"{fence}{call.name}\n{body}\n{fence}"

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse from a fence at the start of a line to the same fence at the start of another line."""
        begins = start == 0 or text[start - 1] == "\n" or any(text.endswith(close, 0, start) for _, close in self.reasoning_marks)
        fence = FENCE_PATTERN.match(text, start) if begins else None
        name = fence.group(2).strip() if fence else ""
        if fence is None or name not in {spec.name for spec in tools}:
            return None
        close = re.compile(rf"^{fence.group(1)}[ \t]*$", re.MULTILINE).search(text, fence.end())
        if close is None:
            return self.build_unclosed_result(text, name)
        body = text[fence.end() : max(fence.end(), close.start() - 1)]
        key = _find_single_text_argument(name, tools)
        if key:
            return CallScanResult((RawCall(name, {key: body}),), close.end())
        try:
            return CallScanResult((RawCall(name, parse_complete_value(body) if body.strip() else {}),), close.end())
        except ValueSyntaxError as broken:
            return CallScanResult((RawCall(name, None, CallStatus.BAD_JSON, str(broken)),), close.end())


def _find_single_text_argument(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return the argument of a tool with a single string argument; '' for any other tool."""
    properties = next((spec.parameters.get("properties") or {} for spec in tools if spec.name == name), {})
    key = next(iter(properties), "")
    return key if len(properties) == 1 and properties[key].get("type") == "string" else ""
