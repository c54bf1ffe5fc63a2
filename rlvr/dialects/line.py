"""The dialect `line`, for character tokenizers and small models: a call is `!tool argument`, or `!argument` with a single tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr.dialects.dialect import NAME, Dialect, Found, Step
from rlvr.dialects.jsontext import Broken, dumps, whole
from rlvr.turns import Call, CallStatus, ToolSpec

SCALARS = ("string", "integer", "number", "boolean")


class Line(Dialect):
    """A call is a line that begins with `!`. The rest of the line is the single scalar argument, or a JSON object.

    With a single tool the name may be omitted, so a call can be as short as `!3+4`.
    """

    name = "line"
    about = "character tokenizers: a line with !tool argument"
    opens = ("!",)
    plain_text = True
    signs = (("<policy>{{ message.content }}<eos>",),)  # the template that checkpoints with the tokenizer `chars` are saved with

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one line per call."""
        return "\n".join(self._line(call, tools) for call in calls)

    def _line(self, call: Call, tools: Sequence[ToolSpec]) -> str:
        given = dict(call.arguments or {})
        key = only_argument(call.name, tools)
        value = given.get(key) if len(given) == 1 else None
        plain = isinstance(value, str) and value and value == value.strip() and "\n" not in value and not value.startswith("{")
        if plain and len(tools) == 1 and not str(value).startswith(call.name):
            return f"!{value}"
        if plain:
            return f"!{call.name} {value}"
        if isinstance(value, bool | int | float):
            return f"!{call.name} {dumps(value)}"
        return f"!{call.name} {dumps(given)}" if given else f"!{call.name}"

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse one line."""
        begins = at == 0 or text[at - 1] == "\n" or any(text.endswith(close, 0, at) for _, close in self.thoughts)
        if not begins or not tools:
            return None
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at + 1 : end]
        word = NAME.match(line)
        name = word.group() if word and line[word.end() : word.end() + 1] in ("", " ") else ""
        if name in {spec.name for spec in tools}:
            return Step((self._found(name, line[len(name) :].strip(), tools),), end)
        if len(tools) == 1:
            return Step((self._found(tools[0].name, line.strip(), tools),), end)
        return Step((Found(name, {}),), end)

    def _found(self, name: str, body: str, tools: Sequence[ToolSpec]) -> Found:
        key = only_argument(name, tools)
        if not body:
            return Found(name, {})
        if key and not body.startswith("{"):
            return Found(name, {key: body}, untyped=True)
        try:
            return Found(name, whole(body))
        except Broken as broken:
            return Found(name, None, CallStatus.BAD_JSON, str(broken))

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Format one line per tool, as a short description for small models."""
        return "\n".join(["Tools:", *(f"!{spec.name} {self._shape(spec, tools)}".rstrip() for spec in tools)])

    def result(self, name: str, text: str) -> str:
        """Format a result as `=TEXT`."""
        return f"={text}"

    def _shape(self, spec: ToolSpec, tools: Sequence[ToolSpec]) -> str:
        properties: dict[str, Any] = spec.parameters.get("properties") or {}
        return only_argument(spec.name, tools) or ("{" + ", ".join(map(dumps, properties)) + "}" if properties else "")


def only_argument(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return the argument of a tool with a single scalar argument; '' for any other tool.

    >>> only_argument("now", [ToolSpec("now", "The time.")])
    ''
    """
    properties = next((spec.parameters.get("properties") or {} for spec in tools if spec.name == name), {})
    key = next(iter(properties), "")
    return key if len(properties) == 1 and properties[key].get("type") in SCALARS else ""
