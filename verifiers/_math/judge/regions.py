"""Sets of real numbers as lists of spans: intervals, unions, inequalities and mixtures of them, in one comparable form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from rlvr.verifiers._math.judge.scalars import Bench, Judged
from rlvr.verifiers._math.read.tree import Tree, Unreadable, infinite, show, symbols
from rlvr.verifiers._math.value.points import real

MINUS: Tree = ("neg", ("const", "oo"))
ZERO: Tree = ("num", 0, 1)
PLUS: Tree = ("const", "oo")
FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class End:
    """An end point, ordered by its value; `closed` says whether it is included.

    >>> End.of(("num", 1, 1), True).closed
    True
    """

    key: Any
    tree: Tree
    closed: bool

    @staticmethod
    def of(tree: Tree, closed: bool) -> End:
        """Make an end point from a tree; raises if its value is not a real number."""
        sign = infinite(tree)
        key = float("inf") * sign if sign else real(tree)
        if key is None:
            raise Unreadable(f"{show(tree)[:40]} is not an end point")
        return End(key, tree, closed and not sign)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, End) and bool(self.key == other.key)

    def __lt__(self, other: End) -> bool:
        return bool(self.key < other.key)

    def __hash__(self) -> int:
        return hash(self.key)


Span = tuple[End, End]
Spans = list[Span]
ALL: Spans = [(End.of(MINUS, False), End.of(PLUS, False))]


def merged(spans: Spans) -> Spans:
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


def complement(spans: Spans) -> Spans:
    """Return the complement on the real line."""
    at = End.of(MINUS, False)
    out: Spans = []
    for lo, hi in merged(spans):
        out.append((at, End(lo.key, lo.tree, not lo.closed and not infinite(lo.tree))))
        at = End(hi.key, hi.tree, not hi.closed and not infinite(hi.tree))
    out.append((at, End.of(PLUS, False)))
    return merged(out)


def both(a: Spans, b: Spans) -> Spans:
    """Return the intersection of two sets of spans."""
    return complement(merged(complement(a) + complement(b)))


def region(tree: Tree) -> Spans | None:
    """Parse the set of reals that a tree describes; None if it describes none (an unsolved inequality, several letters)."""
    try:
        return _region(tree)
    except Unreadable:
        return None


def _region(tree: Tree) -> Spans:
    op, args = tree[0], tree[1:]
    if op == "interval":
        return _between(End.of(args[0], args[2] == "["), End.of(args[1], args[3] == "]"))
    if op == "tuple" and len(args) == 2 and args[0] != args[1]:
        return _between(End.of(args[0], False), End.of(args[1], False))
    if op == "set":
        return merged([(End.of(arg, True), End.of(arg, True)) for arg in args])
    if tree in (("const", "R"), ("text", "all real numbers")):
        return ALL
    if tree == ("text", "no solution"):
        return []
    if op == "union":
        return merged(_region(args[0]) + _region(args[1]))
    if op == "inter":
        return both(_region(args[0]), _region(args[1]))
    if op == "minus":
        return both(_region(args[0]), complement(_region(args[1])))
    if op == "add" and len(args) == 2 and args[0] == ("const", "R") and args[1][0] == "neg" and args[1][1][0] == "set":
        return complement(_region(args[1][1]))  # R - {2}
    if op == "builder":
        return _region(args[1] if len(args) == 2 else ("list", *args[1:]))
    if op == "rel":
        return _relation(args)
    if op == "list":
        return _listed(args)
    raise Unreadable("it does not describe a set of real numbers")


def _between(low: End, high: End) -> Spans:
    """Make an interval; raises if the ends are in the wrong order: (31, 6) is a point, not the empty set."""
    if high < low:
        raise Unreadable("the first end is above the second")
    return merged([(low, high)])


def _listed(args: tuple[Tree, ...]) -> Spans:
    for place, arg in enumerate(args):  # `x != 0, 1` leaves out both
        before = args[place - 1] if place else arg
        if before[0] == "rel" and before[2:3] == ("!=",) and len(before) == 4 and not symbols(arg) and arg[0] != "rel":
            args = (*args[:place], ("rel", before[1], "!=", arg), *args[place + 1 :])
    if len({name for arg in args for name in symbols(arg)}) > 1 or any(arg[0] not in ("rel", "interval", "union") for arg in args):
        raise Unreadable("it contains several letters")
    parts = [_region(arg) for arg in args]
    whole: Spans = []
    for part in parts:
        whole = merged(whole + part)
    shape = [(bool(infinite(lo.tree)), bool(infinite(hi.tree))) for lo, hi in whole]
    common = parts[0]
    for part in parts[1:]:
        common = both(common, part)
    if shape == [(True, True)] or all(arg[0] == "rel" and "!=" in arg for arg in args):  # `x > 1, x < 3` means both
        return common
    if any("!=" in arg for arg in args):
        return common
    return whole


def _relation(args: tuple[Any, ...]) -> Spans:
    signs = [sign for sign in args[1::2]]
    values = list(args[0::2])
    if signs == ["in"] and values[0][0] == "sym":
        return _region(values[1])
    if len(values) == 2 and values[0][0] == "fun" and values[0][1] == "abs" and signs[0] in ("<", "<=", ">", ">="):
        return _absolute(values[0][2], signs[0], values[1])
    insides = [value[2] if value[0] == "fun" and value[1] == "abs" and value[2][0] == "sym" else value for value in values]
    if insides != values:  # `1 <= |x| <= 2`: the condition for a non-negative letter, and its mirror image
        parts = both(
            _relation(tuple(insides[k // 2] if k % 2 == 0 else sign for k, sign in enumerate(args))),
            [(End.of(ZERO, True), End.of(PLUS, False))],
        )
        mirrored = [(End.of(("neg", hi.tree), hi.closed), End.of(("neg", lo.tree), lo.closed)) for lo, hi in parts]
        return merged(parts + mirrored)
    letters = [place for place, value in enumerate(values) if value[0] == "sym"]
    if len(letters) != 1 or any(symbols(value) for place, value in enumerate(values) if place != letters[0]):
        raise Unreadable("it is not solved for one letter")
    place = letters[0]
    out = ALL
    for k, sign in enumerate(signs):
        if sign == "=" and len(signs) == 1:
            end = End.of(values[1 - place], True)
            return [(end, end)]
        if sign not in FLIP or k not in (place - 1, place):
            raise Unreadable("it is not an inequality in the letter")
        direction, bound = (sign, values[k + 1]) if k == place else (FLIP[sign], values[k])
        end = End.of(bound, "=" in direction)
        if direction == "!=":
            part = complement([(End(end.key, end.tree, True), End(end.key, end.tree, True))])
        else:
            part = [(End.of(MINUS, False), end)] if direction[0] == "<" else [(end, End.of(PLUS, False))]
        out = both(out, part)
    return out


def _absolute(inner: Tree, sign: str, bound: Tree) -> Spans:
    """Parse an inequality with an absolute value: |x| < 3, |x - 1| >= 2."""
    shift: Tree = ("num", 0, 1)
    if inner[0] == "add" and len(inner) == 3 and inner[1][0] == "sym" and not symbols(inner[2]):
        inner, shift = inner[1], ("neg", inner[2])
    if inner[0] != "sym" or symbols(bound):
        raise Unreadable("it is not solved for one letter")
    low, high = ("add", shift, ("neg", bound)), ("add", shift, bound)
    inside = merged([(End.of(low, "=" in sign), End.of(high, "=" in sign))])
    outside = merged([(End.of(MINUS, False), End.of(low, "=" in sign)), (End.of(high, "=" in sign), End.of(PLUS, False))])
    return inside if sign[0] == "<" else outside


def judge_region(gold: Spans, answer: Spans, bench: Bench) -> Judged:
    """Compare two sets of reals: the same spans with the same ends, open or closed."""
    if len(gold) != len(answer):
        return Judged(False, f"it is {_say(answer)}; the gold is {_say(gold)}")
    for (glo, ghi), (lo, hi) in zip(gold, answer, strict=True):
        for want, have in ((glo, lo), (ghi, hi)):
            if not (bench.same(want.tree, have.tree)):
                return Judged(False, f"it is {_say(answer)}; the gold ends at {show(want.tree)}")
            if want.closed != have.closed:
                state = "closed" if want.closed else "open"
                return Judged(False, f"parsed as {_say(answer)}; the gold is {state} at {show(want.tree)}")
    return Judged(True, f"it is {_say(gold)}")


def _say(spans: Spans) -> str:
    if not spans:
        return "the empty set"
    rows = [f"{'[' if lo.closed else '('}{show(lo.tree)}, {show(hi.tree)}{']' if hi.closed else ')'}" for lo, hi in spans]
    return f"the {'interval' if len(rows) == 1 else 'union'} {' U '.join(rows)}"[:160]
