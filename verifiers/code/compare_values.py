"""Compare a result with the expected one, as plain data, by a declared rule. Runs in the checker process, in the sandbox.

rule        a result is right when it is
exact       equal; a list equals a tuple with the same items, True is not 1 (also in a set or as a key)
tolerance   equal, but numbers at any depth may differ by `absolute` or `relative`
unordered   the same items in any order, at the top level
"""

from __future__ import annotations

import decimal
import fractions
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.verifiers.code.wire import OpaqueValue

VALUE_RULES = ("exact", "tolerance", "unordered")


def is_same_value(got: Any, expected: Any, rule: Mapping[str, Any]) -> bool:
    """Whether a returned value equals the expected one under a rule: exact, tolerance or unordered.

    >>> is_same_value((1, 2.0), [1, 2], {"name": "exact"})
    True
    """
    if rule["name"] == "unordered" and _is_sequence(got) and _is_sequence(expected):
        rest = list(expected)
        for item in got:
            index = next((i for i, other in enumerate(rest) if _is_equal(item, other, rule)), None)
            if index is None:
                return False
            del rest[index]
        return not rest
    return _is_equal(got, expected, rule)


def _is_equal(got: Any, wanted: Any, rule: Mapping[str, Any]) -> bool:
    if isinstance(got, OpaqueValue) or isinstance(wanted, OpaqueValue):
        return False
    if isinstance(wanted, bool) or isinstance(got, bool) or wanted is None or got is None:
        return got is wanted
    if _is_number(wanted) and _is_number(got):
        return bool(got == wanted) or (rule["name"] == "tolerance" and _is_close_value(got, wanted, rule))
    if _is_sequence(wanted) and _is_sequence(got):
        return len(got) == len(wanted) and all(_is_equal(a, b, rule) for a, b in zip(got, wanted, strict=True))
    if isinstance(wanted, dict) and isinstance(got, dict):
        theirs = {_make_hash_key(key): item for key, item in wanted.items()}
        mine = {_make_hash_key(key): item for key, item in got.items()}
        return mine.keys() == theirs.keys() and all(_is_equal(mine[key], item, rule) for key, item in theirs.items())
    if isinstance(wanted, set | frozenset) and type(got) is type(wanted):
        return {_make_hash_key(item) for item in got} == {_make_hash_key(item) for item in wanted}
    return type(got) is type(wanted) and bool(got == wanted)


def _make_hash_key(value: Any) -> Any:
    """Replace a member of a set or a key of a dict so that True and 1 differ there too."""
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, tuple):
        return "tuple", tuple(map(_make_hash_key, value))
    return ("frozenset", frozenset(map(_make_hash_key, value))) if isinstance(value, frozenset) else value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex | decimal.Decimal | fractions.Fraction)


def _is_close_value(got: Any, wanted: Any, rule: Mapping[str, Any]) -> bool:
    try:
        a, b = complex(got), complex(wanted)
    except (OverflowError, ValueError, TypeError):
        return False
    if not all(map(math.isfinite, (a.real, a.imag, b.real, b.imag))):
        return False  # not a finite number: close to nothing
    return abs(a - b) <= max(float(rule.get("absolute", 0)), float(rule.get("relative", 0)) * abs(b))
