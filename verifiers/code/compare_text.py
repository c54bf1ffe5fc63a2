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
MAX_NUMBER_BYTES = 1000  # every match of `NUMBER` is shorter
CHUNK_BYTES = 1 << 18
"""Bytes that are split at a time: a few milliseconds of work."""


def is_same_text(output: bytes, expected: bytes, rule: Mapping[str, Any]) -> bool:
    r"""Whether an output equals the expected one under a rule: exact, tokens, lines, tolerance or unordered.

    >>> is_same_text(b"1  2\n", b"1 2", {"name": "tokens"})
    True
    """
    name = rule["name"]
    if output == expected or name == "exact":
        return output == expected
    if name == "lines":
        return _is_equal_sequence(_iter_lines(output), _iter_lines(expected))
    if name == "unordered":
        return _is_equal_unordered(_iter_lines(output), _iter_lines(expected))
    near = (lambda a, b: _is_close(a, b, rule)) if name == "tolerance" else None
    longest = max(len(expected), MAX_NUMBER_BYTES)
    return _is_equal_sequence(_iter_words(output, longest), _iter_words(expected, longest), near)


def _is_equal_sequence(output: Iterable[bytes], expected: Iterable[bytes], is_close: Callable[[bytes, bytes], bool] | None = None) -> bool:
    """Whether two sequences have the same length, and each item equals the other one or is close to it."""
    for mine, theirs in zip_longest(output, expected):
        if mine != theirs and (mine is None or theirs is None or is_close is None or not is_close(mine, theirs)):
            return False
    return True


def _is_equal_unordered(output: Iterable[bytes], expected: Iterable[bytes]) -> bool:
    left = Counter(expected)
    for line in output:
        if not left[line]:
            return False
        left[line] -= 1
    return not any(left.values())


def _iter_words(text: bytes, max_bytes: int) -> Iterator[bytes]:
    """Yield the words of a text; stops at a word of more than `max_bytes` bytes, which cannot be equal."""
    begun = b""
    for at in range(0, len(text), CHUNK_BYTES):
        piece = begun + text[at : at + CHUNK_BYTES]
        words = piece.split()
        begun = b"" if piece[-1:].isspace() or not words else words.pop()
        yield from words
        if len(begun) > max_bytes:
            break
    if begun:
        yield begun


def _iter_lines(text: bytes) -> Iterator[bytes]:
    text, at = text.rstrip(), 0
    while (end := text.find(b"\n", at)) >= 0:
        yield text[at:end].rstrip(b" \t\r")
        at = end + 1
    yield text[at:].rstrip(b" \t\r")


def _is_close(output: bytes, expected: bytes, rule: Mapping[str, Any]) -> bool:
    if not (NUMBER.fullmatch(output) and NUMBER.fullmatch(expected)):
        return False
    a, b = float(output), float(expected)
    if not (math.isfinite(a) and math.isfinite(b)):
        return False  # not a finite number: close to nothing
    return abs(a - b) <= max(float(rule.get("absolute", 0)), float(rule.get("relative", 0)) * abs(b))
