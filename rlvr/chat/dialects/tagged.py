"""Dialects with one tag per argument, so that strings need no escapes: Qwen3-Coder, GLM, DeepSeek V3.2."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.dialects.dialect import TOOL_NAME_PATTERN, CallScanResult, Dialect, RawCall, UnwritableCallError
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_complete_value, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec


class MissingTagError(Exception):
    """A tag is missing; has the position and the expected tag."""

    def __init__(self, at: int, expected: str) -> None:
        super().__init__(expected)
        self.at, self.expected = at, expected


class TaggedDialect(Dialect):
    """The base class: parses a call tag by tag, and reports a missing tag."""

    end_mark = "</tool_call>"
    """The last mark of a call."""

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse the tags of one call."""
        names: list[str] = []
        try:
            return self.parse_tagged_call(text, start, names)
        except MissingTagError as lost:
            name = names[0] if names else ""
            end = text.find(self.end_mark, lost.at)
            if end < 0 or lost.at >= len(text):
                return self.build_unclosed_result(text, name)
            why = f"{text[lost.at : lost.at + 20]!r} is where {lost.expected} is expected"
            return CallScanResult((RawCall(name, None, CallStatus.MALFORMED, why),), end + len(self.end_mark))

    def parse_tagged_call(self, text: str, position: int, parsed_names: list[str]) -> CallScanResult:
        """Parse one call; raise MissingTagError if a tag is missing. The name is appended to `parsed_names` as soon as it is known."""
        raise NotImplementedError

    def format_arguments(self, call: Call, end_marks: Sequence[str]) -> Mapping[str, str]:
        """Format the arguments as strings; raise UnwritableCallError if a string contains one of its end marks."""
        found = {key: value if isinstance(value, str) else format_json(value) for key, value in (call.arguments or {}).items()}
        for key, text in found.items():
            if not TOOL_NAME_PATTERN.fullmatch(key) or any(mark in text for mark in end_marks):
                raise UnwritableCallError(
                    f"argument {key!r} of {call.name} cannot be written in {self.name}: it has {' or '.join(end_marks)}, or is no valid name"
                )
        return found


def _expect_mark(text: str, position: int, *marks: str) -> tuple[str, int]:
    """Return which of `marks` stands at `position`, after white space, and its end; raise MissingTagError if none does.

    >>> _expect_mark("  <a>b", 0, "<b>", "<a>")
    ('<a>', 5)
    """
    start = skip_whitespace(text, position)
    for mark in marks:
        if text.startswith(mark, start):
            return mark, start + len(mark)
    raise MissingTagError(start, " or ".join(marks))


def _read_until(text: str, position: int, mark: str, end_mark: str) -> tuple[str, int]:
    """Return the text up to a mark, and the mark's end. Raises MissingTagError if the mark is missing or `end_mark` comes first.

    >>> _read_until("ab<c>d", 0, "<c>", "<end>")
    ('ab', 5)
    """
    end = text.find(mark, position)
    early = text.find(end_mark, position, end) if end >= 0 else text.find(end_mark, position)
    if early >= 0:
        raise MissingTagError(early, mark)
    if end < 0:
        raise MissingTagError(len(text), mark)
    return text[position:end], end + len(mark)


class QwenXmlDialect(TaggedDialect):
    """`<tool_call><function=N><parameter=K>` value `</parameter></function></tool_call>`."""

    name = "qwen_xml"
    description = "Qwen3-Coder, Qwen3.5, Nemotron 3: <function=...> and <parameter=...> tags, values without types"
    open_marks = ("<tool_call>", "<function=")
    close_marks = ("</tool_call>",)
    template_signatures = (("<tool_call>", "<function="),)

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        return "\n".join(self._format_block(call) for call in calls)

    def _format_block(self, call: Call) -> str:
        values = self.format_arguments(call, ("</parameter>", self.end_mark))
        lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function={call.name}>\n{lines}</function>\n</tool_call>"

    def parse_tagged_call(self, text: str, position: int, parsed_names: list[str]) -> CallScanResult:
        """Parse from `<tool_call>` to `</tool_call>`; a call that starts with `<function=` is malformed, with a hint."""
        whole_call = text.startswith("<tool_call>", position)
        _, position = _expect_mark(text, position + len("<tool_call>") * whole_call, "<function=")
        name, position = _read_until(text, position, ">", self.end_mark)
        parsed_names.append(name.strip())
        given: dict[str, str] = {}
        while True:
            mark, position = _expect_mark(text, position, "<parameter=", "</function>")
            if mark == "</function>":
                break
            start = position
            key, position = _read_until(text, position, ">", self.end_mark)
            value, position = _read_until(text, position, "</parameter>", self.end_mark)
            if key in given:
                raise MissingTagError(start, f"a parameter other than {key!r}")
            given[key] = value[value.startswith("\n") : len(value) - (value.endswith("\n") and len(value) > 1)]
        if not whole_call:
            after = skip_whitespace(text, position)
            position = after + len(self.end_mark) * text.startswith(self.end_mark, after)
            return CallScanResult(
                (RawCall(parsed_names[0], None, CallStatus.MALFORMED, "it must begin with <tool_call> and end with </tool_call>"),),
                position,
            )
        _, position = _expect_mark(text, position, self.end_mark)
        return CallScanResult((RawCall(parsed_names[0], given, is_untyped=True),), position)


class GlmDialect(TaggedDialect):
    """`<tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>`."""

    name = "glm"
    description = "GLM-4.5 and later: <arg_key> and <arg_value> tags, values without types"
    open_marks = ("<tool_call>",)
    close_marks = ("</tool_call>",)
    template_signatures = (("<tool_call>", "<arg_key>"),)
    _name_pattern = re.compile(r"\s*([^\s<]*)\s*")

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        return "\n".join(self._format_block(call) for call in calls)

    def _format_block(self, call: Call) -> str:
        values = self.format_arguments(call, ("</arg_value>", self.end_mark))
        lines = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
        return f"<tool_call>{call.name}\n{lines}</tool_call>"

    def parse_tagged_call(self, text: str, position: int, parsed_names: list[str]) -> CallScanResult:
        """Parse the name, then pairs of key and value."""
        match = self._name_pattern.match(text, position + len("<tool_call>"))
        parsed_names.append(match.group(1) if match else "")
        position = match.end() if match else position
        given: dict[str, str] = {}
        while True:
            mark, position = _expect_mark(text, position, "<arg_key>", self.end_mark)
            if mark == self.end_mark:
                return CallScanResult((RawCall(parsed_names[0], given, is_untyped=True),), position)
            start = position
            key, position = _read_until(text, position, "</arg_key>", self.end_mark)
            _, position = _expect_mark(text, position, "<arg_value>")
            value, position = _read_until(text, position, "</arg_value>", self.end_mark)
            if key.strip() in given:
                raise MissingTagError(start, f"a key other than {key.strip()!r}")
            given[key.strip()] = value


class DsmlDialect(TaggedDialect):
    """DeepSeek V3.2: `<｜DSML｜invoke name="N"><｜DSML｜parameter name="K" string="true|false">V</｜DSML｜parameter>`."""

    name = "deepseek_v32"
    description = "DeepSeek V3.2: DSML tags; each argument says whether it is a string or JSON"
    open_marks = ('<｜DSML｜invoke name="',)
    close_marks = ("</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>")
    ignored_marks = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    template_signatures = (("｜DSML｜",),)
    end_mark = "</｜DSML｜invoke>"
    _parameter_mark = '<｜DSML｜parameter name="'
    _parameter_close_mark = "</｜DSML｜parameter>"

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format all calls in one section."""
        blocks = "".join(self._format_block(call) for call in calls)
        return f"<｜DSML｜function_calls>\n{blocks}</｜DSML｜function_calls>" if blocks else ""

    def _format_block(self, call: Call) -> str:
        values, given = self.format_arguments(call, (self._parameter_close_mark, self.end_mark)), call.arguments or {}
        lines = "".join(
            f'{self._parameter_mark}{key}" string="{str(isinstance(given[key], str)).lower()}">{value}{self._parameter_close_mark}\n'
            for key, value in values.items()
        )
        return f'{self.open_marks[0]}{call.name}">\n{lines}{self.end_mark}\n'

    def parse_tagged_call(self, text: str, position: int, parsed_names: list[str]) -> CallScanResult:
        """Parse the arguments, each a literal string or JSON."""
        name, position = _read_until(text, position + len(self.open_marks[0]), '">', self.end_mark)
        parsed_names.append(name)
        given: dict[str, Any] = {}
        wrong = ""
        while True:
            mark, position = _expect_mark(text, position, self._parameter_mark, self.end_mark)
            if mark == self.end_mark:
                broken = (RawCall(name, None, CallStatus.BAD_JSON, wrong),)
                return CallScanResult(broken if wrong else (RawCall(name, given),), position)
            start = position
            key, position = _read_until(text, position, '"', self.end_mark)
            kind, position = _expect_mark(text, position, 'string="true">', 'string="false">')
            value, position = _read_until(text, position, self._parameter_close_mark, self.end_mark)
            if key in given:
                raise MissingTagError(start, f"a parameter other than {key!r}")
            try:
                given[key] = value if "true" in kind else parse_complete_value(value)
            except ValueSyntaxError as broken_value:
                given[key], wrong = None, f"argument {key!r} is declared as JSON: {broken_value}"
