"""Parse literals of Gemma and LFM2: like JSON, with other quotes, bare keys, or Python's constants. Never evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.contracts.schema import DEEPEST
from rlvr.dialects.jsontext import Broken, skip, value

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
KEY = re.compile(r"[A-Za-z_][\w\-]*", re.ASCII)
WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
PYTHON_ESCAPES: Mapping[str, str] = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True)
class Style:
    """The syntax of strings and keys of a dialect.

    >>> Style(quote='<|"|>', bare_keys=True).quote
    '<|"|>'
    """

    quote: str = ""
    """The quote mark of strings, which have no escapes; empty for Python's quotes and escapes."""
    bare_keys: bool = False
    """True if object keys may be unquoted."""


PYTHON = Style()


def read(text: str, at: int, style: Style, depth: int = 0) -> tuple[Any, int]:
    """Parse the value that starts at `at`; return it and its end. Raises ValueSyntaxError.

    >>> read("['a', {'b': True}] x", 0, PYTHON)
    (['a', {'b': True}], 18)
    """
    at = skip(text, at)
    if depth > DEEPEST:
        raise Broken(f"nested more than {DEEPEST} levels deep")
    if at >= len(text):
        raise Broken("the text ends where a value is expected", cut=True)
    if is_text(text, at, style):
        return read_text(text, at, style)
    if text[at] == "[":
        return _list(text, at + 1, style, depth)
    if text[at] == "{":
        return entries(text, at + 1, "}", ":", lambda t, a: _key(t, a, style), lambda t, a: read(t, a, style, depth + 1))
    if match := NUMBER.match(text, at):
        return value(match.group())[0], match.end()
    if (match := KEY.match(text, at)) and match.group() in WORDS:
        return WORDS[match.group()], match.end()
    if match and match.end() >= len(text):
        raise Broken("the text ends inside a value", cut=True)
    raise Broken(f"{text[at : at + 20]!r} is not a value")


def is_text(text: str, at: int, style: Style) -> bool:
    """Return whether a string starts at a position.

    >>> is_text("'a'", 0, PYTHON)
    True
    """
    return text.startswith(style.quote, at) if style.quote else text[at : at + 1] in ("'", '"')


def read_text(text: str, at: int, style: Style) -> tuple[str, int]:
    r"""Parse a quoted string; return it and its end.

    >>> read_text(r"'it\'s'", 0, PYTHON)
    ("it's", 7)
    """
    if style.quote:
        start = at + len(style.quote)
        end = text.find(style.quote, start)
        if end < 0:
            raise Broken("a string has no end", cut=True)
        return text[start:end], end + len(style.quote)
    quote, parts, at = text[at], [], at + 1
    plain = re.compile(rf"[^\\{quote}]*")
    while True:
        run = plain.match(text, at)
        assert run is not None  # it matches the empty string too
        parts.append(run.group())
        at = run.end()
        if text.startswith(quote, at):
            return "".join(parts), at + 1
        escaped = text[at + 1 : at + 2]
        if not escaped:
            raise Broken("a string has no end", cut=True)
        if escaped in "ux" and re.fullmatch(r"[0-9a-fA-F]+", digits := text[at + 2 : at + (6 if escaped == "u" else 4)]):
            parts.append(chr(int(digits, 16)))
            at += 2 + len(digits)
            continue
        parts.append(PYTHON_ESCAPES.get(escaped, "\\" + escaped))
        at += 2


def entries(
    text: str,
    at: int,
    close: str,
    between: str,
    key: Callable[[str, int], tuple[str, int]],
    one: Callable[[str, int], tuple[Any, int]],
) -> tuple[dict[str, Any], int]:
    """Parse pairs of key and value up to the closing sign; duplicate keys are errors."""
    found: dict[str, Any] = {}
    at = skip(text, at)
    if text.startswith(close, at):
        return found, at + 1
    while True:
        name, at = key(text, skip(text, at))
        at = skip(text, at)
        if not text.startswith(between, at):
            raise Broken(f"the key {name!r:.60} must be followed by {between!r}", cut=at >= len(text))
        if name in found:
            raise Broken(f"the key {name!r:.60} appears twice")
        found[name], at = one(text, at + 1)
        at = skip(text, at)
        if text.startswith(close, at):
            return found, at + 1
        if not text.startswith(",", at):
            raise Broken(f"a value must be followed by ',' or {close!r}", cut=at >= len(text))
        at += 1


def bare(text: str, at: int) -> tuple[str, int]:
    """Parse an unquoted key; return it and its end.

    >>> bare("ab:1", 0)
    ('ab', 2)
    """
    match = KEY.match(text, at)
    if not match:
        raise Broken(f"{text[at : at + 20]!r} is not the name of an argument", cut=at >= len(text))
    return match.group(), match.end()


def _key(text: str, at: int, style: Style) -> tuple[str, int]:
    if is_text(text, at, style):
        return read_text(text, at, style)
    if style.bare_keys:
        return bare(text, at)
    raise Broken(f"{text[at : at + 20]!r} is not a key between quotes", cut=at >= len(text))


def _list(text: str, at: int, style: Style, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = skip(text, at)
    if text.startswith("]", at):
        return found, at + 1
    while True:
        one, at = read(text, at, style, depth + 1)
        found.append(one)
        at = skip(text, at)
        if text.startswith("]", at):
            return found, at + 1
        if not text.startswith(",", at):
            raise Broken("an item must be followed by ',' or ']'", cut=at >= len(text))
        at += 1
