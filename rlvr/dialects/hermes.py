"""The Hermes dialect (Hermes, Qwen2.5, Qwen3): a JSON object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.dialects.dialect import Dialect, Found, Step
from rlvr.dialects.jsontext import Broken, dumps, skip, value
from rlvr.turns import Call, CallStatus, ToolSpec


def named(found: Any, keys: Sequence[str] = ("arguments", "parameters")) -> Found:
    """Build a raw call from an object with a name and arguments.

    >>> named({"name": "now", "arguments": {}})
    Found(name='now', arguments={}, status=<CallStatus.OK: 'ok'>, why='', untyped=False)
    """
    if not isinstance(found, Mapping):
        return Found("", None, CallStatus.MALFORMED, 'it must be an object with "name" and "arguments"')
    name = found.get("name")
    if not isinstance(name, str) or not name:
        return Found("", None, CallStatus.NO_NAME, 'the object has no "name" that is a string')
    given = [key for key in keys if key in found]
    if len(given) > 1:
        return Found(name, None, CallStatus.MALFORMED, f"it has {' and '.join(given)}; only one of them is allowed")
    return Found(name, found[given[0]] if given else {})


class Hermes(Dialect):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, repeated for several calls."""

    name = "hermes"
    about = "Hermes, Qwen2.5, Qwen3: JSON between <tool_call> marks"
    opens = ("<tool_call>",)
    close = "</tool_call>"
    closes = (close,)
    signs = (("<tool_call>", '"name"', '"arguments"'),)

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        blocks = (dumps({"name": call.name, "arguments": dict(call.arguments or {})}) for call in calls)
        return "\n".join(f"{self.opens[0]}\n{block}\n{self.close}" for block in blocks)

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse a call. It ends with its JSON value, whose strings may contain any mark."""
        start = at + len(self.opens[0])
        try:
            found, end = value(text, start)
        except Broken as broken:
            return self._broken(text, start, broken)
        after = skip(text, end)
        if text.startswith(self.close, after):
            return Step((named(found),), after + len(self.close))
        if after >= len(text) or self.close.startswith(text[after:]):
            return self.unclosed(text, named(found).name)
        close = text.find(self.close, after)
        why = f"the JSON is followed by {text[after : after + 20]!r} instead of {self.close}"
        return Step((Found(named(found).name, None, CallStatus.MALFORMED, why),), len(text) if close < 0 else close + len(self.close))

    def _broken(self, text: str, start: int, broken: Broken) -> Step:
        close = text.find(self.close, start)
        if close < 0:
            return self.unclosed(text)
        return Step((Found("", None, CallStatus.BAD_JSON, str(broken)),), close + len(self.close))
