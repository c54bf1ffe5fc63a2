"""Compare relations: extract values from assignments, check chains, compare equations and inequalities."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rlvr.verifiers._math.judge.regions import FLIP, judge_region, region
from rlvr.verifiers._math.judge.scalars import Bench, Judged
from rlvr.verifiers._math.read.tree import Tree, say, show, symbols, walk
from rlvr.verifiers._math.value.exact import NotFinite, exact
from rlvr.verifiers._math.value.normal import Normaliser
from rlvr.verifiers._math.value.points import real

_APPLIED = frozenset("fghpqFGHPQRSTAVNEabuvwd")
_MEASURES = frozenset(("sin", "cos", "tan", "cot", "sec", "csc", "det", "arg", "Re", "Im", "gcd", "lcm", "max", "min"))
ZERO: Tree = ("num", 0, 1)
_UNKNOWNS = frozenset("kmntxy")
"""Letters whose absolute value is not a requested quantity: `|x| = 5` is an equation with two solutions, `|z| = 5` a modulus."""


def name_of(tree: Tree) -> str:
    """Find the name on one side of an assignment: `x`, `f(x)`, `(x, y)`; "" if it is not a name."""
    if tree[0] == "sym":
        return str(tree[1])
    if tree[0] == "mul" and all(node[0] == "mul" or (node[0] == "sym" and node[1].isupper()) for node in walk(tree)):
        return "".join(sorted(symbols(tree)))
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[2][0] in ("sym", "tuple"):
        timed = tree[2] == ("sym", "t") and len(tree[1][1]) == 1  # x(t) = ...
        return str(tree[1][1]) if timed or tree[1][1].rstrip("'") in tuple("fghpqyPQRSTuvwFGH") else ""
    if tree[0] == "mul" and tree[1][0] == "pow" and tree[1][1][0] == "sym" and tree[1][2] == ("neg", ("num", 1, 1)) and len(tree) == 3:
        return f"{tree[1][1][1]}^-1"
    if tree[0] == "pow" and tree[1][0] == "sym" and tree[1][1].isupper() and tree[2] in (("neg", ("num", 1, 1)), ("sym", "T")):
        return f"{tree[1][1]}^{show(tree[2])}"
    if tree[0] == "fun" and tree[1] == "abs":
        inner = name_of(tree[2])
        return inner and f"|{inner}|"
    if tree[0] == "div" and tree[1][0] == tree[2][0] == "mul" and tree[1][1] == tree[2][1] == ("sym", "d"):
        return f"{tree[1][-1][1]}'"
    if tree[0] == "tuple" and all(arg[0] == "sym" for arg in tree[1:]):
        return "(" + ",".join(arg[1] for arg in tree[1:]) + ")"
    return ""


def named(tree: Tree) -> tuple[str, Tree]:
    """Split `x = 5` into name and value; any other tree has the name "" and is its own value."""
    if tree[0] == "rel" and len(tree) == 4 and tree[2] == "=":
        left, right = name_of(tree[1]), name_of(tree[3])
        if left and tree[1] != tree[3]:
            return left, tree[3]
        if right:
            return right, tree[1]
        if quantity_of(tree[1]) and not symbols(tree[3]):
            return quantity_of(tree[1]), tree[3]
    return "", tree


def quantity_of(tree: Tree) -> str:
    r"""Find the name of a requested quantity of more than one letter: `f(2)`, `a:b`, `AB/CD`, `\sin A`; "" for anything else."""
    op = tree[0]
    if op == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[1][1].rstrip("'") in _APPLIED and not symbols(tree[2]):
        return show(tree)
    if op == "ratio" and all(arg[0] == "sym" for arg in tree[1:]):
        return show(tree)
    if op == "div" and all(arg[0] == "sym" or (arg[0] == "mul" and name_of(arg)) for arg in tree[1:]):
        return show(tree)
    if op == "fun" and tree[1] in _MEASURES and len(tree) == 3 and tree[2][0] == "sym":
        return show(tree)
    return show(tree) if any(row(tree) for row in _ASKED) else ""


def _of_letters(tree: Tree, *names: str) -> bool:
    """Whether a tree is one of these functions of an expression with letters."""
    return tree[0] == "fun" and tree[1] in names and len(tree) == 3 and bool(symbols(tree[2]))


_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_ASKED: tuple[Callable[[Tree], bool], ...] = (
    lambda tree: _of_letters(tree, *_TRIGONOMETRIC),  # sin 2A
    lambda tree: tree[0] == "pow" and _of_letters(tree[1], *_TRIGONOMETRIC) and not symbols(tree[2]),  # tan^2 x
    lambda tree: _of_letters(tree, "ln"),  # ln k
    lambda tree: tree[0] == "div" and _of_letters(tree[1], "ln") and tree[2][:2] == ("fun", "ln"),  # log_2 x
    lambda tree: _of_letters(tree, "abs") and (len(symbols(tree)) > 1 or tree[2][0] == "sym"),  # |z - w|, but |x - 1| is not solved
)
"""Forms of expressions that name a requested quantity."""


def _line(tree: Tree) -> bool:
    """Whether a sum in x, y and z has coefficients or a number in it: 2x + 3y - 6 is a line or a curve, x + y may be what is requested."""
    terms = [arg[1] if arg[0] == "neg" else arg for arg in tree[1:]]
    scaled = any(not symbols(term) or (term[0] in ("mul", "div") and any(not symbols(arg) for arg in term[1:])) for term in terms)
    return scaled and all(letter.partition("_")[0] in ("x", "y", "z") for letter in symbols(tree))


def asked(tree: Tree) -> bool:
    """Whether the left side of an equation only names the requested quantity: `m + n = 204`, `f(1) + f(2) = 6`.

    An equation in one letter might be unsolved; an equation in several letters determines none of them.
    """
    if tree[:2] == ("fun", "abs") and tree[2][0] == "sym" and tree[2][1] in _UNKNOWNS:
        return False
    if name_of(tree) or quantity_of(tree):
        return True
    if tree[0] in ("add", "mul", "neg", "div", "pow", "root") and len(symbols(tree)) > 1:
        return tree[0] != "add" or not _line(tree)
    return tree[0] == "add" and all(quantity_of(arg[1] if arg[0] == "neg" else arg) for arg in tree[1:])


def solved(tree: Tree) -> bool:
    """Whether a relation has nothing left to solve: `x = 5`, `x > 5`, `1 < |x| <= 2`, and the definition `f(x) = 2x`.

    >>> x, two = ("sym", "x"), ("num", 2, 1)
    >>> solved(("rel", x, "=", two)), solved(("rel", ("mul", two, x), "=", two))
    (True, False)
    """
    parts = tree[1::2]
    lettered = [part for part in parts if symbols(part)]
    if len(lettered) == 1:
        (part,) = lettered
        return bool(name_of(part) or quantity_of(part))
    left = parts[0]
    defined = tree[2] == "=" and left[0] == "mul" and len(left) == 3 and left[1][0] == left[2][0] == "sym"
    return defined and bool(name_of(left)) and left[1][1] not in symbols(parts[1])


def unsolved(tree: Tree) -> Tree | None:
    """Find the first relation in an answer that is not solved; None if there is none."""
    if tree[0] == "rel":
        name, value = named(tree)
        return None if tree[2] == "in" or solved(tree) or (name and name not in symbols(value)) else tree
    if tree[0] in ("list", "union", "inter", "builder"):
        return next((found for arg in tree[1:] if (found := unsolved(arg)) is not None), None)
    return None


def settled(gold: Tree, answer: Tree, bench: Bench) -> tuple[Tree | None, str]:
    """Extract the value that an answer asserts if the gold is one value: `x = 5` asserts 5, a chain must be consistent."""
    if answer[0] != "rel":
        return answer, ""
    signs, parts = answer[2::2], list(answer[1::2])
    if list(signs) == ["in"]:
        return (parts[1], "") if name_of(parts[0]) else (None, f"{show(parts[0])} is not a letter")
    if any(sign not in ("=", "~") for sign in signs):
        return None, f"parsed as {say(answer)}; the gold {show(gold)} is not a relation"
    values = parts
    equation = parts[0][0] == "add" and gold == ZERO  # everything on one side, and zero on the other
    if not equation and asked(parts[0]) and (not symbols(parts[0]) & symbols(gold) or (parts[0][0] != "sym" and name_of(parts[0]))):
        values = parts[1:]
        signs = signs[1:]
    elif len(parts) == 2 and name_of(parts[1]) and not (symbols(parts[1]) & symbols(gold)):
        values, signs = parts[:1], ()
    if not values:
        return None, "it asserts nothing"
    for sign, value in zip(signs, values[1:], strict=False):
        if sign == "=" and not bench.judge(values[0], value, bench).right:
            return None, f"its chain is inconsistent: {show(values[0])} is not {show(value)}"
        if sign == "~" and not _near(values[0], value):
            return None, f"its chain is inconsistent: {show(values[0])} is not close to {show(value)}"
    simple = [value for value in values if value[0] in ("num", "dec") or exact_value(value)]
    return (simple[-1] if simple and len(values) > 1 and "~" not in signs else values[0]), ""


def exact_value(tree: Tree) -> bool:
    """Whether the tree is a rational number."""
    try:
        return exact(tree) is not None
    except NotFinite:
        return False


def _near(a: Tree, b: Tree) -> bool:
    x, y = real(a), real(b)
    return x is not None and y is not None and bool(abs(x - y) <= abs(x) / 50)


def judge_relation(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare an answer with a gold that is a relation: a membership, an assignment, an equation, an inequality."""
    judge = bench.judge
    if answer[0] == "mod" and gold[2] == "=":
        return Judged(False, f"parsed as {say(answer)}; the gold is the equation {show(gold)}")
    if solved(gold) and (left := unsolved(answer)) is not None:
        return Judged(False, f"{show(left)} is not solved yet; the gold {show(gold)} is")
    signs = gold[2::2]
    size, gold_size = len(answer), len(gold)
    if list(signs) == ["in"] or all(sign in FLIP for sign in signs):
        want, have = region(gold), region(answer)
        if want is not None and have is not None and not (answer[0] == "set" and size > 1):
            if answer[0] == "rel" and symbols(answer) and symbols(gold) and symbols(answer) != symbols(gold):
                return Judged(
                    False, f"it contains {', '.join(sorted(symbols(answer)))}; the gold contains {', '.join(sorted(symbols(gold)))}"
                )
            return judge_region(want, have, bench)
        if list(signs) == ["in"]:
            if gold[3][0] == "tuple" and len(gold[3]) == 3 and gold[1][0] == "sym":
                return Judged(False, f"parsed as {say(answer)}; the gold is {say(gold)}")
            return judge(gold[3], answer, bench)
        return _inequality(gold, answer, bench)
    name, value = named(gold)
    if gold_size > 4 or "~" in gold[2::2]:
        inner, why = settled(("num", 0, 1), gold, bench)
        judged = judge(inner, answer, bench) if inner is not None else Judged(False, f"the gold's {why}")
        return judge(gold[-1], answer, bench) if not judged.right and gold[-2] == "~" and answer[0] == gold[-1][0] == "dec" else judged
    if answer[0] != "rel":
        if name or _total(gold):
            return judge(value if name else gold[3], answer, bench)
        return Judged(False, f"parsed as {say(answer)}; the gold is the equation {show(gold)}")
    if not _same_function(name, name_of(answer[1])):
        return Judged(False, f"it defines {name_of(answer[1])}; the gold defines {name}")
    if size == 4 and answer[2] == "=":
        mine, mine_value = named(answer)
        same = mine == name or (_points(name) != "" and _points(name) == _points(mine))
        if name and mine and same and judge(value, mine_value, bench).right:
            return Judged(True, f"{show(answer)} is the gold")
        applied = "mul" in (gold[1][0], answer[1][0])  # f(x) = ... is equivalent to y = ...
        applied = applied and (answer[1][0] != "mul" or symbols(answer[1][2]) <= symbols(value))  # f(y) = 2x + 3 is another function
        if name and mine and applied and symbols(value) and judge(value, mine_value, bench).right:
            return Judged(True, f"{show(answer)} is the gold")
        if name and mine and mine != name and not symbols(value) and not symbols(mine_value):
            return Judged(False, f"it names {mine}; the gold names {name}")
        return _equation(gold, answer, bench)
    if name:
        inner, why = settled(value, answer, bench)
        return judge(value, inner, bench) if inner is not None else Judged(False, why)
    return Judged(False, f"parsed as {say(answer)}; the gold is the equation {show(gold)}")


def _same_function(name: str, mine: str) -> bool:
    """Whether two names may be the same function: f, its inverse f^-1 and its derivative f' differ; y may be any but a derivative."""
    if not name or not mine:
        return True
    base, other = (text.partition("^")[0].rstrip("'") for text in (name, mine))
    marks, others = ((text.count("'"), text.endswith("^-1")) for text in (name, mine))
    return marks == others or (base != other and marks[0] == others[0])


def _points(name: str) -> str:
    """Return the point letters of a name, without signs over or around them: |AB| is AB, but |x| is not x."""
    letters = "".join(sorted(name.strip("|").rpartition(" ")[2]))
    return letters if letters.isalpha() and letters.isupper() and len(letters) > 1 else ""


def _moved(tree: Tree) -> Tree:
    return ("add", tree[1], ("neg", tree[3]))


def _total(tree: Tree) -> bool:
    """Whether an equation only states the value of a sum of unknown numbers: `m + n = 204`; with an x in it, it may be a line."""
    terms = tree[1][1:] if tree[1][0] == "add" else ()
    return bool(terms) and not symbols(tree[3]) and all(term[0] == "sym" and term[1] not in ("x", "y", "z", "t") for term in terms)


def _cleared(tree: Tree) -> Tree:
    """Multiply a sum by its denominators that contain letters: y - 1/x becomes xy - 1."""
    lows = {arg[2] for term in tree[1:] for arg in walk(term) if arg[0] == "div" and symbols(arg[2])}
    terms = [(term[0] == "neg", term[1] if term[0] == "neg" else term) for term in tree[1:]]
    if len(lows) != 1 or any(any(low in walk(part) for low in lows) and part[0] != "div" for _, part in terms):
        return tree
    (low,) = lows
    parts: list[Tree] = [part[1] if part[0] == "div" and part[2] == low else ("mul", part, low) for _, part in terms]
    return ("add", *(("neg", part) if negative else part for (negative, _), part in zip(terms, parts, strict=True)))


def _equation(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare two equations with the same letters: one must be a constant multiple of the other."""
    a, b = _cleared(_moved(gold)), _cleared(_moved(answer))
    if symbols(a) != symbols(b) or not symbols(a):
        return Judged(False, f"{show(answer)} is not {show(gold)}: the letters differ")
    factor = _multiple(a, b, bench)
    if factor is None:
        return Judged(False, f"{show(answer)} is not a multiple of {show(gold)}")
    return Judged(True, f"{show(answer)} is {show(gold)}, rearranged or scaled")


def _multiple(a: Tree, b: Tree, bench: Bench) -> Tree | None:
    """Find the constant factor between two expressions; None if one is not a multiple of the other."""
    first, second = Normaliser().form(a), Normaliser().form(b)
    if not first or not second or set(first) != set(second):
        return None
    mono = min(first)
    factor = Fraction(second[mono]) / first[mono]
    if any(second[m] != factor * first[m] for m in first):
        return None
    return ("num", factor.numerator, factor.denominator)


def _inequality(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare two unsolved inequalities: the same one, rearranged, reversed or scaled."""
    size, gold_size = len(answer), len(gold)
    if answer[0] != "rel" or size != gold_size or any(sign not in FLIP for sign in answer[2::2]):
        return Judged(False, f"parsed as {say(answer)}; the gold is {say(gold)}")
    if gold_size > 4:
        turned: list[Any] = [FLIP.get(p, p) if isinstance(p, str) else p for p in reversed(answer[1:])]
        for parts in (list(answer[1:]), turned):
            if parts[1::2] == list(gold[2::2]) and all(bench.same(x, y) for x, y in zip(gold[1::2], parts[0::2], strict=True)):
                return Judged(True, f"{show(answer)} is the gold")
        return Judged(False, f"{say(answer)} is not {say(gold)}")
    factor = _multiple(_moved(gold), _moved(answer), bench)
    if factor is None:
        return Judged(False, f"{say(answer)} is not {say(gold)}")
    sign = answer[2] if factor[1] > 0 else FLIP[answer[2]]
    right = sign == gold[2]
    return Judged(right, f"{say(answer)} {'is' if right else 'is not'} {say(gold)}")
