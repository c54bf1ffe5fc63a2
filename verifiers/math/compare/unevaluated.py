"""Detect unevaluated answers: a sum, an integral or a greatest common divisor that was not computed."""

from __future__ import annotations

from rlvr.verifiers.math.parsing.tree import Tree, free_symbols, list_nodes

UNEVALUATED_OPS = {"sum": "a sum", "prod": "a product", "integral": "an integral", "limit": "a limit", "deriv": "a derivative"}
UNEVALUATED_FUNCTIONS = {"gcd": "a greatest common divisor", "lcm": "a least common multiple", "max": "a maximum", "min": "a minimum"}
UNEVALUATED_FUNCTIONS |= {"det": "a determinant", "mod": "a remainder"}


def find_unevaluated(tree: Tree) -> str:
    """Find the unevaluated operation in a tree; "" if there is none.

    >>> find_unevaluated(("fun", "gcd", ("num", 84, 1), ("num", 126, 1)))
    'a greatest common divisor'
    """
    for node in list_nodes(tree):
        if node[0] in UNEVALUATED_OPS:
            return UNEVALUATED_OPS[node[0]]
        if node[0] == "fun" and node[1] in UNEVALUATED_FUNCTIONS and not free_symbols(node):
            return UNEVALUATED_FUNCTIONS[node[1]]
    return ""


def drop_restatement(tree: Tree) -> Tree:
    """Drop a requested sum or limit that an answer repeats before its value."""
    if tree[0] == "rel" and tree[2] == "=" and find_unevaluated(tree[1]) and not any(find_unevaluated(part) for part in tree[3::2]):
        return tree[3] if len(tree) == 4 else ("rel", *tree[3:])
    return tree
