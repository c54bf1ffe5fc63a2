"""The Hermes dialect (Hermes, Qwen2.5, Qwen3): a JSON object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.dialects.dialect import CallScanResult, Dialect, RawCall
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_value, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec


def build_raw_call(call_object: Any, argument_keys: Sequence[str] = ("arguments", "parameters")) -> RawCall:
    """Build a raw call from an object with a name and arguments.

    >>> build_raw_call({"name": "now", "arguments": {}})
    RawCall(name='now', arguments={}, status=<CallStatus.OK: 'ok'>, error_detail='', is_untyped=False)
    """
    if not isinstance(call_object, Mapping):
        return RawCall("", None, CallStatus.MALFORMED, 'it must be an object with "name" and "arguments"')
    name = call_object.get("name")
    if not isinstance(name, str) or not name:
        return RawCall("", None, CallStatus.NO_NAME, 'the object has no "name" that is a string')
    given = [key for key in argument_keys if key in call_object]
    if len(given) > 1:
        return RawCall(name, None, CallStatus.MALFORMED, f"it has {' and '.join(given)}; only one of them is allowed")
    return RawCall(name, call_object[given[0]] if given else {})


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

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse a call. It ends with its JSON value, whose strings may contain any mark."""
        body = start + len(self.open_marks[0])
        try:
            found, end = parse_value(text, body)
        except ValueSyntaxError as broken:
            return self._build_broken_call(text, body, broken)
        after = skip_whitespace(text, end)
        if text.startswith(self.close_mark, after):
            return CallScanResult((build_raw_call(found),), after + len(self.close_mark))
        if after >= len(text) or self.close_mark.startswith(text[after:]):
            return self.build_unclosed_result(text, build_raw_call(found).name)
        close = text.find(self.close_mark, after)
        why = f"the JSON is followed by {text[after : after + 20]!r} instead of {self.close_mark}"
        return CallScanResult(
            (RawCall(build_raw_call(found).name, None, CallStatus.MALFORMED, why),),
            len(text) if close < 0 else close + len(self.close_mark),
        )

    def _build_broken_call(self, text: str, start: int, error: ValueSyntaxError) -> CallScanResult:
        close = text.find(self.close_mark, start)
        if close < 0:
            return self.build_unclosed_result(text)
        return CallScanResult((RawCall("", None, CallStatus.BAD_JSON, str(error)),), close + len(self.close_mark))
