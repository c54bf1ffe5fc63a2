"""The harmony dialect (gpt-oss): a turn is a sequence of messages, each with a channel; a call is a message to `functions.NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rlvr.dialects.dialect import Dialect, Found, Piece, Step
from rlvr.dialects.jsontext import Broken, dumps, skip, value
from rlvr.turns import Call, CallStatus, ToolSpec

ENDS = ("<|end|>", "<|call|>", "<|return|>")
BOUNDARY = re.compile("|".join(map(re.escape, (*ENDS, "<|start|>"))))
TO = re.compile(r"\bto=([\w.\-]+)", re.ASCII)
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)", re.ASCII)
HEADER = re.compile(r"<\|(?:channel|message|constrain)\|>")
LONGEST_HEADER = 400


class Harmony(Dialect):
    """The format of gpt-oss. The prompt ends with `<|start|>assistant`, so a turn starts inside a header."""

    name = "harmony"
    about = "gpt-oss: messages with channels; a call is addressed to functions.name"
    opens = ("<|start|>", "<|channel|>")
    closes = ("<|call|>",)
    thoughts = ()
    stops = ("<|call|>", "<|return|>")
    signs = (("<|channel|>", "<|call|>"), ("<|channel|>commentary",))

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one message per call. A model writes one call per turn, because `<|call|>` ends its turn."""
        heads = ("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>",) * len(calls)
        written = [head.format(call.name, dumps(dict(call.arguments or {}))) for head, call in zip(heads, calls, strict=True)]
        return "<|start|>assistant".join(written)

    def pieces(self, text: str, tools: Sequence[ToolSpec], thinking: bool) -> Iterator[Piece]:
        """Parse message by message: analysis is reasoning, a message to a tool is a call, everything else is content."""
        at, first = 0, True
        while at < len(text):
            begin = at
            if text.startswith("<|start|>", at):
                at += len("<|start|>")
            elif not (first and self._is_header(text)):  # text between two messages, or a turn without any mark
                at = self._boundary(text, at)[0]
                yield Piece("content", text[begin:at])
                at = self._boundary(text, at)[1] if not text.startswith("<|start|>", at) else at
                first = False
                continue
            first = False
            middle = text.find("<|message|>", at, at + LONGEST_HEADER)
            other = text.find("<|start|>", at, at + LONGEST_HEADER)
            if middle < 0 or 0 <= other < middle:
                yield from self._headless(text, begin, at)
                at = self._boundary(text, at)[1] if other < 0 else other
                continue
            header, body = text[at:middle], middle + len("<|message|>")
            piece, at = self._message(text, begin, header, body, tools)
            yield piece

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Return None: a turn is parsed message by message, in `split_turn`."""
        return None

    def _message(self, text: str, begin: int, header: str, body: int, tools: Sequence[ToolSpec]) -> tuple[Piece, int]:
        channel = CHANNEL.search(header)
        to = TO.search(header)
        if to and to.group(1) not in ("user", "assistant"):
            found, at = self._call(text, body, to.group(1).removeprefix("functions."), header, tools)
            return Piece("calls", text[begin:at], (found,)), at
        end, at = self._boundary(text, body)
        kind = channel.group(1) if channel else "final"
        if text.startswith("<|call|>", end):
            why = "a call must be a separate message, addressed with to=functions.NAME"
            return Piece("calls", text[begin:at], (Found("", None, CallStatus.MALFORMED, why),), thought=kind == "analysis"), at
        return Piece("reasoning" if kind == "analysis" else "content", text[body:end] + ("\n" if at < len(text) else "")), at

    def _call(self, text: str, body: int, name: str, header: str, tools: Sequence[ToolSpec]) -> tuple[Found, int]:
        spec = next((spec for spec in tools if spec.name == name), None)
        keys = list((spec.parameters.get("properties") or {}) if spec else {})
        if "json" not in header and len(keys) == 1 and text[skip(text, body) : skip(text, body) + 1] != "{":
            end, at = self._boundary(text, body)  # code for the built-in python tool
            return Found(name, {keys[0]: text[body:end]}), at
        try:
            given, end = value(text, body)
        except Broken as broken:
            stop, at = self._boundary(text, body)
            if broken.cut and stop >= len(text):
                return Found(name, None, CallStatus.UNCLOSED, "the text ends inside it"), len(text)
            return Found(name, None, CallStatus.BAD_JSON, str(broken)), at
        after = skip(text, end)
        if after >= len(text):  # `<|call|>` ended the turn and was not decoded
            return Found(name, given), after
        if mark := BOUNDARY.match(text, after):
            if mark.group() == "<|start|>":
                return Found(name, None, CallStatus.MALFORMED, "a call must end with <|call|>"), mark.start()
            return Found(name, given), mark.end()
        _, at = self._boundary(text, after)
        return Found(name, None, CallStatus.MALFORMED, "the arguments must be followed by <|call|>"), at

    def _headless(self, text: str, begin: int, at: int) -> Iterator[Piece]:
        """Parse a header without a message: a call if it is addressed to a tool, else content."""
        end = self._boundary(text, at)[0]
        to = TO.search(text, at, min(end, at + LONGEST_HEADER))
        if to:
            status = CallStatus.UNCLOSED if end >= len(text) else CallStatus.MALFORMED
            why = "the text ends inside it" if end >= len(text) else "its header has no <|message|>"
            yield Piece("calls", text[begin:end], (Found(to.group(1).removeprefix("functions."), None, status, why),))
        else:
            yield Piece("content", HEADER.sub("", text[at:end].removeprefix("assistant")))

    @staticmethod
    def _is_header(text: str) -> bool:
        """Return whether a turn starts with the rest of the header that the prompt opened."""
        head = text[:LONGEST_HEADER].lstrip()
        return head.startswith(("<|channel|>", "to=", "<|message|>", "<|constrain|>"))

    @staticmethod
    def _boundary(text: str, at: int) -> tuple[int, int]:
        """Return where a message ends, and where the text continues. `<|start|>` starts the next message."""
        mark = BOUNDARY.search(text, at)
        if not mark:
            return len(text), len(text)
        return mark.start(), mark.start() if mark.group() == "<|start|>" else mark.end()
