"""Expand plus-minus signs: an expression with the sign becomes the list of its values."""

from __future__ import annotations

from rlvr.verifiers.math.parsing.tree import LimitExceeded, Tree, has_op, list_nodes


def expand_plus_minus(tree: Tree) -> Tree:
    r"""Expand plus-minus signs: `1 \\pm 2` is the list -1, 3; inside a list or a set it adds two members."""
    if not has_op(tree, "pm"):
        return tree
    if tree[0] in ("list", "set"):
        members: list[Tree] = []
        for arg in tree[1:]:
            arg = expand_plus_minus(arg)
            members.extend(arg[1:] if arg[0] == "list" else [arg])
        return (tree[0], *members)
    if tree[0] == "rel" and tree[2] == "=" and len(tree) == 4 and not has_op(tree[1], "pm"):
        right = expand_plus_minus(tree[3])
        return ("list", *(("rel", tree[1], "=", arg) for arg in right[1:])) if right[0] == "list" else tree
    signs = sum(1 for node in list_nodes(tree) if node[0] == "pm")
    if signs > 4:
        raise LimitExceeded("it contains more than four plus-minus signs")
    same = signs > 1 and any(node[0] == "pm" and node[3] == "∓" for node in list_nodes(tree))
    patterns = range(2) if same else range(2**signs)
    return ("list", *(_apply_signs(tree, pattern, same, [0]) for pattern in patterns))


def _apply_signs(tree: Tree, pattern: int, shared_sign: bool, signs_seen: list[int]) -> Tree:
    if tree[0] == "pm":
        bit = pattern if shared_sign else (pattern >> signs_seen[0]) & 1
        signs_seen[0] += 1
        minus = bool(bit) != (tree[3] == "∓")
        left, right = (_apply_signs(arg, pattern, shared_sign, signs_seen) for arg in tree[1:3])
        right = ("neg", right) if minus else right
        return right if left == ("num", 0, 1) else ("add", left, right)
    return tuple(
        _apply_signs(arg, pattern, shared_sign, signs_seen) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg
        for arg in tree
    )
