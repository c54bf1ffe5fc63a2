"""Detect unevaluated answers: a sum, an integral or a greatest common divisor that was not computed."""

from __future__ import annotations

from rlvr.verifiers._math.read.tree import Tree, symbols, walk

UNWORKED = {"sum": "a sum", "prod": "a product", "integral": "an integral", "limit": "a limit", "deriv": "a derivative"}
PICKED = {"gcd": "a greatest common divisor", "lcm": "a least common multiple", "max": "a maximum", "min": "a minimum"}
PICKED |= {"det": "a determinant", "mod": "a remainder"}


def unworked(tree: Tree) -> str:
    """Find the unevaluated operation in a tree; "" if there is none.

    >>> unworked(("fun", "gcd", ("num", 84, 1), ("num", 126, 1)))
    'a greatest common divisor'
    """
    for node in walk(tree):
        if node[0] in UNWORKED:
            return UNWORKED[node[0]]
        if node[0] == "fun" and node[1] in PICKED and not symbols(node):
            return PICKED[node[1]]
    return ""


def worked(tree: Tree) -> Tree:
    """Drop a requested sum or limit that an answer repeats before its value."""
    if tree[0] == "rel" and tree[2] == "=" and unworked(tree[1]) and not any(unworked(part) for part in tree[3::2]):
        return tree[3] if len(tree) == 4 else ("rel", *tree[3:])
    return tree
