"""Dialects with one tag per argument, so that strings need no escapes: Qwen3-Coder, GLM, DeepSeek V3.2."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.dialects.dialect import NAME, Dialect, Found, Step, Unwritable
from rlvr.dialects.jsontext import Broken, dumps, skip, whole
from rlvr.turns import Call, CallStatus, ToolSpec


class Lost(Exception):
    """A tag is missing; has the position and the expected tag."""

    def __init__(self, at: int, expected: str) -> None:
        super().__init__(expected)
        self.at, self.expected = at, expected


class Tagged(Dialect):
    """The base class: parses a call tag by tag, and reports a missing tag."""

    end = "</tool_call>"
    """The last mark of a call."""

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse the tags of one call."""
        names: list[str] = []
        try:
            return self.walk(text, at, names)
        except Lost as lost:
            name = names[0] if names else ""
            end = text.find(self.end, lost.at)
            if end < 0 or lost.at >= len(text):
                return self.unclosed(text, name)
            why = f"{text[lost.at : lost.at + 20]!r} is where {lost.expected} is expected"
            return Step((Found(name, None, CallStatus.MALFORMED, why),), end + len(self.end))

    def walk(self, text: str, at: int, names: list[str]) -> Step:
        """Parse one call; raise MissingTagError if a tag is missing. The name is appended to `names` once it is known."""
        raise NotImplementedError

    def plain(self, call: Call, marks: Sequence[str]) -> Mapping[str, str]:
        """Format the arguments as strings; raise UnwritableCallError if a string contains one of its end marks."""
        found = {key: value if isinstance(value, str) else dumps(value) for key, value in (call.arguments or {}).items()}
        for key, text in found.items():
            if not NAME.fullmatch(key) or any(mark in text for mark in marks):
                raise Unwritable(
                    f"argument {key!r} of {call.name} cannot be written in {self.name}: it has {' or '.join(marks)}, or is no valid name"
                )
        return found


def expect(text: str, at: int, *marks: str) -> tuple[str, int]:
    """Return the mark after white space at `at`, and its end. Raises MissingTagError.

    >>> expect("  <a>b", 0, "<b>", "<a>")
    ('<a>', 5)
    """
    start = skip(text, at)
    for mark in marks:
        if text.startswith(mark, start):
            return mark, start + len(mark)
    raise Lost(start, " or ".join(marks))


def until(text: str, at: int, mark: str, last: str) -> tuple[str, int]:
    """Return the text up to a mark, and the mark's end. Raises MissingTagError if the mark is missing or `last` comes first.

    >>> until("ab<c>d", 0, "<c>", "<end>")
    ('ab', 5)
    """
    end = text.find(mark, at)
    early = text.find(last, at, end) if end >= 0 else text.find(last, at)
    if early >= 0:
        raise Lost(early, mark)
    if end < 0:
        raise Lost(len(text), mark)
    return text[at:end], end + len(mark)


class QwenXml(Tagged):
    """`<tool_call><function=N><parameter=K>` value `</parameter></function></tool_call>`."""

    name = "qwen_xml"
    about = "Qwen3-Coder, Qwen3.5, Nemotron 3: <function=...> and <parameter=...> tags, values without types"
    opens = ("<tool_call>", "<function=")
    closes = ("</tool_call>",)
    signs = (("<tool_call>", "<function="),)

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        return "\n".join(self._block(call) for call in calls)

    def _block(self, call: Call) -> str:
        values = self.plain(call, ("</parameter>", self.end))
        lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function={call.name}>\n{lines}</function>\n</tool_call>"

    def walk(self, text: str, at: int, names: list[str]) -> Step:
        """Parse from `<tool_call>` to `</tool_call>`; a call that starts with `<function=` is malformed, with a hint."""
        whole_call = text.startswith("<tool_call>", at)
        _, at = expect(text, at + len("<tool_call>") * whole_call, "<function=")
        name, at = until(text, at, ">", self.end)
        names.append(name.strip())
        given: dict[str, str] = {}
        while True:
            mark, at = expect(text, at, "<parameter=", "</function>")
            if mark == "</function>":
                break
            start = at
            key, at = until(text, at, ">", self.end)
            value, at = until(text, at, "</parameter>", self.end)
            if key in given:
                raise Lost(start, f"a parameter other than {key!r}")
            given[key] = value[value.startswith("\n") : len(value) - (value.endswith("\n") and len(value) > 1)]
        if not whole_call:
            after = skip(text, at)
            at = after + len(self.end) * text.startswith(self.end, after)
            return Step((Found(names[0], None, CallStatus.MALFORMED, "it must begin with <tool_call> and end with </tool_call>"),), at)
        _, at = expect(text, at, self.end)
        return Step((Found(names[0], given, untyped=True),), at)


class Glm(Tagged):
    """`<tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>`."""

    name = "glm"
    about = "GLM-4.5 and later: <arg_key> and <arg_value> tags, values without types"
    opens = ("<tool_call>",)
    closes = ("</tool_call>",)
    signs = (("<tool_call>", "<arg_key>"),)
    _name = re.compile(r"\s*([^\s<]*)\s*")

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call."""
        return "\n".join(self._block(call) for call in calls)

    def _block(self, call: Call) -> str:
        values = self.plain(call, ("</arg_value>", self.end))
        lines = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
        return f"<tool_call>{call.name}\n{lines}</tool_call>"

    def walk(self, text: str, at: int, names: list[str]) -> Step:
        """Parse the name, then pairs of key and value."""
        match = self._name.match(text, at + len("<tool_call>"))
        names.append(match.group(1) if match else "")
        at = match.end() if match else at
        given: dict[str, str] = {}
        while True:
            mark, at = expect(text, at, "<arg_key>", self.end)
            if mark == self.end:
                return Step((Found(names[0], given, untyped=True),), at)
            start = at
            key, at = until(text, at, "</arg_key>", self.end)
            _, at = expect(text, at, "<arg_value>")
            value, at = until(text, at, "</arg_value>", self.end)
            if key.strip() in given:
                raise Lost(start, f"a key other than {key.strip()!r}")
            given[key.strip()] = value


class Dsml(Tagged):
    """DeepSeek V3.2: `<｜DSML｜invoke name="N"><｜DSML｜parameter name="K" string="true|false">V</｜DSML｜parameter>`."""

    name = "deepseek_v32"
    about = "DeepSeek V3.2: DSML tags; each argument says whether it is a string or JSON"
    opens = ('<｜DSML｜invoke name="',)
    closes = ("</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>")
    drops = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    signs = (("｜DSML｜",),)
    end = "</｜DSML｜invoke>"
    _parameter = '<｜DSML｜parameter name="'
    _close = "</｜DSML｜parameter>"

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format all calls in one section."""
        blocks = "".join(self._block(call) for call in calls)
        return f"<｜DSML｜function_calls>\n{blocks}</｜DSML｜function_calls>" if blocks else ""

    def _block(self, call: Call) -> str:
        values, given = self.plain(call, (self._close, self.end)), call.arguments or {}
        lines = "".join(
            f'{self._parameter}{key}" string="{str(isinstance(given[key], str)).lower()}">{value}{self._close}\n'
            for key, value in values.items()
        )
        return f'{self.opens[0]}{call.name}">\n{lines}{self.end}\n'

    def walk(self, text: str, at: int, names: list[str]) -> Step:
        """Parse the arguments, each a literal string or JSON."""
        name, at = until(text, at + len(self.opens[0]), '">', self.end)
        names.append(name)
        given: dict[str, Any] = {}
        wrong = ""
        while True:
            mark, at = expect(text, at, self._parameter, self.end)
            if mark == self.end:
                broken = (Found(name, None, CallStatus.BAD_JSON, wrong),)
                return Step(broken if wrong else (Found(name, given),), at)
            start = at
            key, at = until(text, at, '"', self.end)
            kind, at = expect(text, at, 'string="true">', 'string="false">')
            value, at = until(text, at, self._close, self.end)
            if key in given:
                raise Lost(start, f"a parameter other than {key!r}")
            try:
                given[key] = value if "true" in kind else whole(value)
            except Broken as broken_value:
                given[key], wrong = None, f"argument {key!r} is declared as JSON: {broken_value}"
