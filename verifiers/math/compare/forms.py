"""Check the required form of an answer whose value is right: reduced, factored, expanded, a numeral."""

from __future__ import annotations

import math

from rlvr.verifiers.math.parsing.tree import Tree, has_op, list_nodes
from rlvr.verifiers.math.values.rational import to_rational


def find_form_violation(tree: Tree, form: str, gold: Tree) -> str:
    """Describe how a tree violates the required form; "" if it does not.

    >>> find_form_violation(("div", ("num", 2, 1), ("num", 4, 1)), "reduced", ("num", 1, 2))
    'a fraction in it is not in lowest terms'
    """
    if form == "factored" and _count_factors(tree) < _count_factors(gold):
        return "it has fewer factors than the gold"
    return FORM_RULES[form](tree) if form else ""


def _count_factors(tree: Tree) -> int:
    """Count the factors with letters in a product, with powers as repeated factors."""
    if tree[0] in ("neg", "div"):
        return _count_factors(tree[1])
    if tree[0] == "mul":
        return sum(_count_factors(arg) for arg in tree[1:])
    if tree[0] == "pow":
        times = to_rational(tree[2])
        return _count_factors(tree[1]) * int(times) if times is not None and 1 <= times <= 64 else 1
    return int(has_op(tree, "sym"))


def _check_reduced(tree: Tree) -> str:
    for node in list_nodes(tree):
        if node[0] == "div":
            top, low = to_rational(node[1]), to_rational(node[2])
            if (
                top is not None
                and low is not None
                and (low.denominator != 1 or top.denominator != 1 or math.gcd(int(top), int(low)) != 1 or low == 1)
            ):
                return "a fraction in it is not in lowest terms"
    arithmetic = tree[0] in ("mul", "pow", "fact", "binom") or (tree[0] == "add" and not _is_mixed_number(tree))
    return "it is arithmetic that was not carried out" if arithmetic and to_rational(tree) is not None else ""


def _is_mixed_number(tree: Tree) -> bool:
    return len(tree) == 3 and tree[1][0] == "num" and tree[2][0] == "div"


def _check_factored(tree: Tree) -> str:
    while tree[0] == "neg":
        tree = tree[1]
    if tree[0] == "add" and any(node[0] == "sym" for node in list_nodes(tree)):
        return "it is a sum, but a product is required"
    return ""


def _check_expanded(tree: Tree) -> str:
    for node in list_nodes(tree):
        if (node[0] == "mul" and any(has_op(arg, "add") for arg in node[1:])) or (node[0] == "pow" and has_op(node[1], "add")):
            return "it contains a product of sums, but an expanded form is required"
    return ""


def _check_numeral(tree: Tree) -> str:
    bare = tree[1] if tree[0] == "neg" else tree
    simple = (
        bare[0] in ("num", "dec")
        or (bare[0] == "div" and all(arg[0] in ("num", "neg") for arg in bare[1:]) and not _is_whole(bare))
        or (bare[0] == "add" and _is_mixed_number(bare))
    )
    return "" if simple else "it is arithmetic, but a numeral is required"


def _is_whole(tree: Tree) -> bool:
    value = to_rational(tree)
    return value is not None and value.denominator == 1


FORM_RULES = {"reduced": _check_reduced, "factored": _check_factored, "expanded": _check_expanded, "numeral": _check_numeral}
