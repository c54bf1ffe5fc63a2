"""The DeepSeek and Kimi dialects: a call is a start mark, its name, a separator, a JSON object, and an end mark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.chat.dialects.dialect import CallScanResult, Dialect, RawCall
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_value, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec

MAX_HEAD_CHARACTERS = 400
"""The maximum number of characters between the mark of a call and its arguments."""


@dataclass(frozen=True, slots=True)
class SectionMarks:
    """The marks of one family of models.

    >>> SECTION_MARKS["kimi"].call
    '<|tool_call_begin|>'
    """

    description: str
    section: tuple[str, str]
    """The marks around all calls of a turn."""
    call: str
    separator: str
    close: str
    head_format: str = "{name}"
    """The text between `call` and `separator`, as written."""
    head_pattern: str = r"\s*([\w.\-]+)\s*"
    """A pattern that parses the text between `call` and `separator`; its group is the name."""
    joiner: str = ""
    """The text between two calls."""
    template_signature: tuple[str, ...] = ()


SECTION_MARKS = {
    "deepseek_v3": SectionMarks(
        "DeepSeek V3 and R1: own marks, the arguments in a json fence",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call="<｜tool▁call▁begin｜>",
        separator="\n```json\n",
        close="\n```<｜tool▁call▁end｜>",
        head_format="function<｜tool▁sep｜>{name}",
        head_pattern=r"\s*\w*<｜tool▁sep｜>([\w.\-]+)\s*",
        joiner="\n",
        template_signature=("<｜tool▁call▁begin｜>", "```json"),
    ),
    "deepseek_v31": SectionMarks(
        "DeepSeek V3.1: own marks, bare arguments",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call="<｜tool▁call▁begin｜>",
        separator="<｜tool▁sep｜>",
        close="<｜tool▁call▁end｜>",
        template_signature=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    ),
    "kimi": SectionMarks(
        "Kimi K2: own marks, the call's number after its name",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call="<|tool_call_begin|>",
        separator="<|tool_call_argument_begin|>",
        close="<|tool_call_end|>",
        head_format="functions.{name}:{index}",
        head_pattern=r"\s*(?:functions\.)?([\w.\-]+?)(?::\d+)?\s*",
        template_signature=("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    ),
}


class SectionDialect(Dialect):
    """A dialect defined by one entry of `SECTION_MARKS`."""

    def __init__(self, name: str) -> None:
        """Create the dialect from the entry `name` of `SECTION_MARKS`."""
        marks = SECTION_MARKS[name]
        self.name, self.description, self.marks = name, marks.description, marks
        self.open_marks, self.close_marks, self.ignored_marks = (marks.call,), (marks.close.strip(), *marks.section), marks.section
        self.template_signatures = (marks.template_signature,)
        self._head_pattern = re.compile(marks.head_pattern)

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format all calls in one section."""
        m = self.marks
        written = [
            m.call + m.head_format.format(name=call.name, index=n) + m.separator + format_json(dict(call.arguments or {})) + m.close
            for n, call in enumerate(calls)
        ]
        return m.section[0] + m.joiner.join(written) + m.section[1] if written else ""

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse the name up to the separator, the JSON, the closing mark."""
        m = self.marks
        body = start + len(m.call)
        middle = text.find(m.separator, body, body + MAX_HEAD_CHARACTERS)
        if middle < 0:
            return self._build_broken_call(text, body, "", f"the name must be followed by {m.separator.strip()}")
        head = self._head_pattern.fullmatch(text, body, middle)
        name = head.group(1) if head else ""
        try:
            given, end = parse_value(text, middle + len(m.separator))
        except ValueSyntaxError as broken:
            return self._build_broken_call(text, middle, name, str(broken), CallStatus.BAD_JSON)
        after, close = skip_whitespace(text, end), m.close.strip()
        if text.startswith(close, after):
            unnamed = RawCall("", given, CallStatus.NO_NAME, f"there is no name before {m.separator.strip()}")
            return CallScanResult((RawCall(name, given) if name else unnamed,), after + len(close))
        if after >= len(text) or close.startswith(text[after : after + len(close)]):
            return self.build_unclosed_result(text, name)
        return self._build_broken_call(text, after, name, f"the arguments must be followed by {close}")

    def _build_broken_call(
        self, text: str, position: int, name: str, reason: str, status: CallStatus = CallStatus.MALFORMED
    ) -> CallScanResult:
        """Build the result for a call that cannot be parsed, up to its end."""
        close = self.close_marks[0]
        end = text.find(close, position)
        if end < 0:
            return self.build_unclosed_result(text, name)
        return CallScanResult((RawCall(name, None, status, reason),), end + len(close))
