"""The Gemma dialects: `call:name{key:value}` between special marks; string quotes are special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlvr.dialects import literal
from rlvr.dialects.dialect import NAME, Dialect, Found, Step, Unwritable
from rlvr.dialects.jsontext import Broken, dumps, skip
from rlvr.turns import Call, CallStatus, ToolSpec

HEAD = re.compile(r"\s*call:([^\s{]*)\s*\{")


class Gemma(Dialect):
    """Gemma 4. The closing mark is a stop token, so it may be missing in decoded text."""

    name = "gemma"
    about = "Gemma 4: <|tool_call>call:name{key:value}<tool_call|>"
    opens = ("<|tool_call>",)
    close = "<tool_call|>"
    closes: tuple[str, ...] = (close,)
    stops: tuple[str, ...] = (close,)
    thoughts = (("<|channel>thought\n", "<channel|>"),)
    drops: tuple[str, ...] = ("<|tool_response>", "<turn|>")
    signs = (("<|tool_call>call:",),)
    quote = '<|"|>'

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        return "".join(f"{self.opens[0]}call:{call.name}{self._value(dict(call.arguments or {}))}{self.close}" for call in calls)

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse the name, then an object up to its closing brace."""
        start = at + len(self.opens[0])
        head = HEAD.match(text, start)
        if not head:
            return self._without(text, start, "", CallStatus.MALFORMED, "it must begin with call:name{")
        name = head.group(1)
        style = literal.Style(self.quote, bare_keys=True)
        try:
            given, end = literal.read(text, head.end() - 1, style)
        except Broken as broken:
            if broken.cut:
                return self.unclosed(text, name)
            return self._without(text, head.end(), name, CallStatus.BAD_JSON, str(broken))
        after = skip(text, end)
        if text.startswith(self.close, after):
            return Step((Found(name, given),), after + len(self.close))
        if after >= len(text):  # the closing mark ended the turn and was not decoded
            return Step((Found(name, given),), after)
        return self._without(text, after, name, CallStatus.MALFORMED, f"the arguments must be followed by {self.close}")

    def _without(self, text: str, at: int, name: str, status: CallStatus, why: str) -> Step:
        end = text.find(self.close, at)
        if end < 0:
            return self.unclosed(text, name)
        return Step((Found(name, None, status, why),), end + len(self.close))

    def _value(self, value: Any, depth: int = 0) -> str:
        if isinstance(value, dict):
            pairs = (f"{self._key(key)}:{self._value(one, depth + 1)}" for key, one in value.items())
            return "{" + ",".join(pairs) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(self._value(one, depth + 1) for one in value) + "]"
        return self._text(value) if isinstance(value, str) else dumps(value)

    def _key(self, key: str) -> str:
        return key if literal.KEY.fullmatch(key) else self._text(key)

    def _text(self, text: str) -> str:
        if self.quote in text or text.endswith(tuple(self.quote[:n] for n in range(1, len(self.quote)))):
            raise Unwritable(
                f"{text!r:.60} cannot be written in {self.name}: it contains the quote {self.quote}, or ends with the start of it"
            )
        return f"{self.quote}{text}{self.quote}"


class FunctionGemma(Gemma):
    """FunctionGemma: the format of Gemma with different marks."""

    name = "function_gemma"
    about = "FunctionGemma: <start_function_call>call:name{key:value}<end_function_call>"
    opens = ("<start_function_call>",)
    close = "<end_function_call>"
    closes: tuple[str, ...] = (close,)
    stops = ("<start_function_response>",)
    thoughts = (("<think>", "</think>"),)
    drops = ("<start_function_response>",)
    signs = (("<start_function_call>",),)
    quote = "<escape>"


class Pythonic(Dialect):
    """LFM2: a list of Python calls with literal arguments between special marks. Never evaluated."""

    name = "pythonic"
    about = "LFM2: <|tool_call_start|>[name(key='value')]<|tool_call_end|>"
    opens = ("<|tool_call_start|>",)
    close = "<|tool_call_end|>"
    closes = (close,)
    signs = (("<|tool_call_start|>",),)

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one list of all calls."""
        listed = ", ".join(f"{call.name}({self._arguments(call)})" for call in calls)
        return f"{self.opens[0]}[{listed}]{self.close}" if calls else ""

    def _arguments(self, call: Call) -> str:
        given = call.arguments or {}
        if wrong := [key for key in given if not literal.KEY.fullmatch(key)]:
            raise Unwritable(f"argument {wrong[0]!r} of {call.name} cannot be written in {self.name}: it is not a valid name")
        return ", ".join(f"{key}={self._value(value)}" for key, value in given.items())

    def _value(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self._value(key)}: {self._value(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(self._value(one) for one in value) + "]"
        if not isinstance(value, str):
            return {True: "True", False: "False"}[value] if isinstance(value, bool) else "None" if value is None else dumps(value)
        for sign, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            value = value.replace(sign, escaped)
        return f"'{value}'"

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse a list in brackets; the rest of a broken call is ignored."""
        found: list[Found] = []
        name = ""
        at = skip(text, at + len(self.opens[0]))
        try:
            if not text.startswith("[", at):
                raise Broken("the calls must be in [ ]", cut=at >= len(text))
            at = skip(text, at + 1)
            while not text.startswith("]", at):
                name, given, at = self._call(text, at)
                found.append(Found(name, given))
                at = skip(text, at)
                if not text.startswith((",", "]"), at):
                    raise Broken("a call must be followed by ',' or ']'", cut=at >= len(text))
                at = skip(text, at + text.startswith(",", at))
        except Broken as broken:
            close = text.find(self.close, at)
            if broken.cut or close < 0:
                return self.unclosed(text, name, found)
            return Step((*found, Found("", None, CallStatus.BAD_JSON, str(broken))), close + len(self.close))
        after = skip(text, at + 1)
        if not text.startswith(self.close, after):
            return self.unclosed(text, name, found[:-1])
        empty = Found("", None, CallStatus.MALFORMED, "the list has no call")
        return Step(tuple(found) or (empty,), after + len(self.close))

    def _call(self, text: str, at: int) -> tuple[str, dict[str, Any], int]:
        match = NAME.match(text, at)
        name, at = (match.group(), match.end()) if match else ("", at)
        if not text.startswith("(", at):
            raise Broken("a call must be name(key=value)", cut=at >= len(text))
        given, at = literal.entries(text, at + 1, ")", "=", literal.bare, lambda t, a: literal.read(t, a, literal.PYTHON))
        return name, given, at
