"""The Mistral dialects: `[TOOL_CALLS]` followed by a JSON list of calls (older models), or by a name with its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.dialects.dialect import NAME, Dialect, Found, Step
from rlvr.dialects.hermes import named
from rlvr.dialects.jsontext import Broken, dumps, skip, value
from rlvr.turns import Call, CallStatus, ToolSpec

HEAD = re.compile(r"\s*([\w.\-]+)\s*(?:\[CALL_ID\]\w{0,64})?(?:\[ARGS\])?\s*", re.ASCII)


class Mistral(Dialect):
    """`[TOOL_CALLS]N[ARGS]{...}`, and the list `[TOOL_CALLS][{"name": ..., "arguments": ...}]` of older models: both are parsed."""

    name = "mistral"
    about = "Mistral since 2025: [TOOL_CALLS]name[ARGS]{...}"
    opens = ("[TOOL_CALLS]",)
    thoughts = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))
    signs: tuple[tuple[str, ...], ...] = (("[TOOL_CALLS]", "[ARGS]"),)

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one mark per call."""
        return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{dumps(dict(call.arguments or {}))}" for call in calls)

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse a list, or a name and an object."""
        start = skip(text, at + len(self.opens[0]))
        if text.startswith("[", start) or text.startswith("{", start):
            return self._list(text, start)
        head = HEAD.match(text, start)
        if not head or not NAME.fullmatch(head.group(1)):
            if start >= len(text):
                return self.unclosed(text)
            return self._to_next(text, start, Found("", None, CallStatus.NO_NAME, "[TOOL_CALLS] must be followed by the name of a tool"))
        try:
            given, end = value(text, head.end())
        except Broken as broken:
            return self._broken(text, head.end(), head.group(1), broken)
        return Step((Found(head.group(1), given),), end)

    def _list(self, text: str, at: int) -> Step:
        try:
            given, end = value(text, at)
        except Broken as broken:
            return self._broken(text, at, "", broken)
        calls = given if isinstance(given, list) else [given]
        empty = Found("", None, CallStatus.MALFORMED, "the list has no call")
        return Step(tuple(named(call) for call in calls) or (empty,), end)

    def _broken(self, text: str, at: int, name: str, broken: Broken) -> Step:
        if broken.cut:
            return self.unclosed(text, name)
        return self._to_next(text, at, Found(name, None, CallStatus.BAD_JSON, str(broken)))

    def _to_next(self, text: str, at: int, found: Found) -> Step:
        """Extend a malformed call to the next call, or to the end of the turn."""
        following = text.find(self.opens[0], at)
        return Step((found,), len(text) if following < 0 else following)


class MistralList(Mistral):
    """The older format, `[TOOL_CALLS]` and a JSON list; the parser is shared."""

    name = "mistral_list"
    about = "Mistral up to 2024: [TOOL_CALLS] and a JSON list"
    signs = (("[TOOL_CALLS]",),)

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one list of all calls."""
        listed = [{"name": call.name, "arguments": dict(call.arguments or {})} for call in calls]
        return f"[TOOL_CALLS] {dumps(listed)}" if listed else ""
