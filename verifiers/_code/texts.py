"""Compare an output with the expected one, by a declared rule.

The output is untrusted and may be large, and this runs in rlvr's own process. So it is read in chunks, and only up to the first
difference: splitting or sorting all of it would block every other thread.

rule        an output is right when it has
exact       the same bytes
tokens      the same words, with any whitespace between them (the default)
lines       the same lines, without spaces at their ends
tolerance   the same words; numbers may differ by `absolute` or `relative`
unordered   the same lines in any order
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

TEXT_RULES = ("tokens", "exact", "lines", "tolerance", "unordered")
NUMBER = re.compile(rb"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?")
LONGEST = 1000  # every match of `NUMBER` is shorter
PIECE = 1 << 18
"""Bytes that are split at a time: a few milliseconds of work."""


def same_text(said: bytes, wanted: bytes, rule: Mapping[str, Any]) -> bool:
    r"""Whether an output is the expected one.

    >>> same_text(b"1  2\n", b"1 2", {"name": "tokens"})
    True
    """
    name = rule["name"]
    if said == wanted or name == "exact":
        return said == wanted
    if name == "lines":
        return _alike(_lines(said), _lines(wanted))
    if name == "unordered":
        return _any_order(_lines(said), _lines(wanted))
    near = (lambda a, b: _near(a, b, rule)) if name == "tolerance" else None
    longest = max(len(wanted), LONGEST)
    return _alike(_words(said, longest), _words(wanted, longest), near)


def _alike(said: Iterable[bytes], wanted: Iterable[bytes], near: Callable[[bytes, bytes], bool] | None = None) -> bool:
    """Whether two sequences have the same length, and each item equals the other one or is close to it."""
    for mine, theirs in zip_longest(said, wanted):
        if mine != theirs and (mine is None or theirs is None or near is None or not near(mine, theirs)):
            return False
    return True


def _any_order(said: Iterable[bytes], wanted: Iterable[bytes]) -> bool:
    left = Counter(wanted)
    for line in said:
        if not left[line]:
            return False
        left[line] -= 1
    return not any(left.values())


def _words(text: bytes, longest: int) -> Iterator[bytes]:
    """Yield the words of a text; stops at a word of more than `longest` bytes, which cannot be equal."""
    begun = b""
    for at in range(0, len(text), PIECE):
        piece = begun + text[at : at + PIECE]
        words = piece.split()
        begun = b"" if piece[-1:].isspace() or not words else words.pop()
        yield from words
        if len(begun) > longest:
            break
    if begun:
        yield begun


def _lines(text: bytes) -> Iterator[bytes]:
    text, at = text.rstrip(), 0
    while (end := text.find(b"\n", at)) >= 0:
        yield text[at:end].rstrip(b" \t\r")
        at = end + 1
    yield text[at:].rstrip(b" \t\r")


def _near(said: bytes, wanted: bytes, rule: Mapping[str, Any]) -> bool:
    if not (NUMBER.fullmatch(said) and NUMBER.fullmatch(wanted)):
        return False
    a, b = float(said), float(wanted)
    if not (math.isfinite(a) and math.isfinite(b)):
        return False  # not a finite number: close to nothing
    return abs(a - b) <= max(float(rule.get("absolute", 0)), float(rule.get("relative", 0)) * abs(b))
