"""Check the required form of an answer whose value is right: reduced, factored, expanded, a numeral."""

from __future__ import annotations

import math

from rlvr.verifiers._math.read.tree import Tree, has, walk
from rlvr.verifiers._math.value.exact import exact


def wrong_form(tree: Tree, form: str, gold: Tree) -> str:
    """Describe how a tree violates the required form; "" if it does not.

    >>> wrong_form(("div", ("num", 2, 1), ("num", 4, 1)), "reduced", ("num", 1, 2))
    'a fraction in it is not in lowest terms'
    """
    if form == "factored" and _factors(tree) < _factors(gold):
        return "it has fewer factors than the gold"
    return RULES[form](tree) if form else ""


def _factors(tree: Tree) -> int:
    """Count the factors with letters in a product, with powers as repeated factors."""
    if tree[0] in ("neg", "div"):
        return _factors(tree[1])
    if tree[0] == "mul":
        return sum(_factors(arg) for arg in tree[1:])
    if tree[0] == "pow":
        times = exact(tree[2])
        return _factors(tree[1]) * int(times) if times is not None and 1 <= times <= 64 else 1
    return int(has(tree, "sym"))


def _reduced(tree: Tree) -> str:
    for node in walk(tree):
        if node[0] == "div":
            top, low = exact(node[1]), exact(node[2])
            if (
                top is not None
                and low is not None
                and (low.denominator != 1 or top.denominator != 1 or math.gcd(int(top), int(low)) != 1 or low == 1)
            ):
                return "a fraction in it is not in lowest terms"
    arithmetic = tree[0] in ("mul", "pow", "fact", "binom") or (tree[0] == "add" and not _mixed(tree))
    return "it is arithmetic that was not carried out" if arithmetic and exact(tree) is not None else ""


def _mixed(tree: Tree) -> bool:
    return len(tree) == 3 and tree[1][0] == "num" and tree[2][0] == "div"


def _factored(tree: Tree) -> str:
    while tree[0] == "neg":
        tree = tree[1]
    if tree[0] == "add" and any(node[0] == "sym" for node in walk(tree)):
        return "it is a sum, but a product is required"
    return ""


def _expanded(tree: Tree) -> str:
    for node in walk(tree):
        if (node[0] == "mul" and any(has(arg, "add") for arg in node[1:])) or (node[0] == "pow" and has(node[1], "add")):
            return "it contains a product of sums, but an expanded form is required"
    return ""


def _numeral(tree: Tree) -> str:
    bare = tree[1] if tree[0] == "neg" else tree
    simple = (
        bare[0] in ("num", "dec")
        or (bare[0] == "div" and all(arg[0] in ("num", "neg") for arg in bare[1:]) and not _whole(bare))
        or (bare[0] == "add" and _mixed(bare))
    )
    return "" if simple else "it is arithmetic, but a numeral is required"


def _whole(tree: Tree) -> bool:
    value = exact(tree)
    return value is not None and value.denominator == 1


RULES = {"reduced": _reduced, "factored": _factored, "expanded": _expanded, "numeral": _numeral}
