"""Compare piecewise functions: two of them in one form, or one with a formula without cases, such as |x|."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.math.compare.regions import REAL_LINE, Endpoint, Spans, complement_spans, merge_spans, parse_region
from rlvr.verifiers.math.compare.scalars import CompareContext
from rlvr.verifiers.math.parsing.tree import Tree, get_free_symbols, get_infinity_sign, substitute
from rlvr.verifiers.math.values.numeric import evaluate_real

OTHERWISE = ("text", "otherwise")
TEST_FRACTIONS = tuple(Fraction(share) for share in ("1/97", "5/37", "13/29", "31/41", "61/67", "96/97"))
"""Positions of test points between two ends, as fractions: unusual values, so that no formula is special there."""
TEST_DISTANCES = tuple(Fraction(away) for away in ("1/13", "3/11", "17/19", "7/3", "53/4", "1009", "1000003"))
"""Distances of test points from the only end of a half-line."""


def replace_otherwise_case(cases: Tree, other: Tree) -> Tree:
    """Replace the `otherwise` of a piecewise function by the other function's condition for the rest of the line."""
    rest = _compute_uncovered_region(cases)
    if rest is None or any(len(arg) != 3 for arg in (*cases[1:], *other[1:])):
        return cases
    names = [
        arg[2]
        for arg in other[1:]
        if arg[2] != OTHERWISE and parse_region(arg[2]) == rest and _end_flags(parse_region(arg[2])) == _end_flags(rest)
    ]
    return (cases[0], *(("tuple", arg[1], names[0]) if names and arg[2] == OTHERWISE else arg for arg in cases[1:]))


def is_equal_to_formula(cases: Tree, formula: Tree, context: CompareContext) -> bool:
    """Whether a formula has the values of a piecewise function on the whole line: |x| for x or -x.

    Tested at closed ends of the cases and at points between them; this is not a proof, so both sides must be simple.
    """
    letters = get_free_symbols(formula) | {name for arg in cases[1:] for name in get_free_symbols(arg)}
    spans = [
        (arg[1], _compute_uncovered_region(cases) if arg[2] == OTHERWISE else parse_region(arg[2])) for arg in cases[1:] if len(arg) == 3
    ]
    if len(letters) != 1 or len(spans) != len(cases) - 1 or any(places is None for _, places in spans):
        return False
    whole = merge_spans([span for _, places in spans for span in places or []])
    if whole != REAL_LINE:
        return False
    (letter,) = letters
    tried = [(part, place) for part, places in spans for span in places or [] for place in _make_test_points(span)]
    return bool(tried) and all(
        context.is_same_value(substitute(part, {letter: place}), substitute(formula, {letter: place})) for part, place in tried
    )


def _make_test_points(span: tuple[Endpoint, Endpoint]) -> list[Tree]:
    """Make test points in a span: its closed ends, and some points between them."""
    start, stop = (None if get_infinity_sign(end.tree) else Fraction(str(evaluate_real(end.tree))) for end in span)
    if start is None or stop is None:
        middle = start if start is not None else stop or Fraction(0)
        inner = [middle + away * sign for away in TEST_DISTANCES for sign in (1, -1) if (stop if sign > 0 else start) is None]
    else:
        inner = [start + (stop - start) * share for share in TEST_FRACTIONS if start < stop]
    return [end.tree for end in span if end.closed] + [("num", place.numerator, place.denominator) for place in inner]


def _compute_uncovered_region(cases: Tree) -> Spans | None:
    """Return the part of the line outside the conditions; None if they are not inequalities."""
    spelled = [parse_region(arg[2]) for arg in cases[1:] if len(arg) == 3 and arg[2] != OTHERWISE]
    if len(spelled) < len(cases) - 2 or None in spelled:
        return None
    return complement_spans([span for spans in spelled for span in spans or []])


def _end_flags(spans: Spans | None) -> list[tuple[bool, bool]]:
    return [(lo.closed, hi.closed) for lo, hi in spans or []]
