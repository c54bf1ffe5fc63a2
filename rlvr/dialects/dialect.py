"""The interface of a dialect (a tool call format): its marks, a formatter, and a linear-time parser that never raises."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rlvr.contracts.schema import Misfit, arguments
from rlvr.dialects.jsontext import Broken, whole
from rlvr.errors import suggest
from rlvr.turns import Call, CallStatus, ToolSpec, Turn

NAME = re.compile(r"[A-Za-z_][\w.\-]{0,127}", re.ASCII)
"""The allowed names of a tool."""
MAX_CALLS = 64
"""The maximum number of calls parsed from one turn; the remaining text is content."""


class Unwritable(ValueError):
    """A call that the dialect cannot express, because its text contains one of the dialect's own marks."""


@dataclass(frozen=True, slots=True)
class Found:
    """A call as written in the text, before validation against the tools.

    >>> Found("search", {"query": "rain"}).status
    <CallStatus.OK: 'ok'>
    """

    name: str
    arguments: Any = None
    status: CallStatus = CallStatus.OK
    why: str = ""
    untyped: bool = False
    """True if values are written without types, so that the schema determines how they are parsed."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of scanning one call mark.

    >>> Step((Found("now", {}),), 10).end
    10
    """

    found: tuple[Found, ...]
    end: int
    """The position after the call."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a turn: content, reasoning, or the calls after one mark.

    >>> Piece("content", "hello").found
    ()
    """

    kind: Literal["content", "reasoning", "calls"]
    text: str
    found: tuple[Found, ...] = ()
    thought: bool = False
    """True if it is inside the reasoning."""


class Dialect(ABC):
    """A tool call format. A subclass defines the marks, `format_calls`, and `scan_call`."""

    name: str
    about: str
    opens: tuple[str, ...]
    """The marks that may start a call."""
    thoughts: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    """The marks around reasoning."""
    closes: tuple[str, ...] = ()
    """The marks that may end a call; empty if it ends with the turn."""
    drops: tuple[str, ...] = ()
    """Marks that are not part of any content, such as the end of a section."""
    stops: tuple[str, ...] = ()
    """Marks that must be stop tokens; otherwise the policy would continue and invent the result."""
    plain_text: bool = False
    """True if calls are plain text without a stop token; the turn is then ended after its first complete call."""
    signs: tuple[tuple[str, ...], ...] = ()
    """How to recognize a chat template of this dialect: it contains all strings of one of these groups."""

    @abstractmethod
    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format calls as the policy would write them; raise UnwritableCallError if one cannot be expressed."""

    @abstractmethod
    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse the call that starts with the mark at `at`; None if it is plain text. Never raises."""

    def read(
        self,
        text: str,
        tools: Sequence[ToolSpec] = (),
        *,
        turn: int = 0,
        finish: Literal["stop", "length"] = "stop",
        thinking: bool = False,
    ) -> Turn:
        """Parse a turn. Never raises; each call has a status.

        Args:
            text: everything that the policy wrote.
            tools: the tools that it was given.
            turn: the number of the turn, for the ids of the calls.
            finish: why it ended; the last call of a truncated turn is not executed unless its closing mark is present.
            thinking: whether the prompt already opened the reasoning.
        """
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[Call] = []
        held = {spec.name: spec for spec in tools}
        parts = [piece for piece in self.pieces(text, tools, thinking) if piece.text]
        for piece in parts:
            if piece.kind == "calls":
                cut = finish == "length" and piece is parts[-1] and not piece.text.rstrip().endswith(self.closes)
                for found in piece.found:
                    calls.append(checked(_cut(found) if cut else found, held, f"{turn}.{len(calls)}", piece.text, thought=piece.thought))
            elif piece.kind == "reasoning":
                reasoning.append(piece.text)
            else:
                content.append(piece.text)
        said = self._without_drops("".join(content)).strip()
        return Turn(text, said, "".join(reasoning).strip(), tuple(calls), finish)

    def pieces(self, text: str, tools: Sequence[ToolSpec], thinking: bool) -> Iterator[Piece]:
        """Split a turn into its parts, in order and in linear time."""
        at, count = 0, 0
        if thinking or self._closes_first(text):
            end, at = self._thought_end(text, 0)
            yield from self._thought(text[:end], tools)
        start, blank = at, True
        if step := self.whole_turn(text, at, tools):
            yield Piece("calls", text[at : step.end], step.found)
            start = at = step.end
            blank = False
        while (mark := self._marks.search(text, at)) and count < MAX_CALLS:
            if mark.group() in self._closers:
                yield Piece("content", text[start : mark.start()])
                blank = blank and not text[start : mark.start()].strip()
                end, at = self._thought_end(text, mark.end(), self._closers[mark.group()])
                yield from self._thought(text[mark.end() : end], tools)
                if blank and (step := self.whole_turn(text, at, tools)):
                    yield Piece("calls", text[at : step.end], step.found)
                    at, blank = step.end, False
                start = at
                continue
            step = self.scan(text, mark.start(), tools)
            if step is None:
                at = mark.end()
                continue
            yield Piece("content", text[start : mark.start()])
            blank = False
            start = at = max(step.end, mark.end())
            count += len(step.found)
            yield Piece("calls", text[mark.start() : at], step.found)
        yield Piece("content", text[start:])

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Format a system prompt that lists the tools and the call format, for chat templates without tool support."""
        lines = ["You can call these tools:", ""]
        for spec in tools:
            lines += [json.dumps(spec.wire()["function"], ensure_ascii=False)]
        example = Call("0.0", tools[0].name, _example(tools[0])) if tools else Call("0.0", "name", {})
        lines += ["", "To call one, write exactly this, with your own values:", self.write([example], tools)]
        ends = f"Your turn ends with the call, and the next message has its result, as {self.result('NAME', '...')!r}."
        return "\n".join([*lines, "", f"{ends} When you need no more calls, write the answer."])

    def result(self, name: str, text: str) -> str:
        """Format a tool result as a labelled user message, for chat templates without tool support."""
        return f"Result of {name}:\n{text}"

    def complete(self, text: str, tools: Sequence[ToolSpec], *, thinking: bool = False) -> bool:
        """Return whether the finished lines of a text contain a complete call outside of the reasoning."""
        lines = text[: max(text.rfind("\n"), 0)]
        calls = (call for call in self.read(lines, tools, thinking=thinking).calls if call.status is not CallStatus.IN_THOUGHT)
        return next((call.status is not CallStatus.UNCLOSED for call in calls), False)

    # ---- for subclasses

    def whole_turn(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse a turn that consists of calls without a mark, possibly after reasoning; None for other turns."""
        return None

    def unclosed(self, text: str, name: str = "", found: Sequence[Found] = ()) -> Step:
        """Build the result for a text that ends inside a call."""
        return Step((*found, Found(name, None, CallStatus.UNCLOSED, "the text ends inside it")), len(text))

    # ---- inside

    @cached_property
    def _closers(self) -> dict[str, str]:
        return dict(self.thoughts)

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        marks = sorted({*self.opens, *self._closers}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, marks)))

    def _closes_first(self, text: str) -> bool:
        """Return whether a reasoning block is closed before anything is opened; then the prompt had opened it."""
        closes = [at for close in self._closers.values() if (at := text.find(close)) >= 0]
        mark = self._marks.search(text)
        if self.whole_turn(text, 0, ()):
            return False
        return bool(closes) and (mark is None or min(closes) < mark.start())

    def _thought_end(self, text: str, at: int, close: str = "") -> tuple[int, int]:
        """Return where the reasoning ends, and where the text continues."""
        closes = [close] if close else list(self._closers.values())
        ends = [(end, end + len(one)) for one in closes if (end := text.find(one, at)) >= 0]
        return min(ends, default=(len(text), len(text)))

    def _thought(self, text: str, tools: Sequence[ToolSpec]) -> Iterator[Piece]:
        """Yield the reasoning, and the calls inside it, which are never executed."""
        yield Piece("reasoning", text)
        at, count = 0, 0
        while (mark := self._marks.search(text, at)) and count < MAX_CALLS:
            step = None if mark.group() in self._closers else self.scan(text, mark.start(), tools)
            at = max(step.end, mark.end()) if step else mark.end()
            if step:
                count += len(step.found)
                yield Piece("calls", text[mark.start() : at], step.found, thought=True)

    def _without_drops(self, text: str) -> str:
        for mark in self.drops:
            text = text.replace(mark, "")
        return text


def checked(found: Found, tools: Mapping[str, ToolSpec], number: str, raw: str, *, thought: bool = False) -> Call:
    """Validate a call and set its final status.

    >>> checked(Found("now", {}), {"now": ToolSpec("now", "The time.")}, "0.0", "now()").status
    <CallStatus.OK: 'ok'>
    """
    status, why, given = found.status, found.why, found.arguments
    if status is CallStatus.OK and not found.name:
        status, why = CallStatus.NO_NAME, f"the tools are {', '.join(tools) or 'none'}"
    elif status is CallStatus.OK and found.name not in tools:
        status, why = CallStatus.UNKNOWN_TOOL, f"{found.name!r:.80} is unknown; {suggest(found.name, tools)}"
    elif status is CallStatus.OK and not isinstance(given, Mapping):
        status, why = CallStatus.BAD_ARGUMENTS, "the arguments are not an object of names and values"
    elif status is CallStatus.OK:
        try:
            schema = tools[found.name].parameters
            given = arguments(schema, typed(schema, given) if found.untyped else given)
        except Misfit as wrong:
            status, why = CallStatus.BAD_ARGUMENTS, str(wrong)
    if thought:
        status, why = CallStatus.IN_THOUGHT, ""
    shown = dict(given) if isinstance(given, Mapping) else None
    return Call(number, found.name, shown, status, raw, why)


def _cut(found: Found) -> Found:
    return Found(found.name, None, CallStatus.UNCLOSED, "the turn was cut off at its limit of tokens")


def typed(schema: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Parse values without types by the schema: strings are kept, everything else is JSON.

    Python's names for true, false and null are accepted too, because chat templates write them.

    >>> typed({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}, {"a": "3", "b": "3"})
    {'a': '3', 'b': 3}
    """
    properties = schema.get("properties") or {}
    return {key: _typed(properties.get(key, {}), value) for key, value in given.items()}


def _typed(schema: Mapping[str, Any], text: str) -> Any:
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    words = {"True": True, "False": False, "None": None}
    bare = text.strip()
    try:
        value = words[bare] if bare in words else whole(bare)
    except Broken:
        return text
    # if several types are allowed, a value is a string unless it is valid for another type
    return text if "string" in kinds and not _allowed(kinds - {"string"}, value) else value


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    if "anyOf" in schema:
        return {kind for one in schema["anyOf"] for kind in _kinds(one)}
    kind = schema.get("type")
    return {kind} if isinstance(kind, str) else set(kind or ())


def _allowed(kinds: set[str], value: Any) -> bool:
    try:
        return bool(kinds) and arguments({"properties": {"x": {"type": sorted(kinds)}}}, {"x": value}) is not None
    except Misfit:
        return False


def _example(spec: ToolSpec) -> dict[str, Any]:
    """Build example arguments of the right types, to show the call format."""
    values: dict[str, Any] = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    properties = spec.parameters.get("properties") or {}
    needed = spec.parameters.get("required") or list(properties)[:1]
    return {key: (properties[key].get("enum") or [values[(sorted(_kinds(properties[key])) or ["string"])[-1]]])[0] for key in needed}
