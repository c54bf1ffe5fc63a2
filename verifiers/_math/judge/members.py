"""Compare collections: lists, sets, tuples, matrices, and the sets of numbers that intervals and conditions describe."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.verifiers._math.judge.labels import quantity
from rlvr.verifiers._math.judge.plusminus import spread
from rlvr.verifiers._math.judge.regions import judge_region, region
from rlvr.verifiers._math.judge.relations import name_of, named, settled, unsolved
from rlvr.verifiers._math.judge.scalars import Bench, Judged, exact_or_none
from rlvr.verifiers._math.judge.shapes import column, dotted, grouped, options
from rlvr.verifiers._math.read.tree import TooBig, Tree, say, show

MAX_MEMBERS = 60


def members(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare a list or a set: every member must match exactly one member, in order or in any order."""
    if gold[0] == "list" and any(arg[0] == "rel" for arg in gold[1:]):
        spans = region(gold)
        if spans is not None and any(arg[2] != "=" for arg in gold[1:] if arg[0] == "rel"):
            return regions_or_words(gold, answer, bench)
    value: Tree | None = answer
    if answer[0] == "rel":
        value, why = settled(gold, answer, bench)
        if value is None:
            return Judged(False, why)
        value = spread(value)
    assert value is not None
    gold, value = grouped(gold), options(gold, grouped(value))
    if not len(gold) > 1:
        empty = value in (("set",), ("text", "no solution"), ("text", "none"))
        return Judged(empty, f"{say(value)} {'is' if empty else 'is not'} the empty set")
    if gold[0] == "set" and value[0] in ("union", "inter", "minus", "builder"):
        return regions_or_words(gold, value, bench)
    strict = bench.policy.brackets == "strict"
    ordered = bench.policy.order == "strict" and gold[0] == "list"
    if value[0] == "tuple" and gold[0] == "list" and not strict:
        ordered = True
    elif value[0] not in ("list", "set") or (strict and value[0] != gold[0]):
        if len(gold) == 2:
            return (
                bench.match(gold[1], value, bench) if gold[0] == "list" or not strict else Judged(False, f"{say(value)} is not {say(gold)}")
            )
        return Judged(False, f"parsed as {say(value)}; the gold is {say(gold)}")
    letters, mine = ({named(arg)[0] for arg in tree[1:]} for tree in (gold, value))
    indexed = len({name.partition("_")[0] for name in letters | mine}) == 1 == min(len(letters), len(mine))  # x_1 and x_2, or x twice
    if len(letters) > 1 and "" not in letters | mine and letters != mine and not indexed:
        return Judged(False, f"it names {', '.join(sorted(mine))}; the gold names {', '.join(sorted(letters))}"[:200])
    if len(letters) > 1 and "" not in letters and mine == {""}:  # values without letters come in the letters' order, but roots in any
        ordered = ordered or len({name.partition("_")[0] for name in letters}) > 1 or min(letters)[0] in "abST"
    whole = any(arg[0] == "rel" and not named(arg)[0] for tree in (gold, value) for arg in tree[1:])  # 3x + y = 0 next to y = -3x
    golds, answers = ([named(arg)[1] for arg in tree[1:]] if indexed else _values(tree, whole) for tree in (gold, value))
    golds, answers = dotted(golds), dotted(answers)
    if gold[0] == "set" and value[0] == "set":
        golds, answers = _unique(golds, bench), _unique(answers, bench)
    if len(golds) != len(answers):
        return Judged(False, f"it has {len(answers)} values; the gold {say(gold)} has {len(golds)}")
    if len(golds) > MAX_MEMBERS:
        raise TooBig(f"it has more than {MAX_MEMBERS} members")
    return _ordered(golds, answers, bench) if ordered else matched(golds, answers, bench)


def _values(tree: Tree, whole: bool) -> list[Tree]:
    """Return the members; `x = 1, x = 2` lists two values of one letter unless the gold has whole equations; `x = 1, y = 2` stays."""
    members = list(tree[1:])
    names = {named(arg)[0] for arg in members if named(arg)[0]}
    return [named(arg)[1] for arg in members] if len(names) == 1 and not whole else members


def _unique(members: Sequence[Tree], bench: Bench) -> list[Tree]:
    kept: list[Tree] = []
    for arg in members:
        if not any(bench.match(other, arg, bench).right for other in kept):
            kept.append(arg)
    return kept


def _ordered(golds: Sequence[Tree], answers: Sequence[Tree], bench: Bench) -> Judged:
    for place, (want, have) in enumerate(zip(golds, answers, strict=True), 1):
        judged = bench.match(spread(want), spread(have), bench)
        if not judged.right:
            return Judged(False, f"member {place}: {judged.reason}")
    return Judged(True, "every member matches the gold's, in order")


def matched(golds: Sequence[Tree], answers: Sequence[Tree], bench: Bench) -> Judged:
    """Compare members in any order: every member of the gold must match exactly one member of the answer."""
    left = list(answers)
    values = [exact_or_none(quantity(arg)[0]) for arg in left]
    for want in golds:
        first = exact_or_none(quantity(want)[0])
        order = sorted(range(len(left)), key=lambda k: values[k] != first)
        found = next((k for k in order if bench.match(want, left[k], bench).right), None)
        if found is None:
            return Judged(False, f"the gold's member {show(want)} is missing")
        del left[found], values[found]
    return Judged(True, "the members match the gold's")


def tuples(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare a point or a pair: as a tuple, a column, a list in order, or named coordinates."""
    if (
        answer[0] == "rel"
        and answer[1][0] == "tuple"
        and "".join(name_of(arg) for arg in answer[1][1:]) in ("yx", "zyx", "yxz", "xzy", "zxy")
    ):
        return Judged(False, f"{show(answer[1])} are the coordinates in another order")
    value, why = settled(gold, answer, bench)
    if value is None:
        if len(gold) == 3 and region(answer) is not None:
            value = answer
        else:
            return Judged(False, why)
    strict = bench.policy.brackets == "strict"
    if value[0] == "mul" and len(value) == 3 and value[1][0] == "sym" and value[2][0] == "tuple":
        value = value[2]  # a point with its name: A(1, 2)
    if value[0] == "matrix" and (len(value[1]) == 1 or len(value[1][0]) == 1) and not strict:
        value = ("tuple", *(cell for row in value[1] for cell in row))
    if value[0] == "list" and not strict:
        pairs = [named(arg) for arg in value[1:]]
        names = {name for name, _ in pairs}
        if "" not in names and len(names) == len(pairs):
            pairs = _in_order(pairs)
        apart = names == {""} or ("" not in names and len(names) == len(pairs))  # x = 1, x = 2 and x = 1, 2 are values of one letter
        value = ("tuple", *(part for _, part in pairs)) if apart else value
    if value[0] == "tuple":
        if len(value) != len(gold):
            return Judged(False, f"it has {len(value) - 1} members; the gold {say(gold)} has {len(gold) - 1}")
        return _ordered(gold[1:], value[1:], bench)
    if value[0] in ("rel", "builder", "union", "inter") and len(gold) == 3:
        return regions_or_words(gold, value, bench)
    return Judged(False, f"parsed as {say(value)}; the gold is {say(gold)}")


_POLAR = ("rho", "r", "theta", "phi", "varphi", "z")


def _in_order(pairs: list[tuple[str, Tree]]) -> list[tuple[str, Tree]]:
    """Sort named coordinates into their usual order: Latin letters alphabetically, polar coordinates by convention, others as written.

    >>> [name for name, _ in _in_order([("y", ()), ("x", ())])], [name for name, _ in _in_order([("theta", ()), ("r", ())])]
    (['x', 'y'], ['r', 'theta'])
    """
    names = [name for name, _ in pairs]
    if all(len(name.partition("_")[0]) == 1 for name in names):
        return sorted(pairs, key=lambda pair: pair[0])
    return sorted(pairs, key=lambda pair: _POLAR.index(pair[0])) if set(names) <= set(_POLAR) else pairs


def matrix(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare a matrix or a vector, row by row."""
    value, why = settled(gold, answer, bench)
    if value is None:
        return Judged(False, why)
    rows = gold[1]
    if value[0] == "binom" and len(rows) == 2 and len(rows[0]) == 1:  # a column, as written in some countries
        value = column(value[1:])
    if value[0] == "interval" and value[3:] == ("[", "]"):
        value = ("tuple", value[1], value[2])
    if value[0] == "tuple":
        parts = [("tuple", *arg[1:3]) if arg[0] == "interval" else arg for arg in value[1:]]
        if all(arg[0] == "tuple" for arg in parts):
            value = ("matrix", tuple(tuple(arg[1:]) for arg in parts))
        elif len(rows) == 1 or len(rows[0]) == 1:
            value = ("matrix", (value[1:],) if len(rows) == 1 else tuple((cell,) for cell in value[1:]))
    if value[0] != "matrix":
        return Judged(False, f"parsed as {say(value)}; the gold is {say(gold)}")
    if [len(row) for row in value[1]] != [len(row) for row in rows]:
        return Judged(False, f"it is {len(value[1])} by {len(value[1][0])}; the gold is {len(rows)} by {len(rows[0])}")
    return _ordered([cell for row in rows for cell in row], [cell for row in value[1] for cell in row], bench)


def regions_or_words(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare a set of numbers: as intervals, as a solved condition, or in words."""
    if unsolved(gold) is None and (left := unsolved(answer)) is not None:
        return Judged(False, f"{show(left)} is not solved yet; the gold is {say(gold)}")
    want, have = region(gold), region(answer)
    if want is not None and have is not None:
        if answer[0] == "set" and len(answer) > 1 and gold[0] in ("interval", "tuple"):
            return Judged(False, f"parsed as {say(answer)}; the gold is {say(gold)}")
        return judge_region(want, have, bench)
    if gold[0] == "interval" and answer[0] == "interval":
        if gold[3:] != answer[3:]:
            return Judged(False, f"parsed as {say(answer)}; the gold is {say(gold)}: the brackets differ")
        return _ordered(gold[1:3], answer[1:3], bench)
    if answer[0] == "rel" and answer[2] == "in":
        return bench.match(gold, answer[3], bench)
    if gold[0] == answer[0] and gold[0] in ("union", "inter"):
        golds, answers = _flat(gold, gold[0]), _flat(answer, gold[0])
        if len(golds) != len(answers):
            return Judged(False, f"{say(answer)} has {len(answers)} parts; the gold has {len(golds)}")
        return matched(golds, answers, bench)
    return Judged(False, f"parsed as {say(answer)}; the gold is {say(gold)}")


def _flat(tree: Tree, op: str) -> list[Tree]:
    return [part for arg in tree[1:] for part in _flat(arg, op)] if tree[0] == op else [tree]
