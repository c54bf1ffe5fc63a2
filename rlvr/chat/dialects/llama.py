"""The Llama 3 dialect: a turn is a JSON object with `name` and `parameters`; `<|python_tag|>` precedes code and built-in tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.chat.dialects.dialect import TOOL_NAME_PATTERN, CallScanResult, Dialect, RawCall
from rlvr.chat.dialects.hermes import build_raw_call
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_value, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec

CALL_OBJECT_PATTERN = re.compile(r"""\s*\{\s*(?:"(?:type|function|name|parameters)"\s*:)""")
"""Matches the start of a call; any other object is an answer."""
BUILT_IN_CALL_PATTERN = re.compile(r"\s*([\w\-]+)\.call\(", re.ASCII)
ARGUMENT_PATTERN = re.compile(r"(?:\s*,)?\s*(\w+)\s*=\s*")
PYTHON_TAG = "<|python_tag|>"
CODE_TOOLS = ("python", "code_interpreter", "ipython")
"""The tools that run bare code after the tag; the first available one is used."""


class LlamaDialect(Dialect):
    """`{"name": ..., "parameters": {...}}`; several calls are separated by `;`, which also fits templates with one call in a turn."""

    name = "llama"
    description = "Llama 3.1, 3.2, 3.3: the turn is a JSON object; <|python_tag|> before code"
    open_marks = (PYTHON_TAG,)
    ignored_marks = ("<|eom_id|>", "<|eot_id|>")
    template_signatures = (("<|start_header_id|>", '"parameters": '),)

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one object per call."""
        return "; ".join(format_json({"name": call.name, "parameters": dict(call.arguments or {})}) for call in calls)

    def parse_unmarked_turn(self, text: str, position: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse a turn that is an object with a name."""
        return self._parse_objects(text, position) if CALL_OBJECT_PATTERN.match(text, position) else None

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse the text after the tag: an object, a built-in tool, or code up to the end of the turn."""
        body = start + len(PYTHON_TAG)
        if CALL_OBJECT_PATTERN.match(text, body):
            return self._parse_objects(text, body)
        if built_in := BUILT_IN_CALL_PATTERN.match(text, body):
            return self._parse_builtin_tool_call(text, built_in.end(), built_in.group(1))
        code = text[body:]
        for mark in self.ignored_marks:
            code = code.removesuffix(mark)
        code = code.strip()
        if not code:
            return self.build_unclosed_result(text)
        spec = next((spec for name in CODE_TOOLS for spec in tools if spec.name == name), None)
        keys = list((spec.parameters.get("properties") or {}) if spec else {"code": {}})
        return CallScanResult((RawCall(spec.name if spec else CODE_TOOLS[0], {keys[0]: code} if keys else {}),), len(text))

    def _parse_objects(self, text: str, at: int) -> CallScanResult:
        found: list[RawCall] = []
        while True:
            try:
                given, at = parse_value(text, at)
            except ValueSyntaxError as broken:
                if broken.truncated:
                    return self.build_unclosed_result(text, raw_calls=found)
                return CallScanResult((*found, RawCall("", None, CallStatus.BAD_JSON, str(broken))), len(text))
            found.append(build_raw_call(given, ("parameters", "arguments")))
            after = skip_whitespace(text, at)
            if len(found) >= 64 or not text.startswith(";", after) or not CALL_OBJECT_PATTERN.match(text, after + 1):
                return CallScanResult(tuple(found), at)
            at = after + 1

    def _parse_builtin_tool_call(self, text: str, position: int, name: str) -> CallScanResult:
        """Parse `name.call(key="value", ...)` with JSON values."""
        given: dict[str, object] = {}
        wrong = RawCall(name, None, CallStatus.MALFORMED, f'it must be {name}.call(key="value")')
        while key := ARGUMENT_PATTERN.match(text, position):
            try:
                one, position = parse_value(text, key.end())
            except ValueSyntaxError as broken:
                if broken.truncated:
                    return self.build_unclosed_result(text, name)
                return CallScanResult((RawCall(name, None, CallStatus.BAD_JSON, str(broken)),), len(text))
            if key.group(1) in given or not TOOL_NAME_PATTERN.fullmatch(key.group(1)):
                return CallScanResult((wrong,), len(text))
            given[key.group(1)] = one
        position = skip_whitespace(text, position)
        if position >= len(text):
            return self.build_unclosed_result(text, name)
        return CallScanResult((RawCall(name, given),), position + 1) if text[position] == ")" else CallScanResult((wrong,), len(text))
