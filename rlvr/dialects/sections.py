"""The DeepSeek and Kimi dialects: a call is a start mark, its name, a separator, a JSON object, and an end mark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.dialects.dialect import Dialect, Found, Step
from rlvr.dialects.jsontext import Broken, dumps, skip, value
from rlvr.turns import Call, CallStatus, ToolSpec

LONGEST_HEAD = 400
"""The maximum number of characters between the mark of a call and its arguments."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one family of models.

    >>> MARKS["kimi"].call
    '<|tool_call_begin|>'
    """

    about: str
    section: tuple[str, str]
    """The marks around all calls of a turn."""
    call: str
    separator: str
    close: str
    head: str = "{name}"
    """The text between `call` and `separator`, as written."""
    reads: str = r"\s*([\w.\-]+)\s*"
    """A pattern that parses the text between `call` and `separator`; its group is the name."""
    joint: str = ""
    """The text between two calls."""
    sign: tuple[str, ...] = ()


MARKS = {
    "deepseek_v3": Marks(
        "DeepSeek V3 and R1: own marks, the arguments in a json fence",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call="<｜tool▁call▁begin｜>",
        separator="\n```json\n",
        close="\n```<｜tool▁call▁end｜>",
        head="function<｜tool▁sep｜>{name}",
        reads=r"\s*\w*<｜tool▁sep｜>([\w.\-]+)\s*",
        joint="\n",
        sign=("<｜tool▁call▁begin｜>", "```json"),
    ),
    "deepseek_v31": Marks(
        "DeepSeek V3.1: own marks, bare arguments",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call="<｜tool▁call▁begin｜>",
        separator="<｜tool▁sep｜>",
        close="<｜tool▁call▁end｜>",
        sign=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    ),
    "kimi": Marks(
        "Kimi K2: own marks, the call's number after its name",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call="<|tool_call_begin|>",
        separator="<|tool_call_argument_begin|>",
        close="<|tool_call_end|>",
        head="functions.{name}:{index}",
        reads=r"\s*(?:functions\.)?([\w.\-]+?)(?::\d+)?\s*",
        sign=("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    ),
}


class Sections(Dialect):
    """A dialect defined by one entry of `SECTION_MARKS`."""

    def __init__(self, name: str) -> None:
        """Create the dialect from the entry `name` of `SECTION_MARKS`."""
        marks = MARKS[name]
        self.name, self.about, self.marks = name, marks.about, marks
        self.opens, self.closes, self.drops = (marks.call,), (marks.close.strip(), *marks.section), marks.section
        self.signs = (marks.sign,)
        self._head = re.compile(marks.reads)

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format all calls in one section."""
        m = self.marks
        written = [
            m.call + m.head.format(name=call.name, index=n) + m.separator + dumps(dict(call.arguments or {})) + m.close
            for n, call in enumerate(calls)
        ]
        return m.section[0] + m.joint.join(written) + m.section[1] if written else ""

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse the name up to the separator, the JSON, the closing mark."""
        m = self.marks
        start = at + len(m.call)
        middle = text.find(m.separator, start, start + LONGEST_HEAD)
        if middle < 0:
            return self._without(text, start, "", f"the name must be followed by {m.separator.strip()}")
        head = self._head.fullmatch(text, start, middle)
        name = head.group(1) if head else ""
        try:
            given, end = value(text, middle + len(m.separator))
        except Broken as broken:
            return self._without(text, middle, name, str(broken), CallStatus.BAD_JSON)
        after, close = skip(text, end), m.close.strip()
        if text.startswith(close, after):
            unnamed = Found("", given, CallStatus.NO_NAME, f"there is no name before {m.separator.strip()}")
            return Step((Found(name, given) if name else unnamed,), after + len(close))
        if after >= len(text) or close.startswith(text[after : after + len(close)]):
            return self.unclosed(text, name)
        return self._without(text, after, name, f"the arguments must be followed by {close}")

    def _without(self, text: str, at: int, name: str, why: str, status: CallStatus = CallStatus.MALFORMED) -> Step:
        """Build the result for a call that cannot be parsed, up to its end."""
        close = self.closes[0]
        end = text.find(close, at)
        if end < 0:
            return self.unclosed(text, name)
        return Step((Found(name, None, status, why),), end + len(close))
