"""Compare an answer's tree with the gold's tree: dispatch by the kind of the gold; collections are matched member by member."""

from __future__ import annotations

import re
from collections.abc import Callable

from rlvr.verifiers._math.judge.members import matched, matrix, members, regions_or_words, tuples
from rlvr.verifiers._math.judge.pieces import formula, otherwise
from rlvr.verifiers._math.judge.plusminus import spread
from rlvr.verifiers._math.judge.relations import ZERO, judge_relation, named, settled
from rlvr.verifiers._math.judge.scalars import Bench, Judged, exact_or_none, finite, judge_scalar
from rlvr.verifiers._math.judge.shapes import as_letters, chosen, combinations, remainder, shaped
from rlvr.verifiers._math.judge.worked import unworked, worked
from rlvr.verifiers._math.read.atoms import name
from rlvr.verifiers._math.read.tree import TooBig, Tree, has, say, show, symbols
from rlvr.verifiers._math.read.words import ORDINALS, same_words
from rlvr.verifiers._math.value.exact import exact


def judge(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Normalize gold and answer, and compare them under the policy of the context."""
    if _bare(gold) and _bare(answer):
        return match(gold, answer, bench)
    if answer[0] == "either" and (gold[0] in ("tuple", "text", "choice") or chosen(gold)):
        return Judged(False, f"it offers {len(answer) - 1} alternatives; the gold is {say(gold)}")
    gold, answer = (("list", *tree[1:]) if tree[0] == "either" else tree for tree in (gold, answer))
    gold, answer = remainder(gold), worked(remainder(answer) if remainder(gold)[0] == "mod" else answer)
    if bench.policy.evaluated and unworked(answer) and not unworked(gold):
        return Judged(False, f"it is not evaluated: it still contains {unworked(answer)}")
    wrong = finite(answer)
    if wrong:
        return Judged(False, wrong)
    gold, answer = shaped(gold, answer)
    return match(spread(gold), spread(answer), bench)


def _bare(tree: Tree) -> bool:
    """Whether a tree is one numeral, with or without a unit, which needs no normalization."""
    return tree[0] in ("num", "dec") or (tree[0] == "unit" and tree[1][0] in ("num", "dec"))


def match(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare an answer that is already normalized, such as a member of a list."""
    bench.steps -= 1
    if bench.steps < 0:
        raise TooBig("it needs too many comparisons")
    if gold == answer and not bench.policy.form:
        return Judged(True, f"{say(answer)} is the gold")
    rule = RULES.get(gold[0])
    if rule is None and gold[0] == "const" and gold[1] in "RZNQC":
        rule = regions_or_words
    if rule is not None:
        return rule(gold, answer, bench)
    value, why = settled(gold, answer, bench)
    if value is None:
        return Judged(False, why)
    if value[0] == "set" and len(value) == 2 and answer[0] == "rel":
        value = value[1]  # x is in a set of one value
    if value[0] == "mod" and (given := exact_or_none(value[1])) is not None and 0 <= given < (exact_or_none(value[-1]) or 0):
        value = value[1]
    if value[0] == "set" and len(value) == 2:
        return Judged(False, f"{say(value)} is a set; the gold {show(gold)} is one value")
    value = as_letters(gold, value)
    if value[0] == "ratio" and len(value) == 3:
        value = ("div", value[1], value[2])
    if value[0] == "list" and _repeats(value) and all(match(gold, arg, bench).right for arg in value[1:]):
        return Judged(True, f"{say(value)} is {show(gold)} in several forms")
    if value[0] == "cases" and symbols(gold) and formula(value, gold, bench):
        return Judged(True, f"{say(value)} has the values of {show(gold)}")
    if value[0] in NOT_VALUES:
        return Judged(False, f"parsed as {say(value)}; the gold {show(gold)} is one value")
    return judge_scalar(gold, combinations(value) if has(value, "tuple") else value, bench)


def _repeats(tree: Tree) -> bool:
    """Whether a short list may be one value in several forms, `1/2, 0.5`: no repeats, and only one letter."""
    return len(set(tree[1:])) == len(tree) - 1 < 4 and len({named(arg)[0] for arg in tree[1:]} - {""}) < 2


_NOT_VALUES = "list tuple set interval union inter minus rel matrix text choice base mod ratio time cases builder"
NOT_VALUES = frozenset(_NOT_VALUES.split())


def _rel(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    return judge_relation(gold, answer, bench)


def _words(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    if answer == ("set",) and gold[1] == "no solution":
        return Judged(True, "the empty set is no solution")
    if gold[1] in ("all real numbers", "no solution"):
        return regions_or_words(gold, answer, bench)
    if answer[0] == "text":
        right = same_words(gold[1], answer[1])
        return Judged(right, f"the words {answer[1]!r} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    if answer[0] == "sym" and " " in answer[1]:
        right = name(answer[1].partition(" ")[0], gold[1].upper()) == answer
        return Judged(right, f"{show(answer)} {'is' if right else 'is not'} {gold[1]!r}")
    if answer[0] in ("list", "set") and list(gold[1]) == sorted(set(gold[1])):  # the choices AC, with a comma
        right = sorted(arg[1].lower() for arg in answer[1:] if arg[0] == "sym") == list(gold[1]) and len(gold[1]) == len(answer) - 1
        return Judged(right, f"the letters {show(answer)} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    lettered = answer[0] in ("list", "tuple") and all(arg[0] == "sym" and len(arg[1]) == 1 for arg in answer[1:])
    if lettered and len(set(answer[1:])) == len(answer) - 1:  # BADC, letter by letter
        right = "".join(arg[1] for arg in answer[1:]).lower() == gold[1]
        return Judged(right, f"the letters {show(answer)} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    if gold[1] in ORDINALS and answer == ("num", ORDINALS.index(gold[1]) + 1, 1):
        return Judged(True, f"{show(answer)} is the {gold[1]}")
    squeezed = re.sub(r"[*()\s]", "", show(answer)).lower()
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
    if answer[0] == "rel" and answer[1][0] == "sym" and len(answer[1][1]) == 1:
        return Judged(False, f"{show(answer)} is one number; the gold is {say(gold)}")
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
    wrong = Judged(False, f"{say(value)} is not {say(gold)}")
    golds, parts = list(gold[1:]), list(value[1:])
    pivot = next((place for place, part in enumerate(golds) if not bench.same(part, ZERO)), None)
    if pivot is None or bench.same(parts[pivot], ZERO):  # 0:0 has the cross products of every ratio
        return wrong
    if all(bench.same(("mul", golds[pivot], have), ("mul", parts[pivot], want)) for want, have in zip(golds, parts, strict=True)):
        return Judged(True, f"{say(value)} is {say(gold)}")
    return wrong


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
        return Judged(right, f"{say(value)} {'has' if right else 'does not have'} the values of {say(gold)}")
    if value is None or value[0] != "cases" or len(value) != len(gold):
        return Judged(False, why or f"parsed as {say(answer)}; the gold is {say(gold)}")
    gold, value = otherwise(gold, value), otherwise(value, gold)
    return matched(gold[1:], value[1:], bench)


RULES: dict[str, Callable[[Tree, Tree, Bench], Judged]] = {
    "list": members,
    "set": members,
    "tuple": tuples,
    "matrix": matrix,
    "interval": regions_or_words,
    "union": regions_or_words,
    "inter": regions_or_words,
    "minus": regions_or_words,
    "builder": regions_or_words,
    "rel": _rel,
    "text": _words,
    "choice": _choice,
    "base": _base,
    "mod": _mod,
    "ratio": _ratio,
    "time": _time,
    "cases": _cases,
}
