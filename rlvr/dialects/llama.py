"""The Llama 3 dialect: a turn is a JSON object with `name` and `parameters`; `<|python_tag|>` precedes code and built-in tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.dialects.dialect import NAME, Dialect, Found, Step
from rlvr.dialects.hermes import named
from rlvr.dialects.jsontext import Broken, dumps, skip, value
from rlvr.turns import Call, CallStatus, ToolSpec

OBJECT = re.compile(r"""\s*\{\s*(?:"(?:type|function|name|parameters)"\s*:)""")
"""Matches the start of a call; any other object is an answer."""
BUILT_IN = re.compile(r"\s*([\w\-]+)\.call\(", re.ASCII)
KEY = re.compile(r"(?:\s*,)?\s*(\w+)\s*=\s*")
TAG = "<|python_tag|>"
CODE_TOOLS = ("python", "code_interpreter", "ipython")
"""The tools that run bare code after the tag; the first available one is used."""


class Llama(Dialect):
    """`{"name": ..., "parameters": {...}}`; several calls are separated by `;`, which also fits templates with one call in a turn."""

    name = "llama"
    about = "Llama 3.1, 3.2, 3.3: the turn is a JSON object; <|python_tag|> before code"
    opens = (TAG,)
    drops = ("<|eom_id|>", "<|eot_id|>")
    signs = (("<|start_header_id|>", '"parameters": '),)

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one object per call."""
        return "; ".join(dumps({"name": call.name, "parameters": dict(call.arguments or {})}) for call in calls)

    def whole_turn(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse a turn that is an object with a name."""
        return self._objects(text, at) if OBJECT.match(text, at) else None

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse the text after the tag: an object, a built-in tool, or code up to the end of the turn."""
        start = at + len(TAG)
        if OBJECT.match(text, start):
            return self._objects(text, start)
        if built_in := BUILT_IN.match(text, start):
            return self._built_in(text, built_in.end(), built_in.group(1))
        code = text[start:]
        for mark in self.drops:
            code = code.removesuffix(mark)
        code = code.strip()
        if not code:
            return self.unclosed(text)
        spec = next((spec for name in CODE_TOOLS for spec in tools if spec.name == name), None)
        keys = list((spec.parameters.get("properties") or {}) if spec else {"code": {}})
        return Step((Found(spec.name if spec else CODE_TOOLS[0], {keys[0]: code} if keys else {}),), len(text))

    def _objects(self, text: str, at: int) -> Step:
        found: list[Found] = []
        while True:
            try:
                given, at = value(text, at)
            except Broken as broken:
                if broken.cut:
                    return self.unclosed(text, found=found)
                return Step((*found, Found("", None, CallStatus.BAD_JSON, str(broken))), len(text))
            found.append(named(given, ("parameters", "arguments")))
            after = skip(text, at)
            if len(found) >= 64 or not text.startswith(";", after) or not OBJECT.match(text, after + 1):
                return Step(tuple(found), at)
            at = after + 1

    def _built_in(self, text: str, at: int, name: str) -> Step:
        """Parse `name.call(key="value", ...)` with JSON values."""
        given: dict[str, object] = {}
        wrong = Found(name, None, CallStatus.MALFORMED, f'it must be {name}.call(key="value")')
        while key := KEY.match(text, at):
            try:
                one, at = value(text, key.end())
            except Broken as broken:
                if broken.cut:
                    return self.unclosed(text, name)
                return Step((Found(name, None, CallStatus.BAD_JSON, str(broken)),), len(text))
            if key.group(1) in given or not NAME.fullmatch(key.group(1)):
                return Step((wrong,), len(text))
            given[key.group(1)] = one
        at = skip(text, at)
        if at >= len(text):
            return self.unclosed(text, name)
        return Step((Found(name, given),), at + 1) if text[at] == ")" else Step((wrong,), len(text))
