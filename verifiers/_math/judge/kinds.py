"""Judging a tree against the gold's tree: dispatch by the kind of the gold; collections are matched member by member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr.verifiers._math.judge.labels import quantity
from rlvr.verifiers._math.judge.pieces import formula, otherwise
from rlvr.verifiers._math.judge.plusminus import spread
from rlvr.verifiers._math.judge.regions import judge_region, region
from rlvr.verifiers._math.judge.relations import judge_relation, name_of, named, settled, unsolved
from rlvr.verifiers._math.judge.scalars import Bench, Judged, exact_or_none, finite, judge_scalar
from rlvr.verifiers._math.judge.shapes import as_letters, column, combinations, dotted, grouped, options, remainder, shaped
from rlvr.verifiers._math.judge.worked import unworked, worked
from rlvr.verifiers._math.read.atoms import name
from rlvr.verifiers._math.read.tree import TooBig, Tree, has, say, show, symbols
from rlvr.verifiers._math.read.words import ORDINALS, same_words
from rlvr.verifiers._math.value.exact import exact

MAX_MEMBERS = 60


def judge(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Whether the answer is the gold, under the bench's policy."""
    if _bare(gold) and _bare(answer):
        return _judge(gold, answer, bench)
    gold, answer = remainder(gold), worked(remainder(answer) if remainder(gold)[0] == "mod" else answer)
    if bench.policy.evaluated and unworked(answer) and not unworked(gold):
        return Judged(False, f"it was not worked out: {unworked(answer)} is left in it")
    wrong = finite(answer)
    if wrong:
        return Judged(False, wrong)
    gold, answer = shaped(gold, answer)
    return _judge(spread(gold), spread(answer), bench)


def _bare(tree: Tree) -> bool:
    """Whether a tree is one numeral, with or without a unit: there is nothing in it to bring into shape."""
    return tree[0] in ("num", "dec") or (tree[0] == "unit" and tree[1][0] in ("num", "dec"))


def _judge(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    bench.steps -= 1
    if bench.steps < 0:
        raise TooBig("it takes too many comparisons")
    if gold == answer and not bench.policy.form:
        return Judged(True, f"{say(answer)} is the gold")
    rule = RULES.get(gold[0])
    if rule is None and gold[0] == "const" and gold[1] in "RZNQC":
        rule = _region_or_words
    if rule is not None:
        return rule(gold, answer, bench)
    value, why = settled(gold, answer, bench)
    if value is None:
        return Judged(False, why)
    if value[0] == "set" and len(value) == 2 and answer[0] == "rel":
        value = value[1]  # x is one of these, and there is one
    if value[0] == "mod" and (given := exact_or_none(value[1])) is not None and 0 <= given < (exact_or_none(value[2]) or 0):
        value = value[1]
    if value[0] in ("tuple", "matrix", "set") and len(value) == 2 and value[0] == "set":
        return Judged(False, f"{say(value)} is a set; the gold {show(gold)} is one value")
    value = as_letters(gold, value)
    if value[0] == "ratio" and len(value) == 3:
        value = ("div", value[1], value[2])
    if value[0] == "list" and _repeats(value) and all(_judge(gold, arg, bench).right for arg in value[1:]):
        return Judged(True, f"{say(value)} says {show(gold)} in several forms")
    if value[0] == "cases" and symbols(gold) and formula(value, gold, bench):
        return Judged(True, f"{say(value)} has the values of {show(gold)}")
    if value[0] in NOT_VALUES:
        return Judged(False, f"parsed as {say(value)}; the gold {show(gold)} is one value")
    return judge_scalar(gold, combinations(value) if has(value, "tuple") else value, bench)


def _repeats(tree: Tree) -> bool:
    """Whether a short list may be one value in several forms, `1/2, 0.5`: no repeats, and not of several letters."""
    return len(set(tree[1:])) == len(tree) - 1 < 4 and len({named(arg)[0] for arg in tree[1:]} - {""}) < 2


_NOT_VALUES = "list tuple set interval union inter minus rel matrix text choice base mod ratio time cases builder"
NOT_VALUES = frozenset(_NOT_VALUES.split())


def _members(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """A list or a set against what should be one: every member matched once, order or no order."""
    if gold[0] == "list" and any(arg[0] == "rel" for arg in gold[1:]):
        spans = region(gold)
        if spans is not None and any(arg[2] != "=" for arg in gold[1:] if arg[0] == "rel"):
            return _region_or_words(gold, answer, bench)
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
        return _region_or_words(gold, value, bench)
    strict = bench.policy.brackets == "strict"
    ordered = bench.policy.order == "strict" and gold[0] == "list"
    if value[0] == "tuple" and gold[0] == "list" and not strict:
        ordered = True
    elif value[0] not in ("list", "set") or (strict and value[0] != gold[0]):
        if len(gold) == 2:
            return _judge(gold[1], value, bench) if gold[0] == "list" or not strict else Judged(False, f"{say(value)} is not {say(gold)}")
        return Judged(False, f"parsed as {say(value)}; the gold is {say(gold)}")
    letters, mine = ({named(arg)[0] for arg in tree[1:]} for tree in (gold, value))
    indexed = len({name.partition("_")[0] for name in letters | mine}) == 1 == min(len(letters), len(mine))  # x_1 and x_2, or x twice
    if len(letters) > 1 and "" not in letters | mine and letters != mine and not indexed:
        return Judged(False, f"it names {', '.join(sorted(mine))}; the gold names {', '.join(sorted(letters))}"[:200])
    if len(letters) > 1 and "" not in letters and mine == {""}:  # values without letters come in the letters' order, but roots in any
        ordered = ordered or len({name.partition("_")[0] for name in letters}) > 1 or min(letters)[0] in "abST"
    whole = any(arg[0] == "rel" and not named(arg)[0] for tree in (gold, value) for arg in tree[1:])  # 3x + y = 0 beside y = -3x
    golds, answers = ([named(arg)[1] for arg in tree[1:]] if indexed else _values(tree, whole) for tree in (gold, value))
    golds, answers = dotted(golds), dotted(answers)
    if gold[0] == "set" and value[0] == "set":
        golds, answers = _unique(golds, bench), _unique(answers, bench)
    if len(golds) != len(answers):
        return Judged(False, f"it has {len(answers)} values; the gold {say(gold)} has {len(golds)}")
    if len(golds) > MAX_MEMBERS:
        raise TooBig(f"it has more than {MAX_MEMBERS} members")
    return _ordered(golds, answers, bench) if ordered else _matched(golds, answers, bench)


def _values(tree: Tree, whole: bool) -> list[Tree]:
    """The members; `x = 1, x = 2` lists two values of one letter unless the whole equations are wanted, `x = 1, y = 2` stays as it is."""
    members = list(tree[1:])
    names = {named(arg)[0] for arg in members if named(arg)[0]}
    return [named(arg)[1] for arg in members] if len(names) == 1 and not whole else members


def _unique(members: Sequence[Tree], bench: Bench) -> list[Tree]:
    kept: list[Tree] = []
    for arg in members:
        if not any(_judge(other, arg, bench).right for other in kept):
            kept.append(arg)
    return kept


def _ordered(golds: Sequence[Tree], answers: Sequence[Tree], bench: Bench) -> Judged:
    for place, (want, have) in enumerate(zip(golds, answers, strict=True), 1):
        judged = _judge(spread(want), spread(have), bench)
        if not judged.right:
            return Judged(False, f"member {place}: {judged.reason}")
    return Judged(True, "every member is the gold's, in order")


def _matched(golds: Sequence[Tree], answers: Sequence[Tree], bench: Bench) -> Judged:
    left = list(answers)
    values = [exact_or_none(quantity(arg)[0]) for arg in left]
    for want in golds:
        first = exact_or_none(quantity(want)[0])
        order = sorted(range(len(left)), key=lambda k: values[k] != first)
        found = next((k for k in order if _judge(want, left[k], bench).right), None)
        if found is None:
            return Judged(False, f"the gold's member {show(want)} is missing")
        del left[found], values[found]
    return Judged(True, "the members are the gold's")


def _tuple(gold: Tree, answer: Tree, bench: Bench) -> Judged:
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
            pairs.sort(key=lambda pair: pair[0])
        value = ("tuple", *(part for _, part in pairs)) if names == {""} or len(names) == len(pairs) else value  # x = 1, x = 2 is no pair
    if value[0] == "tuple":
        if len(value) != len(gold):
            return Judged(False, f"it has {len(value) - 1} members; the gold {say(gold)} has {len(gold) - 1}")
        return _ordered(gold[1:], value[1:], bench)
    if value[0] in ("rel", "builder", "union", "inter") and len(gold) == 3:
        return _region_or_words(gold, value, bench)
    return Judged(False, f"parsed as {say(value)}; the gold is {say(gold)}")


def _matrix(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    value, why = settled(gold, answer, bench)
    if value is None:
        return Judged(False, why)
    rows = gold[1]
    if value[0] == "binom" and len(rows) == 2 and len(rows[0]) == 1:  # a column, as some countries write it
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


def _region_or_words(gold: Tree, answer: Tree, bench: Bench) -> Judged:
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
        return _judge(gold, answer[3], bench)
    if gold[0] == answer[0] and gold[0] in ("union", "inter"):
        golds, answers = _flat(gold, gold[0]), _flat(answer, gold[0])
        if len(golds) != len(answers):
            return Judged(False, f"{say(answer)} has {len(answers)} parts; the gold has {len(golds)}")
        return _matched(golds, answers, bench)
    return Judged(False, f"parsed as {say(answer)}; the gold is {say(gold)}")


def _flat(tree: Tree, op: str) -> list[Tree]:
    return [part for arg in tree[1:] for part in _flat(arg, op)] if tree[0] == op else [tree]


def _rel(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    return judge_relation(gold, answer, bench)


def _words(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    if answer == ("set",) and gold[1] == "no solution":
        return Judged(True, "the empty set is no solution")
    if gold[1] in ("all real numbers", "no solution"):
        return _region_or_words(gold, answer, bench)
    if answer[0] == "text":
        right = same_words(gold[1], answer[1])
        return Judged(right, f"the words {answer[1]!r} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    if answer[0] == "sym" and " " in answer[1]:
        right = name(answer[1].partition(" ")[0], gold[1].upper()) == answer
        return Judged(right, f"{show(answer)} {'is' if right else 'is not'} {gold[1]!r}")
    if answer[0] in ("list", "set") and list(gold[1]) == sorted(set(gold[1])):  # the choices AC, with a comma
        right = sorted(arg[1].lower() for arg in answer[1:] if arg[0] == "sym") == list(gold[1]) and len(gold[1]) == len(answer) - 1
        return Judged(right, f"the letters {show(answer)} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    if gold[1] in ORDINALS and answer == ("num", ORDINALS.index(gold[1]) + 1, 1):
        return Judged(True, f"{show(answer)} is the {gold[1]}")
    squeezed = "".join(show(answer).replace("*", "").split()).lower()
    if symbols(answer) and squeezed == "".join(str(gold[1]).split()):
        return Judged(True, "the letters are the gold's")
    return Judged(False, f"parsed as {say(answer)}; the gold is the words {gold[1]!r}")


def _choice(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    lone = answer[0] == "sym" or (answer[0] == "const" and answer[1] in "ei")
    letter = answer[1] if answer[0] == "choice" else answer[1].upper() if lone and len(answer[1]) == 1 else None
    if letter is None:
        return Judged(False, f"parsed as {say(answer)}; the gold is the choice {gold[1]}")
    return Judged(letter == gold[1], f"the choice {letter} {'is' if letter == gold[1] else 'is not'} {gold[1]}")


def _base(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    value, why = settled(gold, answer, bench)
    if value is None:
        return Judged(False, why)
    if value[0] == "base":
        right = value[2] == gold[2] and value[1].lstrip("0") == gold[1].lstrip("0")
        return Judged(right, f"{show(value)} {'is' if right else 'is not'} {show(gold)}")
    if value[0] == "num" and bench.policy.base == "optional":
        right = str(value[1]) == gold[1]
        return Judged(right, f"the digits {value[1]} {'are' if right else 'are not'} those of {show(gold)}")
    return Judged(False, f"parsed as {say(value)}; the gold is a numeral in base {gold[2]}")


def _mod(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    residue, modulus = exact(gold[1]), exact(gold[2])
    value: Tree | None = answer
    if answer[0] != "mod":
        value, why = settled(gold[1], answer, bench)
        if value is None:
            return Judged(False, why)
        return judge_scalar(gold[1], value, bench) if value[0] not in NOT_VALUES else Judged(False, f"parsed as {say(value)}")
    mine, base = exact(answer[1]), exact(answer[2])
    if residue is None or modulus is None or mine is None or base is None or not modulus:
        return Judged(False, f"{say(answer)} is not {say(gold)}")
    right = base == modulus and (mine - residue) % modulus == 0
    return Judged(right, f"{say(answer)} {'is' if right else 'is not'} {say(gold)}")


def _ratio(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    value, why = settled(gold, answer, bench)
    if value is None:
        return Judged(False, why)
    if value[0] == "time":
        value = ("ratio", ("num", value[1], 1), ("num", value[2], 1))
    if value[0] in ("div", "num", "dec") and len(gold) == 3:
        value = ("ratio", *value[1:]) if value[0] == "div" else ("ratio", value, ("num", 1, 1))
    if value[0] != "ratio" or len(value) != len(gold):
        return Judged(False, f"parsed as {say(value)}; the gold is {say(gold)}")
    for want, have in zip(gold[2:], value[2:], strict=True):
        if not bench.same(("mul", gold[1], have), ("mul", value[1], want)):
            return Judged(False, f"{say(value)} is not {say(gold)}")
    return Judged(True, f"{say(value)} is {say(gold)}")


def _time(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    if answer[0] == "time":
        halves = gold[3] == answer[3] or not gold[3] or not answer[3]
        right = gold[1:3] == answer[1:3] and halves
        return Judged(right, f"{say(answer)} {'is' if right else 'is not'} {say(gold)}")
    if gold[3] or answer[0] not in ("ratio", "div"):
        return Judged(False, f"parsed as {say(answer)}; the gold is {say(gold)}")
    return _ratio(("ratio", ("num", gold[1], 1), ("num", gold[2], 1)), answer, bench)


def _cases(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    value, why = settled(gold, answer, bench)
    if value is not None and value[0] not in NOT_VALUES:
        right = formula(gold, value, bench)
        return Judged(right, f"{say(value)} {'has' if right else 'has not'} the values of {say(gold)}")
    if value is None or value[0] != "cases" or len(value) != len(gold):
        return Judged(False, why or f"parsed as {say(answer)}; the gold is {say(gold)}")
    gold, value = otherwise(gold, value), otherwise(value, gold)
    return _matched(gold[1:], value[1:], bench)


RULES: dict[str, Any] = {
    "list": _members,
    "set": _members,
    "tuple": _tuple,
    "matrix": _matrix,
    "interval": _region_or_words,
    "union": _region_or_words,
    "inter": _region_or_words,
    "minus": _region_or_words,
    "builder": _region_or_words,
    "rel": _rel,
    "text": _words,
    "choice": _choice,
    "base": _base,
    "mod": _mod,
    "ratio": _ratio,
    "time": _time,
    "cases": _cases,
}
