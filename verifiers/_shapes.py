"""Answers brought into the shape of the gold where another way of writing has another shape but no other meaning."""

from __future__ import annotations

from rlvr.verifiers._relations import named
from rlvr.verifiers._tree import Tree, walk

OPTIONS = frozenset("ABCDEFGHIJ")


def grouped(tree: Tree) -> Tree:
    """Several solutions of several unknowns, one after the other: `p = 5, q = 2, p = 7, q = 2` is (5, 2), (7, 2).

    >>> one, two = ("num", 1, 1), ("num", 2, 1)
    >>> row = [("rel", ("sym", name), "=", value) for name, value in zip("xyxy", (one, two, two, one))]
    >>> grouped(("list", *row)) == ("list", ("tuple", one, two), ("tuple", two, one))
    True
    """
    if tree[0] != "list":
        return tree
    members = [part for arg in tree[1:] for part in (arg[1:] if arg[0] == "list" else (arg,))]
    pairs = [named(arg) for arg in members]
    names = [name for name, _ in pairs]
    size = len(set(names))
    if not all(names) or size < 2 or len(names) < 2 * size or names != names[:size] * (len(names) // size):
        return tree
    values = [value for _, value in pairs]
    return ("list", *(("tuple", *values[at : at + size]) for at in range(0, len(values), size)))


def options(gold: Tree, answer: Tree) -> Tree:
    """Several letters of a multiple choice without commas: `ACD` for the gold A, C, D."""
    if not all(arg[0] == "sym" and arg[1] in OPTIONS for arg in gold[1:]) or answer[0] != "mul":
        return answer
    letters = [node for node in walk(answer) if node[0] != "mul"]
    return ("list", *letters) if all(node[0] == "sym" and node[1] in OPTIONS for node in letters) else answer
