"""Sets of real numbers as lists of spans: intervals, unions, inequalities and mixtures of them, in one comparable form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from rlvr.verifiers.math.compare.scalars import CompareContext, Comparison
from rlvr.verifiers.math.parsing.tree import ParseError, Tree, format_tree, get_free_symbols, get_infinity_sign
from rlvr.verifiers.math.values.numeric import evaluate_real

MINUS_INFINITY: Tree = ("neg", ("const", "oo"))
ZERO: Tree = ("num", 0, 1)
PLUS_INFINITY: Tree = ("const", "oo")
FLIPPED_SIGNS = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """An end point, ordered by its value; `closed` says whether it is included.

    >>> Endpoint.from_tree(("num", 1, 1), True).closed
    True
    """

    key: Any
    tree: Tree
    closed: bool

    @staticmethod
    def from_tree(tree: Tree, closed: bool) -> Endpoint:
        """Make an end point from a tree; raises if its value is not a real number."""
        sign = get_infinity_sign(tree)
        key = float("inf") * sign if sign else evaluate_real(tree)
        if key is None:
            raise ParseError(f"{format_tree(tree)[:40]} is not an end point")
        return Endpoint(key, tree, closed and not sign)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Endpoint) and bool(self.key == other.key)

    def __lt__(self, other: Endpoint) -> bool:
        return bool(self.key < other.key)

    def __hash__(self) -> int:
        return hash(self.key)


Span = tuple[Endpoint, Endpoint]
Spans = list[Span]
REAL_LINE: Spans = [(Endpoint.from_tree(MINUS_INFINITY, False), Endpoint.from_tree(PLUS_INFINITY, False))]


def merge_spans(spans: Spans) -> Spans:
    """Sort spans, drop empty ones and merge touching ones."""
    kept = [(lo, hi) for lo, hi in spans if lo < hi or (lo == hi and lo.closed and hi.closed)]
    kept.sort(key=lambda span: (span[0].key, not span[0].closed))
    out: Spans = []
    for lo, hi in kept:
        if out and (lo < out[-1][1] or (lo == out[-1][1] and (lo.closed or out[-1][1].closed))):
            last = out[-1][1]
            further = hi > last or (hi == last and hi.closed and not last.closed)
            out[-1] = (out[-1][0], hi if further else last)
        else:
            out.append((lo, hi))
    return out


def complement_spans(spans: Spans) -> Spans:
    """Return the complement on the real line."""
    at = Endpoint.from_tree(MINUS_INFINITY, False)
    out: Spans = []
    for lo, hi in merge_spans(spans):
        out.append((at, Endpoint(lo.key, lo.tree, not lo.closed and not get_infinity_sign(lo.tree))))
        at = Endpoint(hi.key, hi.tree, not hi.closed and not get_infinity_sign(hi.tree))
    out.append((at, Endpoint.from_tree(PLUS_INFINITY, False)))
    return merge_spans(out)


def _intersect_spans(a: Spans, b: Spans) -> Spans:
    """Return the intersection of two sets of spans."""
    return complement_spans(merge_spans(complement_spans(a) + complement_spans(b)))


def parse_region(tree: Tree) -> Spans | None:
    """Parse the set of reals that a tree describes; None if it describes none (an unsolved inequality, several letters)."""
    try:
        return _parse_region(tree)
    except ParseError:
        return None


def _parse_region(tree: Tree) -> Spans:
    op, args = tree[0], tree[1:]
    if op == "interval":
        return _make_interval(Endpoint.from_tree(args[0], args[2] == "["), Endpoint.from_tree(args[1], args[3] == "]"))
    if op == "tuple" and len(args) == 2 and args[0] != args[1]:
        return _make_interval(Endpoint.from_tree(args[0], False), Endpoint.from_tree(args[1], False))
    if op == "set":
        return merge_spans([(Endpoint.from_tree(arg, True), Endpoint.from_tree(arg, True)) for arg in args])
    if tree in (("const", "R"), ("text", "all real numbers")):
        return REAL_LINE
    if tree == ("text", "no solution"):
        return []
    if op == "union":
        return merge_spans(_parse_region(args[0]) + _parse_region(args[1]))
    if op == "inter":
        return _intersect_spans(_parse_region(args[0]), _parse_region(args[1]))
    if op == "minus":
        return _intersect_spans(_parse_region(args[0]), complement_spans(_parse_region(args[1])))
    if op == "add" and len(args) == 2 and args[0] == ("const", "R") and args[1][0] == "neg" and args[1][1][0] == "set":
        return complement_spans(_parse_region(args[1][1]))  # R - {2}
    if op == "builder":
        return _parse_region(args[1] if len(args) == 2 else ("list", *args[1:]))
    if op == "rel":
        return _parse_relation(args)
    if op == "list":
        return _parse_list(args)
    raise ParseError("it does not describe a set of real numbers")


def _make_interval(low: Endpoint, high: Endpoint) -> Spans:
    """Make an interval; raises if the ends are in the wrong order: (31, 6) is a point, not the empty set."""
    if high < low:
        raise ParseError("the first end is above the second")
    return merge_spans([(low, high)])


def _parse_list(args: tuple[Tree, ...]) -> Spans:
    for place, arg in enumerate(args):  # `x != 0, 1` leaves out both
        before = args[place - 1] if place else arg
        if before[0] == "rel" and before[2:3] == ("!=",) and len(before) == 4 and not get_free_symbols(arg) and arg[0] != "rel":
            args = (*args[:place], ("rel", before[1], "!=", arg), *args[place + 1 :])
    if len({name for arg in args for name in get_free_symbols(arg)}) > 1 or any(arg[0] not in ("rel", "interval", "union") for arg in args):
        raise ParseError("it contains several letters")
    parts = [_parse_region(arg) for arg in args]
    whole: Spans = []
    for part in parts:
        whole = merge_spans(whole + part)
    shape = [(bool(get_infinity_sign(lo.tree)), bool(get_infinity_sign(hi.tree))) for lo, hi in whole]
    common = parts[0]
    for part in parts[1:]:
        common = _intersect_spans(common, part)
    if shape == [(True, True)] or all(arg[0] == "rel" and "!=" in arg for arg in args):  # `x > 1, x < 3` means both
        return common
    if any("!=" in arg for arg in args):
        return common
    return whole


def _parse_relation(args: tuple[Any, ...]) -> Spans:
    signs = [sign for sign in args[1::2]]
    values = list(args[0::2])
    if signs == ["in"] and values[0][0] == "sym":
        return _parse_region(values[1])
    if len(values) == 2 and values[0][0] == "fun" and values[0][1] == "abs" and signs[0] in ("<", "<=", ">", ">="):
        return _solve_absolute_inequality(values[0][2], signs[0], values[1])
    insides = [value[2] if value[0] == "fun" and value[1] == "abs" and value[2][0] == "sym" else value for value in values]
    if insides != values:  # `1 <= |x| <= 2`: the condition for a non-negative letter, and its mirror image
        parts = _intersect_spans(
            _parse_relation(tuple(insides[k // 2] if k % 2 == 0 else sign for k, sign in enumerate(args))),
            [(Endpoint.from_tree(ZERO, True), Endpoint.from_tree(PLUS_INFINITY, False))],
        )
        mirrored = [(Endpoint.from_tree(("neg", hi.tree), hi.closed), Endpoint.from_tree(("neg", lo.tree), lo.closed)) for lo, hi in parts]
        return merge_spans(parts + mirrored)
    values = [value[1] if _is_call(value) else value for value in values]  # 1 <= f(x) <= 5 is a condition for the values of f
    letters = [place for place, value in enumerate(values) if value[0] == "sym"]
    if len(letters) != 1 or any(get_free_symbols(value) for place, value in enumerate(values) if place != letters[0]):
        raise ParseError("it is not solved for one letter")
    place = letters[0]
    out = REAL_LINE
    for k, sign in enumerate(signs):
        if sign == "=" and len(signs) == 1:
            end = Endpoint.from_tree(values[1 - place], True)
            return [(end, end)]
        if sign not in FLIPPED_SIGNS or k not in (place - 1, place):
            raise ParseError("it is not an inequality in the letter")
        direction, bound = (sign, values[k + 1]) if k == place else (FLIPPED_SIGNS[sign], values[k])
        end = Endpoint.from_tree(bound, "=" in direction)
        if direction == "!=":
            part = complement_spans([(Endpoint(end.key, end.tree, True), Endpoint(end.key, end.tree, True))])
        else:
            part = (
                [(Endpoint.from_tree(MINUS_INFINITY, False), end)]
                if direction[0] == "<"
                else [(end, Endpoint.from_tree(PLUS_INFINITY, False))]
            )
        out = _intersect_spans(out, part)
    return out


def _is_call(tree: Tree) -> bool:
    """Whether a tree is the value of a function at a letter, `f(x)`, and not a product: its letter is the function's."""
    return tree[0] == "mul" and len(tree) == 3 and tree[1][0] == tree[2][0] == "sym" and tree[1][1] in ("f", "g", "h", "F", "G")


def _solve_absolute_inequality(inner: Tree, sign: str, bound: Tree) -> Spans:
    """Parse an inequality with an absolute value: |x| < 3, |x - 1| >= 2."""
    shift: Tree = ("num", 0, 1)
    if inner[0] == "add" and len(inner) == 3 and inner[1][0] == "sym" and not get_free_symbols(inner[2]):
        inner, shift = inner[1], ("neg", inner[2])
    if inner[0] != "sym" or get_free_symbols(bound):
        raise ParseError("it is not solved for one letter")
    low, high = ("add", shift, ("neg", bound)), ("add", shift, bound)
    inside = merge_spans([(Endpoint.from_tree(low, "=" in sign), Endpoint.from_tree(high, "=" in sign))])
    outside = merge_spans(
        [
            (Endpoint.from_tree(MINUS_INFINITY, False), Endpoint.from_tree(low, "=" in sign)),
            (Endpoint.from_tree(high, "=" in sign), Endpoint.from_tree(PLUS_INFINITY, False)),
        ]
    )
    return inside if sign[0] == "<" else outside


def compare_regions(gold: Spans, answer: Spans, context: CompareContext) -> Comparison:
    """Compare two sets of reals: the same spans with the same ends, open or closed."""
    if len(gold) != len(answer):
        return Comparison(False, f"it is {_describe(answer)}; the gold is {_describe(gold)}")
    for (glo, ghi), (lo, hi) in zip(gold, answer, strict=True):
        for want, have in ((glo, lo), (ghi, hi)):
            if not (context.is_same_value(want.tree, have.tree)):
                return Comparison(False, f"it is {_describe(answer)}; the gold ends at {format_tree(want.tree)}")
            if want.closed != have.closed:
                state = "closed" if want.closed else "open"
                return Comparison(False, f"parsed as {_describe(answer)}; the gold is {state} at {format_tree(want.tree)}")
    return Comparison(True, f"it is {_describe(gold)}")


def _describe(spans: Spans) -> str:
    if not spans:
        return "the empty set"
    rows = [f"{'[' if lo.closed else '('}{format_tree(lo.tree)}, {format_tree(hi.tree)}{']' if hi.closed else ')'}" for lo, hi in spans]
    return f"the {'interval' if len(rows) == 1 else 'union'} {' U '.join(rows)}"[:160]
