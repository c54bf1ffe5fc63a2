"""Parse literals of Gemma and LFM2: like JSON, with other quotes, bare keys, or Python's constants. Never evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.chat.dialects.json_text import ValueSyntaxError, parse_value, skip_whitespace
from rlvr.contracts.schema import MAX_NESTING_DEPTH

NUMBER_PATTERN = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
KEY_PATTERN = re.compile(r"[A-Za-z_][\w\-]*", re.ASCII)
CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
PYTHON_ESCAPES: Mapping[str, str] = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True)
class LiteralSyntax:
    """The syntax of strings and keys of a dialect.

    >>> LiteralSyntax(quote='<|"|>', bare_keys=True).quote
    '<|"|>'
    """

    quote: str = ""
    """The quote mark of strings, which have no escapes; empty for Python's quotes and escapes."""
    bare_keys: bool = False
    """True if object keys may be unquoted."""


PYTHON_STYLE = LiteralSyntax()


def parse_literal(text: str, position: int, style: LiteralSyntax, nesting_depth: int = 0) -> tuple[Any, int]:
    """Parse the value that starts at `position`; return it and its end. Raises ValueSyntaxError.

    >>> parse_literal("['a', {'b': True}] x", 0, PYTHON_STYLE)
    (['a', {'b': True}], 18)
    """
    position = skip_whitespace(text, position)
    if nesting_depth > MAX_NESTING_DEPTH:
        raise ValueSyntaxError(f"nested more than {MAX_NESTING_DEPTH} levels deep")
    if position >= len(text):
        raise ValueSyntaxError("the text ends where a value is expected", cut=True)
    if _has_string_at(text, position, style):
        return _parse_string(text, position, style)
    if text[position] == "[":
        return _parse_list(text, position + 1, style, nesting_depth)
    if text[position] == "{":
        return parse_entries(
            text, position + 1, "}", ":", lambda t, a: _parse_key(t, a, style), lambda t, a: parse_literal(t, a, style, nesting_depth + 1)
        )
    if match := NUMBER_PATTERN.match(text, position):
        return parse_value(match.group())[0], match.end()
    if (match := KEY_PATTERN.match(text, position)) and match.group() in CONSTANTS:
        return CONSTANTS[match.group()], match.end()
    if match and match.end() >= len(text):
        raise ValueSyntaxError("the text ends inside a value", cut=True)
    raise ValueSyntaxError(f"{text[position : position + 20]!r} is not a value")


def _has_string_at(text: str, position: int, style: LiteralSyntax) -> bool:
    """Return whether a string starts at a position.

    >>> _has_string_at("'a'", 0, PYTHON_STYLE)
    True
    """
    return text.startswith(style.quote, position) if style.quote else text[position : position + 1] in ("'", '"')


def _parse_string(text: str, position: int, style: LiteralSyntax) -> tuple[str, int]:
    r"""Parse a quoted string; return it and its end.

    >>> _parse_string(r"'it\'s'", 0, PYTHON_STYLE)
    ("it's", 7)
    """
    if style.quote:
        start = position + len(style.quote)
        end = text.find(style.quote, start)
        if end < 0:
            raise ValueSyntaxError("a string has no end", cut=True)
        return text[start:end], end + len(style.quote)
    quote, parts, position = text[position], [], position + 1
    plain = re.compile(rf"[^\\{quote}]*")
    while True:
        run = plain.match(text, position)
        assert run is not None  # it matches the empty string too
        parts.append(run.group())
        position = run.end()
        if text.startswith(quote, position):
            return "".join(parts), position + 1
        escaped = text[position + 1 : position + 2]
        if not escaped:
            raise ValueSyntaxError("a string has no end", cut=True)
        if escaped in "ux" and re.fullmatch(r"[0-9a-fA-F]+", digits := text[position + 2 : position + (6 if escaped == "u" else 4)]):
            parts.append(chr(int(digits, 16)))
            position += 2 + len(digits)
            continue
        parts.append(PYTHON_ESCAPES.get(escaped, "\\" + escaped))
        position += 2


def parse_entries(
    text: str,
    position: int,
    closing_sign: str,
    key_separator: str,
    parse_key: Callable[[str, int], tuple[str, int]],
    parse_item: Callable[[str, int], tuple[Any, int]],
) -> tuple[dict[str, Any], int]:
    """Parse pairs of key and value up to the closing sign; duplicate keys are errors."""
    found: dict[str, Any] = {}
    position = skip_whitespace(text, position)
    if text.startswith(closing_sign, position):
        return found, position + 1
    while True:
        name, position = parse_key(text, skip_whitespace(text, position))
        position = skip_whitespace(text, position)
        if not text.startswith(key_separator, position):
            raise ValueSyntaxError(f"the key {name!r:.60} must be followed by {key_separator!r}", cut=position >= len(text))
        if name in found:
            raise ValueSyntaxError(f"the key {name!r:.60} appears twice")
        found[name], position = parse_item(text, position + 1)
        position = skip_whitespace(text, position)
        if text.startswith(closing_sign, position):
            return found, position + 1
        if not text.startswith(",", position):
            raise ValueSyntaxError(f"a value must be followed by ',' or {closing_sign!r}", cut=position >= len(text))
        position += 1


def parse_bare_key(text: str, position: int) -> tuple[str, int]:
    """Parse an unquoted key; return it and its end.

    >>> parse_bare_key("ab:1", 0)
    ('ab', 2)
    """
    match = KEY_PATTERN.match(text, position)
    if not match:
        raise ValueSyntaxError(f"{text[position : position + 20]!r} is not the name of an argument", cut=position >= len(text))
    return match.group(), match.end()


def _parse_key(text: str, at: int, style: LiteralSyntax) -> tuple[str, int]:
    if _has_string_at(text, at, style):
        return _parse_string(text, at, style)
    if style.bare_keys:
        return parse_bare_key(text, at)
    raise ValueSyntaxError(f"{text[at : at + 20]!r} is not a key between quotes", cut=at >= len(text))


def _parse_list(text: str, at: int, style: LiteralSyntax, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = skip_whitespace(text, at)
    if text.startswith("]", at):
        return found, at + 1
    while True:
        one, at = parse_literal(text, at, style, depth + 1)
        found.append(one)
        at = skip_whitespace(text, at)
        if text.startswith("]", at):
            return found, at + 1
        if not text.startswith(",", at):
            raise ValueSyntaxError("an item must be followed by ',' or ']'", cut=at >= len(text))
        at += 1
