"""The Hermes dialect (Hermes, Qwen2.5, Qwen3): a JSON object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.dialects.dialect import Dialect, RawCall, ScanResult
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_value, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec


def raw_call_from_object(parsed: Any, keys: Sequence[str] = ("arguments", "parameters")) -> RawCall:
    """Build a raw call from an object with a name and arguments.

    >>> raw_call_from_object({"name": "now", "arguments": {}})
    RawCall(name='now', arguments={}, status=<CallStatus.OK: 'ok'>, error_detail='', is_untyped=False)
    """
    if not isinstance(parsed, Mapping):
        return RawCall("", None, CallStatus.MALFORMED, 'it must be an object with "name" and "arguments"')
    name = parsed.get("name")
    if not isinstance(name, str) or not name:
        return RawCall("", None, CallStatus.NO_NAME, 'the object has no "name" that is a string')
    given = [key for key in keys if key in parsed]
    if len(given) > 1:
        return RawCall(name, None, CallStatus.MALFORMED, f"it has {' and '.join(given)}; only one of them is allowed")
    return RawCall(name, parsed[given[0]] if given else {})


class HermesDialect(Dialect):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, repeated for several calls."""

    name = "hermes"
    description = "Hermes, Qwen2.5, Qwen3: JSON between <tool_call> marks"
    open_marks = ("<tool_call>",)
    close_mark = "</tool_call>"
    close_marks = (close_mark,)
    template_signatures = (("<tool_call>", '"name"', '"arguments"'),)

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        blocks = (format_json({"name": call.name, "arguments": dict(call.arguments or {})}) for call in calls)
        return "\n".join(f"{self.open_marks[0]}\n{block}\n{self.close_mark}" for block in blocks)

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> ScanResult | None:
        """Parse a call. It ends with its JSON value, whose strings may contain any mark."""
        body = start + len(self.open_marks[0])
        try:
            found, end = parse_value(text, body)
        except ValueSyntaxError as broken:
            return self._build_broken_call(text, body, broken)
        after = skip_whitespace(text, end)
        if text.startswith(self.close_mark, after):
            return ScanResult((raw_call_from_object(found),), after + len(self.close_mark))
        if after >= len(text) or self.close_mark.startswith(text[after:]):
            return self.build_unclosed_result(text, raw_call_from_object(found).name)
        close = text.find(self.close_mark, after)
        why = f"the JSON is followed by {text[after : after + 20]!r} instead of {self.close_mark}"
        return ScanResult(
            (RawCall(raw_call_from_object(found).name, None, CallStatus.MALFORMED, why),),
            len(text) if close < 0 else close + len(self.close_mark),
        )

    def _build_broken_call(self, text: str, start: int, error: ValueSyntaxError) -> ScanResult:
        close = text.find(self.close_mark, start)
        if close < 0:
            return self.build_unclosed_result(text)
        return ScanResult((RawCall("", None, CallStatus.BAD_JSON, str(error)),), close + len(self.close_mark))
