"""The interface of a dialect (a tool call format): its marks, a formatter, and a linear-time parser that never raises."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rlvr.chat.dialects.json_text import ValueSyntaxError, parse_complete_value
from rlvr.contracts.schema import SchemaValidationError, validate_arguments
from rlvr.errors import format_suggestion
from rlvr.turns import Call, CallStatus, ToolSpec, Turn

TOOL_NAME_PATTERN = re.compile(r"[A-Za-z_][\w.\-]{0,127}", re.ASCII)
"""The allowed names of a tool."""
MAX_CALLS = 64
"""The maximum number of calls parsed from one turn; the remaining text is content."""
MAX_ARGUMENT_DEPTH = 64
"""The maximum depth of nested values in the arguments of a call."""


class UnwritableCallError(ValueError):
    """A call that the dialect cannot express, because its text contains one of the dialect's own marks."""


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as written in the text, before validation against the tools.

    >>> RawCall("search", {"query": "rain"}).status
    <CallStatus.OK: 'ok'>
    """

    name: str
    arguments: Any = None
    status: CallStatus = CallStatus.OK
    error_detail: str = ""
    is_untyped: bool = False
    """True if values are written without types, so that the schema determines how they are parsed."""


@dataclass(frozen=True, slots=True)
class CallScanResult:
    """The result of scanning one call mark.

    >>> CallScanResult((RawCall("now", {}),), 10).end
    10
    """

    raw_calls: tuple[RawCall, ...]
    end: int
    """The position after the call."""


@dataclass(frozen=True, slots=True)
class TurnPiece:
    """A part of a turn: content, reasoning, or the calls after one mark.

    >>> TurnPiece("content", "hello").raw_calls
    ()
    """

    kind: Literal["content", "reasoning", "calls"]
    text: str
    raw_calls: tuple[RawCall, ...] = ()
    is_in_reasoning: bool = False
    """True if it is inside the reasoning."""


class Dialect(ABC):
    """A tool call format. A subclass defines the marks, `format_calls`, and `scan_call`."""

    name: str
    description: str
    open_marks: tuple[str, ...]
    """The marks that may start a call."""
    reasoning_marks: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    """The marks around reasoning."""
    close_marks: tuple[str, ...] = ()
    """The marks that may end a call; empty if it ends with the turn."""
    ignored_marks: tuple[str, ...] = ()
    """Marks that are not part of any content, such as the end of a section."""
    stop_marks: tuple[str, ...] = ()
    """Marks that must be stop tokens; otherwise the policy would continue and invent the result."""
    is_plain_text: bool = False
    """True if calls are plain text without a stop token; the turn is then ended after its first complete call."""
    template_signatures: tuple[tuple[str, ...], ...] = ()
    """How to recognize a chat template of this dialect: it contains all strings of one of these groups."""

    @abstractmethod
    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format calls as the policy would write them; raise UnwritableCallError if one cannot be expressed."""

    @abstractmethod
    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse the call that starts with the mark at `start`; None if it is plain text. Never raises."""

    def parse_turn(
        self,
        text: str,
        tools: Sequence[ToolSpec] = (),
        *,
        turn: int = 0,
        finish_reason: Literal["stop", "length"] = "stop",
        starts_in_reasoning: bool = False,
    ) -> Turn:
        """Parse a turn. Never raises; each call has a status.

        Args:
            text: everything that the policy wrote.
            tools: the tools that it was given.
            turn: the number of the turn, for the ids of the calls.
            finish_reason: why it ended; the last call of a truncated turn is not executed unless its closing mark is present.
            starts_in_reasoning: whether the prompt already opened the reasoning.
        """
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[Call] = []
        held = {spec.name: spec for spec in tools}
        parts = [piece for piece in self.split_turn(text, tools, starts_in_reasoning) if piece.text]
        for piece in parts:
            if piece.kind == "calls":
                cut = finish_reason == "length" and piece is parts[-1] and not piece.text.rstrip().endswith(self.close_marks)
                for found in piece.raw_calls:
                    calls.append(
                        validate_call(
                            _mark_truncated(found) if cut else found,
                            held,
                            f"{turn}.{len(calls)}",
                            piece.text,
                            is_in_reasoning=piece.is_in_reasoning,
                        )
                    )
            elif piece.kind == "reasoning":
                reasoning.append(piece.text)
            else:
                content.append(piece.text)
        said = self._strip_ignored_marks("".join(content)).strip()
        return Turn(text, said, "".join(reasoning).strip(), tuple(calls), finish_reason)

    def split_turn(self, text: str, tools: Sequence[ToolSpec], starts_in_reasoning: bool) -> Iterator[TurnPiece]:
        """Split a turn into its parts, in order and in linear time."""
        at, count = 0, 0
        if starts_in_reasoning or self._closes_reasoning_first(text):
            end, at = self._find_reasoning_end(text, 0)
            yield from self._split_reasoning(text[:end], tools)
        start, blank = at, True
        if step := self.parse_unmarked_turn(text, at, tools):
            yield TurnPiece("calls", text[at : step.end], step.raw_calls)
            start = at = step.end
            blank = False
        while (mark := self._mark_pattern.search(text, at)) and count < MAX_CALLS:
            if mark.group() in self._reasoning_closers:
                yield TurnPiece("content", text[start : mark.start()])
                blank = blank and not text[start : mark.start()].strip()
                end, at = self._find_reasoning_end(text, mark.end(), self._reasoning_closers[mark.group()])
                yield from self._split_reasoning(text[mark.end() : end], tools)
                if blank and (step := self.parse_unmarked_turn(text, at, tools)):
                    yield TurnPiece("calls", text[at : step.end], step.raw_calls)
                    at, blank = step.end, False
                start = at
                continue
            step = self.scan_call(text, mark.start(), tools)
            if step is None:
                at = mark.end()
                continue
            yield TurnPiece("content", text[start : mark.start()])
            blank = False
            start = at = max(step.end, mark.end())
            count += len(step.raw_calls)
            yield TurnPiece("calls", text[mark.start() : at], step.raw_calls)
        yield TurnPiece("content", text[start:])

    def format_instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Format a system prompt that lists the tools and the call format, for chat templates without tool support."""
        lines = ["You can call these tools:", ""]
        for spec in tools:
            lines += [json.dumps(spec.to_openai_format()["function"], ensure_ascii=False)]
        example = Call("0.0", tools[0].name, _build_example_arguments(tools[0])) if tools else Call("0.0", "name", {})
        lines += ["", "To call one, write exactly this, with your own values:", self.format_calls([example], tools)]
        ends = (
            f"Your turn ends with the call, and the next message has its result, as {self.format_result_as_user_message('NAME', '...')!r}."
        )
        return "\n".join([*lines, "", f"{ends} When you need no more calls, write the answer."])

    def format_result_as_user_message(self, name: str, text: str) -> str:
        """Format a tool result as a labelled user message, for chat templates without tool support."""
        return f"Result of {name}:\n{text}"

    def has_complete_call(self, text: str, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool = False) -> bool:
        """Return whether the finished lines of a text contain a complete call outside of the reasoning."""
        lines = text[: max(text.rfind("\n"), 0)]
        calls = (
            call
            for call in self.parse_turn(lines, tools, starts_in_reasoning=starts_in_reasoning).calls
            if call.status is not CallStatus.IN_THOUGHT
        )
        return next((call.status is not CallStatus.UNCLOSED for call in calls), False)

    # ---- for subclasses

    def parse_unmarked_turn(self, text: str, position: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Parse a turn that consists of calls without a mark, possibly after reasoning; None for other turns."""
        return None

    def build_unclosed_result(self, text: str, name: str = "", raw_calls: Sequence[RawCall] = ()) -> CallScanResult:
        """Build the result for a text that ends inside a call."""
        return CallScanResult((*raw_calls, RawCall(name, None, CallStatus.UNCLOSED, "the text ends inside it")), len(text))

    # ---- inside

    @cached_property
    def _reasoning_closers(self) -> dict[str, str]:
        return dict(self.reasoning_marks)

    @cached_property
    def _mark_pattern(self) -> re.Pattern[str]:
        marks = sorted({*self.open_marks, *self._reasoning_closers}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, marks)))

    def _closes_reasoning_first(self, text: str) -> bool:
        """Return whether a reasoning block is closed before anything is opened; then the prompt had opened it."""
        closes = [at for close in self._reasoning_closers.values() if (at := text.find(close)) >= 0]
        mark = self._mark_pattern.search(text)
        if self.parse_unmarked_turn(text, 0, ()):
            return False
        return bool(closes) and (mark is None or min(closes) < mark.start())

    def _find_reasoning_end(self, text: str, position: int, closing_mark: str = "") -> tuple[int, int]:
        """Return where the reasoning ends, and where the text continues."""
        closes = [closing_mark] if closing_mark else list(self._reasoning_closers.values())
        ends = [(end, end + len(one)) for one in closes if (end := text.find(one, position)) >= 0]
        return min(ends, default=(len(text), len(text)))

    def _split_reasoning(self, text: str, tools: Sequence[ToolSpec]) -> Iterator[TurnPiece]:
        """Yield the reasoning, and the calls inside it, which are never executed."""
        yield TurnPiece("reasoning", text)
        at, count = 0, 0
        while (mark := self._mark_pattern.search(text, at)) and count < MAX_CALLS:
            step = None if mark.group() in self._reasoning_closers else self.scan_call(text, mark.start(), tools)
            at = max(step.end, mark.end()) if step else mark.end()
            if step:
                count += len(step.raw_calls)
                yield TurnPiece("calls", text[mark.start() : at], step.raw_calls, is_in_reasoning=True)

    def _strip_ignored_marks(self, text: str) -> str:
        for mark in self.ignored_marks:
            text = text.replace(mark, "")
        return text


def validate_call(raw_call: RawCall, tools: Mapping[str, ToolSpec], call_id: str, raw_text: str, *, is_in_reasoning: bool = False) -> Call:
    """Validate a call and set its final status.

    >>> validate_call(RawCall("now", {}), {"now": ToolSpec("now", "The time.")}, "0.0", "now()").status
    <CallStatus.OK: 'ok'>
    """
    status, why, given = raw_call.status, raw_call.error_detail, raw_call.arguments
    if status is CallStatus.OK and not raw_call.name:
        status, why = CallStatus.NO_NAME, f"the tools are {', '.join(tools) or 'none'}"
    elif status is CallStatus.OK and raw_call.name not in tools:
        status, why = CallStatus.UNKNOWN_TOOL, f"{raw_call.name!r:.80} is unknown; {format_suggestion(raw_call.name, tools)}"
    elif status is CallStatus.OK and not isinstance(given, Mapping):
        status, why = CallStatus.BAD_ARGUMENTS, "the arguments are not an object of names and values"
    elif status is CallStatus.OK:
        try:
            schema = tools[raw_call.name].parameters
            given = validate_arguments(schema, _parse_untyped_arguments(schema, given) if raw_call.is_untyped else given)
        except SchemaValidationError as wrong:
            status, why = CallStatus.BAD_ARGUMENTS, str(wrong)
    if problem := _find_unstorable_value(given):
        given = None
        status, why = (CallStatus.BAD_JSON, problem) if status in (CallStatus.OK, CallStatus.BAD_ARGUMENTS) else (status, why)
    if is_in_reasoning:
        status, why = CallStatus.IN_THOUGHT, ""
    shown = dict(given) if isinstance(given, Mapping) else None
    return Call(call_id, raw_call.name, shown, status, raw_text, why)


def _find_unstorable_value(value: Any) -> str:
    """Say why a value cannot be stored as JSON: 1e400 is read as infinity, and a thousand brackets are too deep; "" if it can be."""
    level = [value]
    for _ in range(MAX_ARGUMENT_DEPTH):
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            return "a number is too large"
        level = [
            inner
            for one in level
            if isinstance(one, Mapping | list | tuple)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return ""
    return f"its values are nested deeper than {MAX_ARGUMENT_DEPTH} levels"


def _mark_truncated(raw_call: RawCall) -> RawCall:
    return RawCall(raw_call.name, None, CallStatus.UNCLOSED, "the turn was cut off at its limit of tokens")


def _parse_untyped_arguments(schema: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse values without types by the schema: strings are kept, everything else is JSON.

    Python's names for true, false and null are accepted too, because chat templates write them.

    >>> _parse_untyped_arguments({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}, {"a": "3", "b": "3"})
    {'a': '3', 'b': 3}
    """
    properties = schema.get("properties") or {}
    return {key: _parse_untyped_value(properties.get(key, {}), value) for key, value in texts.items()}


def _parse_untyped_value(schema: Mapping[str, Any], text: str) -> Any:
    kinds = _get_schema_types(schema)
    if kinds == {"string"}:
        return text
    words = {"True": True, "False": False, "None": None}
    bare = text.strip()
    try:
        value = words[bare] if bare in words else parse_complete_value(bare)
    except ValueSyntaxError:
        return text
    # if several types are allowed, a value is a string unless it is valid for another type
    return text if "string" in kinds and not _is_allowed_value(kinds - {"string"}, value) else value


def _get_schema_types(schema: Mapping[str, Any]) -> set[str]:
    if "anyOf" in schema:
        return {kind for one in schema["anyOf"] for kind in _get_schema_types(one)}
    kind = schema.get("type")
    return {kind} if isinstance(kind, str) else set(kind or ())


def _is_allowed_value(kinds: set[str], value: Any) -> bool:
    try:
        return bool(kinds) and validate_arguments({"properties": {"x": {"type": sorted(kinds)}}}, {"x": value}) is not None
    except SchemaValidationError:
        return False


def _build_example_arguments(spec: ToolSpec) -> dict[str, Any]:
    """Build example arguments of the right types, to show the call format."""
    values: dict[str, Any] = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    properties = spec.parameters.get("properties") or {}
    needed = spec.parameters.get("required") or list(properties)[:1]
    return {
        key: (properties[key].get("enum") or [values[(sorted(_get_schema_types(properties[key])) or ["string"])[-1]]])[0] for key in needed
    }
