"""Comparing what came out with what was expected, as plain data and by a declared rule.

rule        text (standard output)                                  values (results of calls)
exact       byte for byte                                           equal; a list and a tuple are alike, True is not 1
tokens      the same words, however they are spaced (the default)   -
lines       the same lines, without spaces at their ends            -
tolerance   words; numbers may differ by `absolute` or `relative`   the same for numbers in any depth
unordered   the same lines in any order                             the same items in any order, at the top level
"""

from __future__ import annotations

import decimal
import fractions
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.verifiers._code.wire import Opaque

TEXT_RULES, VALUE_RULES = ("tokens", "exact", "lines", "tolerance", "unordered"), ("exact", "tolerance", "unordered")
NUMBER = re.compile(rb"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?")


def same_text(said: bytes, wanted: bytes, rule: Mapping[str, Any]) -> bool:
    r"""Whether an output is the expected one.

    >>> same_text(b"1  2\n", b"1 2", {"name": "tokens"})
    True
    """
    name = rule["name"]
    if name == "exact":
        return said == wanted
    if name == "lines":
        return _lines(said) == _lines(wanted)
    if name == "unordered":
        return sorted(_lines(said)) == sorted(_lines(wanted))
    mine, theirs = said.split(), wanted.split()
    if name == "tokens" or mine == theirs:
        return mine == theirs
    return len(mine) == len(theirs) and all(a == b or _near_text(a, b, rule) for a, b in zip(mine, theirs, strict=True))


def same_value(got: Any, wanted: Any, rule: Mapping[str, Any]) -> bool:
    """Whether a result is the expected one.

    >>> same_value((1, 2.0), [1, 2], {"name": "exact"})
    True
    """
    if rule["name"] == "unordered" and _sequence(got) and _sequence(wanted):
        rest = list(wanted)
        for item in got:
            index = next((i for i, other in enumerate(rest) if _same(item, other, rule)), None)
            if index is None:
                return False
            del rest[index]
        return not rest
    return _same(got, wanted, rule)


def _same(got: Any, wanted: Any, rule: Mapping[str, Any]) -> bool:
    if isinstance(got, Opaque) or isinstance(wanted, Opaque):
        return False
    if isinstance(wanted, bool) or isinstance(got, bool) or wanted is None or got is None:
        return got is wanted
    if _number(wanted) and _number(got):
        return bool(got == wanted) or (rule["name"] == "tolerance" and _near(got, wanted, rule))
    if _sequence(wanted) and _sequence(got):
        return len(got) == len(wanted) and all(_same(a, b, rule) for a, b in zip(got, wanted, strict=True))
    if isinstance(wanted, dict) and isinstance(got, dict):
        return len(got) == len(wanted) and all(key in got and _same(got[key], item, rule) for key, item in wanted.items())
    return type(got) is type(wanted) and bool(got == wanted)


def _sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | complex | decimal.Decimal | fractions.Fraction)


def _near(got: Any, wanted: Any, rule: Mapping[str, Any]) -> bool:
    try:
        a, b = complex(got), complex(wanted)
    except (OverflowError, ValueError, TypeError):
        return False
    if not all(map(math.isfinite, (a.real, a.imag, b.real, b.imag))):
        return False  # what is no number is near nothing
    return abs(a - b) <= max(float(rule.get("absolute", 0)), float(rule.get("relative", 0)) * abs(b))


def _near_text(said: bytes, wanted: bytes, rule: Mapping[str, Any]) -> bool:
    return bool(NUMBER.fullmatch(said) and NUMBER.fullmatch(wanted)) and _near(float(said), float(wanted), rule)


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip(b" \t\r") for line in text.rstrip().split(b"\n")]
