"""The syntax tree of an answer: plain nested tuples, the operator's name first.

Plain tuples compare by structure, hash, and can be sent as JSON; nothing in them can run.

    ("num", 3, 4)                    the rational 3/4               ("dec", 314, 2)      3.14, written with two places
    ("sym", "x")  ("const", "pi")    letters and constants          ("text", "east")     words
    ("add" | "mul", a, b, ...)  ("neg", a)  ("div", a, b)  ("pow", a, b)  ("root", a, n)  ("fun", "sin", a)
    ("sum" | "prod" | "integral", body, "k", lo, hi)   ("integral" | "deriv", body, "x")   ("limit", body, "x", at, "+")
    ("list" | "either" | "tuple" | "set", a, b, ...)   ("interval", lo, hi, "(", "]")   ("union" | "inter" | "minus", a, b)
    ("rel", a, "<", b, "<=", c)      a chain of relations           ("matrix", (row, row, ...))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tree = tuple[Any, ...]

MAX_NODES = 600
"""A tree with more nodes is refused before any arithmetic."""
MAX_BITS = 60_000
"""The largest exact integer, in bits, that is computed."""


LEAVES = frozenset(("num", "dec", "sym", "const", "text", "choice"))


class ParseError(Exception):
    """Raised if a text cannot be parsed; the message says where parsing stopped."""


class LimitExceeded(Exception):
    """Raised if a text or a computation exceeds a static limit."""


def iter_children(tree: Tree) -> Iterator[Tree]:
    """Yield the direct sub-trees."""
    if tree[0] in LEAVES:
        return
    for arg in tree[1:]:
        if isinstance(arg, tuple) and arg:
            if isinstance(arg[0], str):
                yield arg
            else:
                yield from iter_children(("", *arg))


def list_nodes(tree: Tree) -> list[Tree]:
    """List every node, without recursion."""
    nodes = [tree]
    for node in nodes:  # which grow in the loop
        if node[0] not in LEAVES:
            for arg in node[1:]:
                if isinstance(arg, tuple) and arg:
                    nodes.extend((arg,) if isinstance(arg[0], str) else iter_children(("", *arg)))
    return nodes


def get_free_symbols(tree: Tree) -> frozenset[str]:
    """Return the names of the free symbols (the index of a sum or an integral is not free).

    >>> sorted(get_free_symbols(("add", ("sym", "x"), ("num", 1, 1))))
    ['x']
    """
    names, bound = set(), set()
    for node in list_nodes(tree):
        if node[0] == "sym":
            names.add(node[1])
        elif node[0] in ("sum", "prod", "integral", "limit") and len(node) > 3:
            bound.add(node[2])
    return frozenset(names - bound)


def get_infinity_sign(tree: Tree) -> int:
    """Return 1 or -1 if the tree is exactly plus or minus infinity; else 0."""
    if tree == ("const", "oo"):
        return 1
    return -get_infinity_sign(tree[1]) if tree[0] == "neg" else 0


def substitute(tree: Tree, values_by_letter: dict[str, Tree]) -> Tree:
    """Replace letters in a tree.

    >>> substitute(("neg", ("sym", "x")), {"x": ("num", 2, 1)})
    ('neg', ('num', 2, 1))
    """
    if tree[0] == "sym":
        return values_by_letter.get(tree[1], tree)
    return tuple(substitute(arg, values_by_letter) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg for arg in tree)


def sort_terms(tree: Tree) -> Tree:
    """Sort the terms of sums and the factors of products into a fixed order, and move signs to the front.

    >>> one, x = ("num", 1, 1), ("sym", "x")
    >>> sort_terms(("add", x, one)) == sort_terms(("add", one, x))
    True
    """
    if tree[0] in LEAVES:
        return tree
    args = [sort_terms(arg) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg for arg in tree[1:]]
    negative = False
    if tree[0] in ("mul", "div"):
        negative = sum(arg[0] == "neg" for arg in args) % 2 == 1
        args = [arg[1] if arg[0] == "neg" else arg for arg in args]
    if tree[0] == "neg" and args[0][0] == "neg":
        inner: Tree = args[0][1]
        return inner
    if tree[0] in ("add", "mul"):
        args = sorted((part for arg in args for part in (arg[1:] if arg[0] == tree[0] else (arg,))), key=repr)
    return ("neg", (tree[0], *args)) if negative else (tree[0], *args)


def has_op(tree: Tree, *ops: str) -> bool:
    """Whether a node of one of these kinds is anywhere in the tree."""
    return any(node[0] in ops for node in list_nodes(tree))


OP_NAMES = {
    "list": "the list",
    "either": "the alternatives",
    "tuple": "the tuple",
    "set": "the set",
    "interval": "the interval",
    "union": "the union",
    "rel": "the relation",
    "matrix": "the matrix",
    "text": "the words",
    "choice": "the choice",
    "base": "the numeral",
    "mod": "the residue",
    "ratio": "the ratio",
    "unit": "the quantity",
    "percent": "the percentage",
    "time": "the time",
    "cases": "the piecewise function",
    "dec": "the decimal",
}


def describe_tree(tree: Tree) -> str:
    """Describe a tree in words, for reasons: `the interval (1, 2]`.

    >>> describe_tree(("interval", ("num", 1, 1), ("num", 2, 1), "(", "]"))
    'the interval (1, 2]'
    """
    shown = format_tree(tree)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    return f"{OP_NAMES[tree[0]]} {shown}" if tree[0] in OP_NAMES else shown


def format_tree_indented(tree: Tree, indent: str = "") -> str:
    """Draw a tree with one node a line, children indented.

    >>> print(format_tree_indented(("div", ("num", 1, 1), ("sym", "x"))))
    div
      num 1
      sym x
    """
    if tree[0] in LEAVES:
        return f"{indent}{tree[0]} {format_tree(tree)}"
    children = list(iter_children(tree))
    signs = " ".join(str(arg) for arg in tree[1:] if not isinstance(arg, tuple))
    return "\n".join([f"{indent}{tree[0]} {signs}".rstrip(), *(format_tree_indented(child, indent + "  ") for child in children)])


_INFIX_SIGNS = {"add": " + ", "mul": "*", "union": " U ", "inter": " & ", "minus": " \\ ", "ratio": ":", "list": ", ", "either": " or "}
_BRACKETED_OPS = {"tuple": ("(", ")"), "set": ("{", "}")}


def format_tree(tree: Tree, nesting_depth: int = 0) -> str:
    """Format a tree in plain one-line notation; deep parts are left out."""
    op, args = tree[0], tree[1:]
    if nesting_depth > 12:
        return "..."

    def sub(node: Tree) -> str:
        text = format_tree(node, nesting_depth + 1)
        return f"({text})" if node[0] in ("add", "mul", "div", "neg", "pm") else text

    if op == "num":
        return format_integer(args[0]) if args[1] == 1 else f"{format_integer(args[0])}/{format_integer(args[1])}"
    if op == "dec":
        return _format_decimal(args[0], args[1])
    if op in ("sym", "const", "text", "choice"):
        return str(args[0])
    if op in _INFIX_SIGNS:
        return _INFIX_SIGNS[op].join(sub(a) if op != "list" else format_tree(a, nesting_depth + 1) for a in args)
    if op in _BRACKETED_OPS:
        left, right = _BRACKETED_OPS[op]
        return left + ", ".join(format_tree(a, nesting_depth + 1) for a in args) + right
    if op == "interval":
        return f"{args[2]}{format_tree(args[0], nesting_depth + 1)}, {format_tree(args[1], nesting_depth + 1)}{args[3]}"
    if op == "rel":
        return " ".join(part if isinstance(part, str) else format_tree(part, nesting_depth + 1) for part in args)
    if op in ("neg", "div", "pow"):
        return f"-{sub(args[0])}" if op == "neg" else f"{sub(args[0])}{'/' if op == 'div' else '^'}{sub(args[1])}"
    return _format_rest(tree, nesting_depth)


def _format_rest(tree: Tree, depth: int) -> str:
    op, args = tree[0], tree[1:]
    if op == "unit":
        return f"{format_tree(args[0], depth + 1)} {args[1]}"
    if op == "percent":
        return f"{format_tree(args[0], depth + 1)}%"
    if op == "base":
        return f"{args[0]} in base {args[1]}"
    if op == "mod":
        return f"{format_tree(args[0], depth + 1)} (mod {format_tree(args[1], depth + 1)})"
    if op == "pm":
        return f"{format_tree(args[0], depth + 1)} {args[2]} {format_tree(args[1], depth + 1)}"
    if op == "matrix":
        return "[" + "; ".join(", ".join(format_tree(cell, depth + 1) for cell in row) for row in args[0]) + "]"
    if op == "time":
        return f"{args[0]}:{args[1]:02d}{' ' + args[2] if args[2] else ''}"
    name = args[0] if op == "fun" else op
    return f"{name}(" + ", ".join(format_tree(a, depth + 1) for a in args if isinstance(a, tuple) and a and isinstance(a[0], str)) + ")"


def format_integer(value: int) -> str:
    """Format an integer in digits, or its size if it is too long to print."""
    return str(value) if value.bit_length() <= 2000 else f"({value.bit_length()}-bit integer)"


def _format_decimal(digits: int, places: int) -> str:
    if digits.bit_length() > 2000:
        return format_integer(digits)
    text = str(abs(digits)).rjust(places + 1, "0")
    return ("-" if digits < 0 else "") + (f"{text[:-places]}.{text[-places:]}" if places > 0 else text)
