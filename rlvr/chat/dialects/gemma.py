"""The Gemma dialects: `call:name{key:value}` between special marks; string quotes are special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlvr.chat.dialects import literal
from rlvr.chat.dialects.dialect import TOOL_NAME_PATTERN, CallScanResult, Dialect, RawCall, UnwritableCallError
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec

HEAD_PATTERN = re.compile(r"\s*call:([^\s{]*)\s*\{")


class GemmaDialect(Dialect):
    """Gemma 4. The closing mark is a stop token, so it may be missing in decoded text."""

    name = "gemma"
    description = "Gemma 4: <|tool_call>call:name{key:value}<tool_call|>"
    open_marks = ("<|tool_call>",)
    close_mark = "<tool_call|>"
    close_marks: tuple[str, ...] = (close_mark,)
    stop_marks: tuple[str, ...] = (close_mark,)
    reasoning_marks = (("<|channel>thought\n", "<channel|>"),)
    ignored_marks: tuple[str, ...] = ("<|tool_response>", "<turn|>")
    template_signatures = (("<|tool_call>call:",),)
    quote = '<|"|>'

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        return "".join(
            f"{self.open_marks[0]}call:{call.name}{self._format_value(dict(call.arguments or {}))}{self.close_mark}" for call in calls
        )

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse the name, then an object up to its closing brace."""
        body = start + len(self.open_marks[0])
        head = HEAD_PATTERN.match(text, body)
        if not head:
            return self._build_broken_call(text, body, "", CallStatus.MALFORMED, "it must begin with call:name{")
        name = head.group(1)
        style = literal.LiteralSyntax(self.quote, bare_keys=True)
        try:
            given, end = literal.parse_literal(text, head.end() - 1, style)
        except ValueSyntaxError as broken:
            if broken.truncated:
                return self.build_unclosed_result(text, name)
            return self._build_broken_call(text, head.end(), name, CallStatus.BAD_JSON, str(broken))
        after = skip_whitespace(text, end)
        if text.startswith(self.close_mark, after):
            return CallScanResult((RawCall(name, given),), after + len(self.close_mark))
        if after >= len(text):  # the closing mark ended the turn and was not decoded
            return CallScanResult((RawCall(name, given),), after)
        return self._build_broken_call(text, after, name, CallStatus.MALFORMED, f"the arguments must be followed by {self.close_mark}")

    def _build_broken_call(self, text: str, at: int, name: str, status: CallStatus, why: str) -> CallScanResult:
        end = text.find(self.close_mark, at)
        if end < 0:
            return self.build_unclosed_result(text, name)
        return CallScanResult((RawCall(name, None, status, why),), end + len(self.close_mark))

    def _format_value(self, value: Any, depth: int = 0) -> str:
        if isinstance(value, dict):
            pairs = (f"{self._format_key(key)}:{self._format_value(one, depth + 1)}" for key, one in value.items())
            return "{" + ",".join(pairs) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(self._format_value(one, depth + 1) for one in value) + "]"
        return self._format_text(value) if isinstance(value, str) else format_json(value)

    def _format_key(self, key: str) -> str:
        return key if literal.KEY_PATTERN.fullmatch(key) else self._format_text(key)

    def _format_text(self, text: str) -> str:
        if self.quote in text or text.endswith(tuple(self.quote[:n] for n in range(1, len(self.quote)))):
            raise UnwritableCallError(
                f"{text!r:.60} cannot be written in {self.name}: it contains the quote {self.quote}, or ends with the start of it"
            )
        return f"{self.quote}{text}{self.quote}"


class FunctionGemmaDialect(GemmaDialect):
    """The dialect of FunctionGemma models: the format of Gemma 4 with other marks."""

    name = "function_gemma"
    description = "FunctionGemma: <start_function_call>call:name{key:value}<end_function_call>"
    open_marks = ("<start_function_call>",)
    close_mark = "<end_function_call>"
    close_marks: tuple[str, ...] = (close_mark,)
    stop_marks = ("<start_function_response>",)
    reasoning_marks = (("<think>", "</think>"),)
    ignored_marks = ("<start_function_response>",)
    template_signatures = (("<start_function_call>",),)
    quote = "<escape>"


class PythonicDialect(Dialect):
    """LFM2: a list of Python calls with literal arguments between special marks. Never evaluated."""

    name = "pythonic"
    description = "LFM2: <|tool_call_start|>[name(key='value')]<|tool_call_end|>"
    open_marks = ("<|tool_call_start|>",)
    close_mark = "<|tool_call_end|>"
    close_marks = (close_mark,)
    template_signatures = (("<|tool_call_start|>",),)

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one list of all calls."""
        listed = ", ".join(f"{call.name}({self._format_arguments(call)})" for call in calls)
        return f"{self.open_marks[0]}[{listed}]{self.close_mark}" if calls else ""

    def _format_arguments(self, call: Call) -> str:
        given = call.arguments or {}
        if wrong := [key for key in given if not literal.KEY_PATTERN.fullmatch(key)]:
            raise UnwritableCallError(f"argument {wrong[0]!r} of {call.name} cannot be written in {self.name}: it is not a valid name")
        return ", ".join(f"{key}={self._format_value(value)}" for key, value in given.items())

    def _format_value(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self._format_value(key)}: {self._format_value(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(self._format_value(one) for one in value) + "]"
        if not isinstance(value, str):
            return {True: "True", False: "False"}[value] if isinstance(value, bool) else "None" if value is None else format_json(value)
        for sign, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            value = value.replace(sign, escaped)
        return f"'{value}'"

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse a list in brackets; the rest of a broken call is ignored."""
        found: list[RawCall] = []
        name = ""
        start = skip_whitespace(text, start + len(self.open_marks[0]))
        try:
            if not text.startswith("[", start):
                raise ValueSyntaxError("the calls must be in [ ]", cut=start >= len(text))
            start = skip_whitespace(text, start + 1)
            while not text.startswith("]", start):
                name, given, start = self._parse_call(text, start)
                found.append(RawCall(name, given))
                start = skip_whitespace(text, start)
                if not text.startswith((",", "]"), start):
                    raise ValueSyntaxError("a call must be followed by ',' or ']'", cut=start >= len(text))
                start = skip_whitespace(text, start + text.startswith(",", start))
        except ValueSyntaxError as broken:
            close = text.find(self.close_mark, start)
            if broken.truncated or close < 0:
                return self.build_unclosed_result(text, name, found)
            return CallScanResult((*found, RawCall("", None, CallStatus.BAD_JSON, str(broken))), close + len(self.close_mark))
        after = skip_whitespace(text, start + 1)
        if not text.startswith(self.close_mark, after):
            return self.build_unclosed_result(text, name, found[:-1])
        empty = RawCall("", None, CallStatus.MALFORMED, "the list has no call")
        return CallScanResult(tuple(found) or (empty,), after + len(self.close_mark))

    def _parse_call(self, text: str, at: int) -> tuple[str, dict[str, Any], int]:
        match = TOOL_NAME_PATTERN.match(text, at)
        name, at = (match.group(), match.end()) if match else ("", at)
        if not text.startswith("(", at):
            raise ValueSyntaxError("a call must be name(key=value)", cut=at >= len(text))
        given, at = literal.parse_entries(
            text, at + 1, ")", "=", literal.parse_bare_key, lambda t, a: literal.parse_literal(t, a, literal.PYTHON_STYLE)
        )
        return name, given, at
