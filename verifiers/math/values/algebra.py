"""Convert trees to sympy with explicit constructors, and let sympy decide whether two expressions are equal.

Runs in the workers only. Expressions that get here have agreed at sample points to dozens of digits, so this module looks for a proof, or
for the assumption under which the two differ.
"""

from __future__ import annotations

import sys
from typing import Any

import sympy as sp

from rlvr.verifiers.math.parsing.tree import Tree

CONSTANTS = {"pi": sp.pi, "e": sp.E, "i": sp.I, "oo": sp.oo}
FUNCTIONS = {
    name: getattr(sp, name)
    for name in ["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "sech", "csch", "ln", "exp", "erf"]
}
FUNCTIONS |= {"arcsin": sp.asin, "arccos": sp.acos, "arctan": sp.atan, "arccot": sp.acot, "arcsec": sp.asec, "arccsc": sp.acsc}
FUNCTIONS |= {
    "abs": sp.Abs,
    "floor": sp.floor,
    "ceil": sp.ceiling,
    "max": sp.Max,
    "min": sp.Min,
    "Re": sp.re,
    "Im": sp.im,
    "arg": sp.arg,
}
FUNCTIONS |= {"asinh": sp.asinh, "acosh": sp.acosh, "atanh": sp.atanh, "sgn": sp.sign, "Gamma": sp.gamma, "gcd": sp.gcd, "lcm": sp.lcm}


class UnsupportedTree(Exception):
    """Raised for a tree that is not passed to sympy."""


def _to_sympy(tree: Tree) -> Any:
    """Convert a tree to a sympy expression.

    >>> _to_sympy(("div", ("num", 1, 1), ("num", 2, 1)))
    1/2
    """
    op, args = tree[0], tree[1:]
    if op == "num":
        return sp.Rational(args[0], args[1])
    if op == "dec":
        return sp.Rational(args[0], 10 ** args[1]) if args[1] >= 0 else sp.Integer(args[0] * 10 ** -args[1])
    if op == "sym":
        return sp.Symbol(args[0], real=True)
    if op == "const" and args[0] in CONSTANTS:
        return CONSTANTS[args[0]]
    if op == "unit" and args[1] in ("degree", "degrees"):
        return _to_sympy(args[0]) * sp.pi / 180
    if op == "fun" and args[0] == "det":
        return _make_matrix(args[1]).det()
    if op == "fun" and args[0] in FUNCTIONS:
        return FUNCTIONS[args[0]](*(_to_sympy(arg) for arg in args[1:]))
    if op in _CALCULUS_RULES and len(args) > 1 and args[1]:
        return _CALCULUS_RULES[op](
            _to_sympy(args[0]), sp.Symbol(args[1], real=True), *(a if isinstance(a, str) else _to_sympy(a) for a in args[2:])
        )
    if op in _RULES:
        return _RULES[op](*(_to_sympy(arg) for arg in args))
    raise UnsupportedTree(f"there is no rule for {op}")


def _make_matrix(tree: Tree) -> Any:
    if tree[0] != "matrix" or len(tree[1]) > 6:
        raise UnsupportedTree("not a small matrix")
    return sp.Matrix([[_to_sympy(cell) for cell in row] for row in tree[1]])


def _make_root(base: Any, degree: Any) -> Any:
    if base.is_real and base.is_negative and degree.is_odd:
        return -sp.root(-base, degree)
    return sp.root(base, degree)


def _make_series(kind: Any) -> Any:
    def evaluate_series(body: Any, name: Any, low: Any, high: Any) -> Any:
        index = sp.Symbol(name.name, integer=True)
        return kind(body.subs(name, index), (index, low, high)).doit()

    return evaluate_series


_CALCULUS_RULES = {
    "sum": _make_series(sp.Sum),
    "prod": _make_series(sp.Product),
    "integral": lambda body, name, *ends: sp.integrate(body, (name, *ends)),
    "deriv": sp.diff,
    "limit": lambda body, name, at, side: sp.limit(body, name, at, side or "+-"),
}
_RULES = {
    "add": sp.Add,
    "mul": sp.Mul,
    "neg": lambda a: -a,
    "div": lambda a, b: a / b,
    "pow": sp.Pow,
    "root": _make_root,
    "fact": sp.factorial,
    "binom": sp.binomial,
    "percent": lambda a: a / 100,
}


def is_equal(a: Tree, b: Tree) -> bool | None:
    """Return True or False if sympy is certain; None if it is not, or was not used.

    >>> is_equal(("fun", "sin", ("const", "pi")), ("num", 0, 1))
    True
    """
    try:
        gap = _to_sympy(a) - _to_sympy(b)
    except UnsupportedTree:
        return None
    if gap == 0:
        return True
    if _is_zero_for_both_signs(gap):
        return True
    for step in (sp.expand, sp.radsimp, sp.trigsimp, sp.simplify):
        gap = step(gap)
        if gap == 0:
            return True
        if gap.is_number and gap.is_zero is False and step is sp.simplify:
            return False
    return None


def _is_zero_for_both_signs(gap: Any) -> bool:
    """Whether an expression in |x| is zero for positive x and for negative x, by expansion only: logarithms of x^2 and |x| are."""
    (letter,) = gap.free_symbols if len(gap.free_symbols) == 1 else (None,)
    if letter is None or not gap.has(sp.Abs):
        return False
    positive = sp.Symbol("positive", positive=True)
    return all(sp.expand_log(sp.expand(gap.subs(letter, side))) == 0 for side in (positive, -positive))


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Handle one request of the worker protocol."""
    return {"same": is_equal(_to_tuples(request["a"]), _to_tuples(request["b"]))}


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(item) for item in value) if isinstance(value, list) else value


def preload() -> None:
    """Preload what the first request needs, and raise the recursion limit for sympy."""
    sys.setrecursionlimit(5000)
    x = ("sym", "x")
    is_equal(("add", ("pow", ("fun", "sin", x), ("num", 2, 1)), ("pow", ("fun", "cos", x), ("num", 2, 1))), ("num", 1, 1))
