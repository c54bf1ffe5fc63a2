"""Rational arithmetic on trees, with limits: the fast path of most comparisons, and all that integers need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from rlvr.verifiers.math.parsing.tree import MAX_BITS, LimitExceeded, Tree, has_op, list_nodes, substitute

MAX_FACTORIAL = 3_000
MAX_TERMS = 300


class NotFinite(Exception):
    """Raised for a division by zero, or arithmetic with infinity."""


def to_rational(tree: Tree) -> Fraction | None:
    """Compute a tree as one rational number; None for anything else.

    >>> to_rational(("div", ("num", 1, 1), ("dec", 25, 2)))
    Fraction(4, 1)
    """
    op = tree[0]
    if op == "num":
        if not tree[2]:
            raise NotFinite("it divides by zero")
        return Fraction(tree[1], tree[2])
    if op == "dec":
        return Fraction(tree[1]) / 10 ** tree[2] if tree[2] >= 0 else Fraction(tree[1] * 10 ** -tree[2])
    if op in ("sum", "prod"):
        return evaluate_series(tree)
    if op not in _RULES:
        return None
    args = []
    for arg in tree[1:]:
        value = to_rational(arg) if isinstance(arg, tuple) else None
        if value is None:
            return None
        args.append(value)
    return evaluate_operation(op, args)


def evaluate_operation(op: str, args: Sequence[Fraction]) -> Fraction | None:
    """Compute one operation on rational numbers; None if its value is not obviously rational.

    >>> evaluate_operation("root", [Fraction(9), Fraction(2)])
    Fraction(3, 1)
    """
    result = _RULES[op](*args)
    if result is not None and result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
        raise LimitExceeded("a number in it gets too long")
    return result


def _add(*args: Fraction) -> Fraction:
    return sum(args, Fraction(0))


def _mul(*args: Fraction) -> Fraction:
    total = Fraction(1)
    for arg in args:
        total *= arg
    return total


def _div(top: Fraction, low: Fraction) -> Fraction:
    if not low:
        raise NotFinite("it divides by zero")
    return top / low


def compute_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Compute base to the exponent if that is obviously rational; else None."""
    if not base:
        if exponent <= 0:
            raise NotFinite("it raises zero to a power that is not positive")
        return base
    if exponent.denominator != 1:
        return None
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size > 1 and size * abs(exponent) > MAX_BITS:
        raise LimitExceeded(f"a power in it has more than {MAX_BITS} bits")
    if size <= 1:
        return Fraction(1) if base == 1 or exponent % 2 == 0 else Fraction(-1)
    return base ** int(exponent)


def compute_root(base: Fraction, degree: Fraction) -> Fraction | None:
    """Compute the root if it is rational; else None."""
    if degree.denominator != 1 or not 1 <= degree <= 64 or (base < 0 and degree % 2 == 0):
        return None
    sign = -1 if base < 0 else 1
    top, low = _integer_root(abs(base.numerator), int(degree)), _integer_root(base.denominator, int(degree))
    return Fraction(sign * top, low) if top is not None and low is not None else None


def _integer_root(value: int, degree: int) -> int | None:
    if value.bit_length() > 8_000:
        return None
    if degree == 2:
        found = math.isqrt(value)
        return found if found * found == value else None
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low if low**degree == value else None


def _compute_factorial(value: Fraction) -> Fraction | None:
    """Compute n! for an integer that is not too large; None for other numbers."""
    if value.denominator != 1 or value < 0:
        return None
    if value > MAX_FACTORIAL:
        raise LimitExceeded(f"a factorial in it is over {MAX_FACTORIAL}!")
    return Fraction(math.factorial(int(value)))


def _compute_binomial(top: Fraction, low: Fraction) -> Fraction | None:
    """Compute n over k for integers that are not too large; None for other numbers."""
    if top.denominator != 1 or low.denominator != 1 or top < 0:
        return None
    if top > 20_000 or min(low, top - low) > 3_000:
        raise LimitExceeded("a binomial in it is too large")
    return Fraction(math.comb(int(top), int(low))) if low >= 0 else Fraction(0)


def evaluate_series(tree: Tree) -> Fraction | None:
    """Compute a sum or a product over a short range of integers, term by term; None for anything else.

    >>> evaluate_series(("sum", ("sym", "k"), "k", ("num", 1, 1), ("num", 4, 1)))
    Fraction(10, 1)
    """
    if len(tree) != 5 or not tree[2]:
        return None
    low, high = to_rational(tree[3]), to_rational(tree[4])
    if low is None or high is None or low.denominator != 1 or high.denominator != 1:
        return None
    if high - low >= MAX_TERMS or (high - low) * len(list_nodes(tree[1])) > 10 * MAX_TERMS or has_op(tree[1], "sum", "prod"):
        return None
    total = Fraction(0 if tree[0] == "sum" else 1)
    for k in range(int(low), int(high) + 1):
        term = to_rational(substitute(tree[1], {tree[2]: ("num", k, 1)}))
        if term is None:
            return None
        total = total + term if tree[0] == "sum" else total * term
        if total.numerator.bit_length() + total.denominator.bit_length() > MAX_BITS:
            raise LimitExceeded("a number in it gets too long")
    return total


_RULES: dict[str, Callable[..., Fraction | None]] = {
    "add": _add,
    "mul": _mul,
    "neg": lambda a: -a,
    "div": _div,
    "pow": compute_power,
    "root": compute_root,
    "fact": _compute_factorial,
    "binom": _compute_binomial,
}
