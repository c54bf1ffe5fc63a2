"""The Mistral dialects: `[TOOL_CALLS]` followed by a JSON list of calls (older models), or by a name with its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.chat.dialects.dialect import TOOL_NAME_PATTERN, CallScanResult, Dialect, RawCall
from rlvr.chat.dialects.hermes import build_raw_call
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_value, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec

HEAD_PATTERN = re.compile(r"\s*([\w.\-]+)\s*(?:\[CALL_ID\]\w{0,64})?(?:\[ARGS\])?\s*", re.ASCII)


class MistralDialect(Dialect):
    """`[TOOL_CALLS]N[ARGS]{...}`, and the list `[TOOL_CALLS][{"name": ..., "arguments": ...}]` of older models: both are parsed."""

    name = "mistral"
    description = "Mistral since 2025: [TOOL_CALLS]name[ARGS]{...}"
    open_marks = ("[TOOL_CALLS]",)
    reasoning_marks = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))
    template_signatures: tuple[tuple[str, ...], ...] = (("[TOOL_CALLS]", "[ARGS]"),)

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one mark per call."""
        return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{format_json(dict(call.arguments or {}))}" for call in calls)

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse a list, or a name and an object."""
        body = skip_whitespace(text, start + len(self.open_marks[0]))
        if text.startswith("[", body) or text.startswith("{", body):
            return self._parse_list(text, body)
        head = HEAD_PATTERN.match(text, body)
        if not head or not TOOL_NAME_PATTERN.fullmatch(head.group(1)):
            if body >= len(text):
                return self.build_unclosed_result(text)
            return self._extend_to_next_call(
                text, body, RawCall("", None, CallStatus.NO_NAME, "[TOOL_CALLS] must be followed by the name of a tool")
            )
        try:
            given, end = parse_value(text, head.end())
        except ValueSyntaxError as broken:
            return self._build_broken_call(text, head.end(), head.group(1), broken)
        return CallScanResult((RawCall(head.group(1), given),), end)

    def _parse_list(self, text: str, at: int) -> CallScanResult:
        try:
            given, end = parse_value(text, at)
        except ValueSyntaxError as broken:
            return self._build_broken_call(text, at, "", broken)
        calls = given if isinstance(given, list) else [given]
        empty = RawCall("", None, CallStatus.MALFORMED, "the list has no call")
        return CallScanResult(tuple(build_raw_call(call) for call in calls) or (empty,), end)

    def _build_broken_call(self, text: str, at: int, name: str, error: ValueSyntaxError) -> CallScanResult:
        if error.truncated:
            return self.build_unclosed_result(text, name)
        return self._extend_to_next_call(text, at, RawCall(name, None, CallStatus.BAD_JSON, str(error)))

    def _extend_to_next_call(self, text: str, position: int, malformed_call: RawCall) -> CallScanResult:
        """Build the result for a malformed call, whose text ends at the next call or at the end of the turn."""
        following = text.find(self.open_marks[0], position)
        return CallScanResult((malformed_call,), len(text) if following < 0 else following)


class MistralListDialect(MistralDialect):
    """The older format, `[TOOL_CALLS]` and a JSON list; the parser is shared."""

    name = "mistral_list"
    description = "Mistral up to 2024: [TOOL_CALLS] and a JSON list"
    template_signatures = (("[TOOL_CALLS]",),)

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one list of all calls."""
        listed = [{"name": call.name, "arguments": dict(call.arguments or {})} for call in calls]
        return f"[TOOL_CALLS] {format_json(listed)}" if listed else ""
