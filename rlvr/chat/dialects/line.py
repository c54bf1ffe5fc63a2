"""The dialect `line`, for character tokenizers and small models: a call is `!tool argument`, or `!argument` with a single tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr.chat.dialects.dialect import TOOL_NAME_PATTERN, CallScanResult, Dialect, RawCall
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_complete_value
from rlvr.turns import Call, CallStatus, ToolSpec

SCALAR_TYPES = ("string", "integer", "number", "boolean")


class LineDialect(Dialect):
    """A call is a line that begins with `!`. The rest of the line is the single scalar argument, or a JSON object.

    With a single tool the name may be omitted, so a call can be as short as `!3+4`.
    """

    name = "line"
    description = "character tokenizers: a line with !tool argument"
    open_marks = ("!",)
    is_plain_text = True
    template_signatures = (
        ("<policy>{{ message.content }}<eos>",),
    )  # the template that checkpoints with the tokenizer `chars` are saved with

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one line per call."""
        return "\n".join(self._format_line(call, tools) for call in calls)

    def _format_line(self, call: Call, tools: Sequence[ToolSpec]) -> str:
        given = dict(call.arguments or {})
        key = _find_single_argument(call.name, tools)
        value = given.get(key) if len(given) == 1 else None
        plain = isinstance(value, str) and value and value == value.strip() and "\n" not in value and not value.startswith("{")
        if plain and len(tools) == 1 and not str(value).startswith(call.name):
            return f"!{value}"
        if plain:
            return f"!{call.name} {value}"
        if isinstance(value, bool | int | float):
            return f"!{call.name} {format_json(value)}"
        return f"!{call.name} {format_json(given)}" if given else f"!{call.name}"

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse one line."""
        begins = start == 0 or text[start - 1] == "\n" or any(text.endswith(close, 0, start) for _, close in self.reasoning_marks)
        if not begins or not tools:
            return None
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start + 1 : end]
        word = TOOL_NAME_PATTERN.match(line)
        name = word.group() if word and line[word.end() : word.end() + 1] in ("", " ") else ""
        if name in {spec.name for spec in tools}:
            return CallScanResult((self._parse_call(name, line[len(name) :].strip(), tools),), end)
        if len(tools) == 1:
            return CallScanResult((self._parse_call(tools[0].name, line.strip(), tools),), end)
        return CallScanResult((RawCall(name, {}),), end)

    def _parse_call(self, name: str, body: str, tools: Sequence[ToolSpec]) -> RawCall:
        key = _find_single_argument(name, tools)
        if not body:
            return RawCall(name, {})
        if key and not body.startswith("{"):
            return RawCall(name, {key: body}, is_untyped=True)
        try:
            return RawCall(name, parse_complete_value(body))
        except ValueSyntaxError as broken:
            return RawCall(name, None, CallStatus.BAD_JSON, str(broken))

    def format_instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Format one line per tool, as a short description for small models."""
        return "\n".join(["Tools:", *(f"!{spec.name} {self._describe_arguments(spec, tools)}".rstrip() for spec in tools)])

    def format_result_as_user_message(self, name: str, text: str) -> str:
        """Format a result as `=TEXT`."""
        return f"={text}"

    def _describe_arguments(self, spec: ToolSpec, tools: Sequence[ToolSpec]) -> str:
        properties: dict[str, Any] = spec.parameters.get("properties") or {}
        return _find_single_argument(spec.name, tools) or ("{" + ", ".join(map(format_json, properties)) + "}" if properties else "")


def _find_single_argument(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return the argument of a tool with a single scalar argument; '' for any other tool.

    >>> _find_single_argument("now", [ToolSpec("now", "The time.")])
    ''
    """
    properties = next((spec.parameters.get("properties") or {} for spec in tools if spec.name == name), {})
    key = next(iter(properties), "")
    return key if len(properties) == 1 and properties[key].get("type") in SCALAR_TYPES else ""
