"""Bugs for a function: small changes of its text. The rest of the file stays as it is, byte for byte."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rlvr.envs._repository.project import Function
from rlvr.python_source import parse_python_threadsafe

COMPARISONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"), ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
}  # fmt: skip
SIBLINGS = {
    one: other
    for pair in (
        *(("min", "max"), ("any", "all"), ("startswith", "endswith"), ("lstrip", "rstrip"), ("ljust", "rjust"), ("lower", "upper")),
        *(("find", "rfind"), ("index", "rindex"), ("split", "rsplit"), ("append", "appendleft"), ("bisect_left", "bisect_right")),
        *(("union", "intersection"), ("floor", "ceil"), ("keys", "values"), ("partition", "rpartition")),
    )
    for one, other in (pair, pair[::-1])
}
"""Functions that are taken for each other."""
MAX_TEXT_CHARACTERS = 20


@dataclass(frozen=True)
class Mutant:
    r"""A file with one small change inside a function.

    >>> Mutant("comparison", "def f(a):\n    return a <= 1\n", 2).operator
    'comparison'
    """

    operator: str
    """The kind of the change."""
    text: str
    """The whole file."""
    line: int


def build_mutants(text: str, function: Function, seed: str) -> list[Mutant]:
    r"""Build all mutants of a function, in an order that the seed decides; different kinds of changes take turns.

    >>> from rlvr.envs._repository.project import find_functions
    >>> text = "def f(a):\n    return a < 1\n"
    >>> [function] = find_functions("a.py", text.encode())
    >>> [mutant.text.splitlines()[1].strip() for mutant in build_mutants(text, function, "0")]
    ['return a < 2', 'return a <= 1']
    """
    node = find_function_node(parse_python_threadsafe(text), function.name)
    if node is None:
        return []
    lines = _LineIndex(text)
    rng = random.Random(f"{seed}/{function.key}")
    by_operator: dict[str, list[Mutant]] = {}
    seen = {text}
    for operator, start, end, new in _iter_edits(node, lines):
        changed = (lines.data[:start] + new.encode() + lines.data[end:]).decode()
        if changed not in seen and _parses(changed):
            seen.add(changed)
            by_operator.setdefault(operator, []).append(Mutant(operator, changed, lines.data[:start].count(b"\n") + 1))
    waiting = [by_operator[operator] for operator in sorted(by_operator)]
    for mutants in waiting:
        rng.shuffle(mutants)
    rng.shuffle(waiting)
    found: list[Mutant] = []
    while waiting := [mutants for mutants in waiting if mutants]:
        found += [mutants.pop() for mutants in waiting]
    return found


def find_function_node(tree: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition of a function by its name with classes (`Stack.push`), or None if it is not there exactly once."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = []

    def look(body: list[ast.stmt], around: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{around}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if around + node.name == name:
                    found.append(node)
            else:
                for field in ("body", "orelse", "finalbody"):
                    look(getattr(node, field, []), around)

    look(tree.body, "")
    return found[0] if len(found) == 1 else None


class _LineIndex:
    """The bytes of a file, and where its lines begin."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.starts = [0]
        for line in re.split(rb"(?<=\n)|(?<=\r)(?!\n)", self.data):
            self.starts.append(self.starts[-1] + len(line))

    def start(self, node: Any) -> int:
        return int(self.starts[node.lineno - 1] + node.col_offset)

    def end(self, node: Any) -> int:
        return int(self.starts[node.end_lineno - 1] + node.end_col_offset)

    def get(self, node: Any) -> str:
        return self.data[self.start(node) : self.end(node)].decode()


Edit = tuple[str, int, int, str]


def _iter_edits(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: _LineIndex) -> Iterator[Edit]:
    docstrings, formatted = set[int](), set[int]()
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
        if isinstance(node, ast.JoinedStr):  # the places of what is in it are wrong in Python 3.11
            formatted.update(id(inner) for inner in ast.walk(node))
    annotations = {id(inner) for hint in _list_annotations(function) for inner in ast.walk(hint)}
    decorators = {id(inner) for one in ast.walk(function) for made in getattr(one, "decorator_list", ()) for inner in ast.walk(made)}
    for node in ast.walk(function):
        if id(node) in formatted or id(node) in annotations or id(node) in docstrings or id(node) in decorators:
            continue
        if isinstance(node, ast.Compare):
            for op, (left, right) in zip(node.ops, pairwise([node.left, *node.comparators]), strict=True):
                yield from _replace_between("comparison", lines, left, right, *COMPARISONS[type(op)])
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            if not (isinstance(node.op, ast.Mod | ast.Add | ast.Mult) and _is_text(node)):
                yield from _replace_between("operator", lines, node.left, node.right, *OPERATORS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in pairwise(node.values):
                yield from _replace_between("condition", lines, left, right, *words)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield "condition" if isinstance(node.op, ast.Not) else "operator", lines.start(node), lines.start(node.operand), ""
        elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
            old, new = OPERATORS[type(node.op)]
            yield from _replace_between("operator", lines, node.target, node.value, f"{old}=", f"{new}=")
        elif isinstance(node, ast.Constant):
            yield from _change_constant(node, lines)
        elif isinstance(node, ast.Call):
            yield from _change_call(node, lines)
        elif isinstance(node, ast.Attribute) and node.attr in SIBLINGS:
            end = lines.end(node)
            if lines.data[end - len(node.attr) : end].decode() == node.attr:
                yield "function", end - len(node.attr), end, SIBLINGS[node.attr]
        if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
            yield "condition", lines.start(node.test), lines.start(node.test), "not "
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and len(body) > 1:
                yield from _remove_statements(body, lines)


def _list_annotations(function: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        for name in ("annotation", "returns"):
            hint = getattr(node, name, None)
            if isinstance(hint, ast.AST):
                yield hint


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _replace_between(operator: str, lines: _LineIndex, left: ast.AST, right: ast.AST, old: str, new: str) -> Iterator[Edit]:
    """Replace an operator in the text between two expressions, if nothing else than brackets and spaces is there."""
    start, end = lines.end(left), lines.start(right)
    between = lines.data[start:end].decode()
    if found := re.fullmatch(rf"([\s)\\]*){re.escape(old).replace(chr(92) + ' ', ' +')}([\s(\\]*)", between):
        yield operator, start + len(found[1].encode()), end - len(found[2].encode()), new


def _change_constant(node: ast.Constant, lines: _LineIndex) -> Iterator[Edit]:
    start, end, value = lines.start(node), lines.end(node), node.value
    if isinstance(value, bool):
        yield "constant", start, end, str(not value)
    elif isinstance(value, int) and lines.get(node).isdecimal():
        yield "constant", start, end, str(value + 1)
        if value > 1:
            yield "constant", start, end, str(value - 1)
    elif isinstance(value, str) and 1 < len(value) <= MAX_TEXT_CHARACTERS and lines.get(node) == repr(value):
        yield "constant", start, end, repr(value[:-1])


def _change_call(node: ast.Call, lines: _LineIndex) -> Iterator[Edit]:
    if isinstance(node.func, ast.Name) and node.func.id in SIBLINGS:
        yield "function", lines.start(node.func), lines.end(node.func), SIBLINGS[node.func.id]
    for one, other in pairwise(node.args):
        if not isinstance(one, ast.Starred | ast.GeneratorExp) and not isinstance(other, ast.Starred | ast.GeneratorExp):
            start, end = lines.start(one), lines.end(other)
            between = lines.data[lines.end(one) : lines.start(other)].decode()
            if between.strip() == "," and lines.get(one) != lines.get(other):
                yield "arguments", start, end, lines.get(other) + between + lines.get(one)


def _remove_statements(body: list[ast.stmt], lines: _LineIndex) -> Iterator[Edit]:
    """Remove a statement that stands on lines of its own, and after which all names are still defined."""
    for node in body:
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        is_guard = (
            isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
        )
        if not (is_call or is_guard or isinstance(node, ast.AugAssign | ast.Continue | ast.Break | ast.Raise | ast.Delete)):
            continue
        start, end = lines.starts[node.lineno - 1], lines.starts[node.end_lineno or node.lineno]
        if not lines.data[start : lines.start(node)].strip() and not lines.data[lines.end(node) : end].strip():
            yield "statement", start, end, ""


def _parses(text: str) -> bool:
    try:
        parse_python_threadsafe(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
