"""The harmony dialect (gpt-oss): a turn is a sequence of messages, each with a channel; a call is a message to `functions.NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rlvr.chat.dialects.dialect import CallScanResult, Dialect, RawCall, TurnPiece
from rlvr.chat.dialects.json_text import ValueSyntaxError, format_json, parse_value, skip_whitespace
from rlvr.turns import Call, CallStatus, ToolSpec

END_MARKS = ("<|end|>", "<|call|>", "<|return|>")
BOUNDARY_PATTERN = re.compile("|".join(map(re.escape, (*END_MARKS, "<|start|>"))))
RECIPIENT_PATTERN = re.compile(r"\bto=([\w.\-]+)", re.ASCII)
CHANNEL_PATTERN = re.compile(r"<\|channel\|>\s*(\w+)", re.ASCII)
HEADER_MARK_PATTERN = re.compile(r"<\|(?:channel|message|constrain)\|>")
MAX_HEADER_CHARACTERS = 400


class HarmonyDialect(Dialect):
    """The format of gpt-oss. The prompt ends with `<|start|>assistant`, so a turn starts inside a header."""

    name = "harmony"
    description = "gpt-oss: messages with channels; a call is addressed to functions.name"
    open_marks = ("<|start|>", "<|channel|>")
    close_marks = ("<|call|>",)
    reasoning_marks = ()
    stop_marks = ("<|call|>", "<|return|>")
    template_signatures = (("<|channel|>", "<|call|>"), ("<|channel|>commentary",))

    def format_calls(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one message per call. A model writes one call per turn, because `<|call|>` ends its turn."""
        heads = ("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>",) * len(calls)
        written = [head.format(call.name, format_json(dict(call.arguments or {}))) for head, call in zip(heads, calls, strict=True)]
        return "<|start|>assistant".join(written)

    def split_turn(self, text: str, tools: Sequence[ToolSpec], starts_in_reasoning: bool) -> Iterator[TurnPiece]:
        """Parse message by message: analysis is reasoning, a message to a tool is a call, everything else is content."""
        at, first = 0, True
        while at < len(text):
            begin = at
            if text.startswith("<|start|>", at):
                at += len("<|start|>")
            elif not (first and self._starts_in_header(text)):  # text between two messages, or a turn without any mark
                at = self._find_message_end(text, at)[0]
                yield TurnPiece("content", text[begin:at])
                at = self._find_message_end(text, at)[1] if not text.startswith("<|start|>", at) else at
                first = False
                continue
            first = False
            middle = text.find("<|message|>", at, at + MAX_HEADER_CHARACTERS)
            other = text.find("<|start|>", at, at + MAX_HEADER_CHARACTERS)
            if middle < 0 or 0 <= other < middle:
                yield from self._parse_incomplete_message(text, begin, at)
                at = self._find_message_end(text, at)[1] if other < 0 else other
                continue
            header, body = text[at:middle], middle + len("<|message|>")
            piece, at = self._parse_message(text, begin, header, body, tools)
            yield piece

    def scan_call(self, text: str, start: int, tools: Sequence[ToolSpec]) -> CallScanResult | None:
        """Return None: a turn is parsed message by message, in `split_turn`."""
        return None

    def _parse_message(self, text: str, begin: int, header: str, body: int, tools: Sequence[ToolSpec]) -> tuple[TurnPiece, int]:
        channel = CHANNEL_PATTERN.search(header)
        to = RECIPIENT_PATTERN.search(header)
        if to and to.group(1) not in ("user", "assistant"):
            found, at = self._parse_call(text, body, to.group(1).removeprefix("functions."), header, tools)
            return TurnPiece("calls", text[begin:at], (found,)), at
        end, at = self._find_message_end(text, body)
        kind = channel.group(1) if channel else "final"
        if text.startswith("<|call|>", end):
            why = "a call must be a separate message, addressed with to=functions.NAME"
            return TurnPiece(
                "calls", text[begin:at], (RawCall("", None, CallStatus.MALFORMED, why),), is_in_reasoning=kind == "analysis"
            ), at
        return TurnPiece("reasoning" if kind == "analysis" else "content", text[body:end] + ("\n" if at < len(text) else "")), at

    def _parse_call(self, text: str, body: int, name: str, header: str, tools: Sequence[ToolSpec]) -> tuple[RawCall, int]:
        spec = next((spec for spec in tools if spec.name == name), None)
        keys = list((spec.parameters.get("properties") or {}) if spec else {})
        if "json" not in header and len(keys) == 1 and text[skip_whitespace(text, body) : skip_whitespace(text, body) + 1] != "{":
            end, at = self._find_message_end(text, body)  # code for the built-in python tool
            return RawCall(name, {keys[0]: text[body:end]}), at
        try:
            given, end = parse_value(text, body)
        except ValueSyntaxError as broken:
            stop, at = self._find_message_end(text, body)
            if broken.truncated and stop >= len(text):
                return RawCall(name, None, CallStatus.UNCLOSED, "the text ends inside it"), len(text)
            return RawCall(name, None, CallStatus.BAD_JSON, str(broken)), at
        after = skip_whitespace(text, end)
        if after >= len(text):  # `<|call|>` ended the turn and was not decoded
            return RawCall(name, given), after
        if mark := BOUNDARY_PATTERN.match(text, after):
            if mark.group() == "<|start|>":
                return RawCall(name, None, CallStatus.MALFORMED, "a call must end with <|call|>"), mark.start()
            return RawCall(name, given), mark.end()
        _, at = self._find_message_end(text, after)
        return RawCall(name, None, CallStatus.MALFORMED, "the arguments must be followed by <|call|>"), at

    def _parse_incomplete_message(self, text: str, message_start: int, position: int) -> Iterator[TurnPiece]:
        """Parse a header without a message: a call if it is addressed to a tool, else content."""
        end = self._find_message_end(text, position)[0]
        to = RECIPIENT_PATTERN.search(text, position, min(end, position + MAX_HEADER_CHARACTERS))
        if to:
            status = CallStatus.UNCLOSED if end >= len(text) else CallStatus.MALFORMED
            why = "the text ends inside it" if end >= len(text) else "its header has no <|message|>"
            yield TurnPiece("calls", text[message_start:end], (RawCall(to.group(1).removeprefix("functions."), None, status, why),))
        else:
            yield TurnPiece("content", HEADER_MARK_PATTERN.sub("", text[position:end].removeprefix("assistant")))

    @staticmethod
    def _starts_in_header(text: str) -> bool:
        """Return whether a turn starts with the rest of the header that the prompt opened."""
        head = text[:MAX_HEADER_CHARACTERS].lstrip()
        return head.startswith(("<|channel|>", "to=", "<|message|>", "<|constrain|>"))

    @staticmethod
    def _find_message_end(text: str, position: int) -> tuple[int, int]:
        """Return where a message ends, and where the text continues. `<|start|>` starts the next message."""
        mark = BOUNDARY_PATTERN.search(text, position)
        if not mark:
            return len(text), len(text)
        return mark.start(), mark.start() if mark.group() == "<|start|>" else mark.end()
