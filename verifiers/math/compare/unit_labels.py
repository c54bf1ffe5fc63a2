"""Split trees into values and unit labels, and decide whether letters are a unit or a product."""

from __future__ import annotations

import re

from rlvr.verifiers.math.parsing.tree import Tree, free_symbols
from rlvr.verifiers.math.parsing.units import is_letter_unit

ALL_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""All letters: inside a formula each may be a single letter of it."""


def split_unit(tree: Tree) -> tuple[Tree, str]:
    """Split a tree into a value and a unit label ("" without one); the unit may be under a sign or inside a product or quotient."""
    op = tree[0]
    if op == "unit":
        return tree[1], tree[2]
    if op == "neg":
        value, label = split_unit(tree[1])
        return ("neg", value), label
    if op in ("mul", "div", "add"):
        parts = [split_unit(arg) for arg in tree[1:]]
        labels = [label for _, label in parts if label]
        if len(labels) == 1 and op != "add":
            return (op, *(value for value, _ in parts)), labels[0]
        if len(labels) == len(parts) and len(set(labels)) == 1 and op == "add":
            return (op, *(value for value, _ in parts)), labels[0]
    return tree, ""


def expand_units(tree: Tree, known: frozenset[str]) -> Tree:
    """Replace each unit whose letters are all known letters by a product: `ml^2` if m and l are known."""
    if tree[0] == "unit" and (spelled := re.fullmatch(r"([a-zA-Z]{1,3})(?:\^(\d))?", tree[2])) and known.issuperset(spelled[1]):
        *first, last = (("sym", letter) for letter in spelled[1])
        return ("mul", expand_units(tree[1], known), *first, ("pow", last, ("num", int(spelled[2]), 1)) if spelled[2] else last)
    return tuple(expand_units(arg, known) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg for arg in tree)


def split_letter_unit(tree: Tree) -> tuple[Tree, str]:
    """Split a number times one letter that may be a unit: `5m`, `12m^2`; the label is "" for anything else."""
    if tree[0] == "mul" and len(tree) == 3 and not free_symbols(tree[1]):
        letter, power = (tree[2][1], tree[2][2]) if tree[2][0] == "pow" else (tree[2], ("num", 1, 1))
        if letter[0] == "sym" and is_letter_unit(letter[1]) and power in (("num", 1, 1), ("num", 2, 1), ("num", 3, 1)):
            return tree[1], letter[1] + ("" if power[1] == 1 else f"^{power[1]}")
    return tree, ""
