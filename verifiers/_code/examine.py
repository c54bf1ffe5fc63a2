"""Reads the test code of a task before any answer is run: can it be judged at all, and what does it need? Runs in the judge's process.

Only data travels between a judge and an answer. A test that calls what the answer returns, or reads a field that no data has, can
be passed by no answer, and so can one that uses a name which nothing defines: that is the task's fault, and it is known from the
test's text alone, so that no answer can bring it about.
"""

from __future__ import annotations

import ast
import builtins
import collections
import decimal
import fractions
from collections.abc import Iterable, Iterator
from typing import Any

from rlvr.verifiers._code.wire import foreign

WANTED, IN_PLACE = "__wanted__", "__in_place__"
DATA = (str, int, float, complex, bytes, bytearray, range, list, tuple, dict, set, frozenset, collections.deque)
FIELDS = {name for kind in (*DATA, decimal.Decimal, fractions.Fraction, type(None)) for name in dir(kind)}
NO_DATA = {"datetime", "uuid", "pathlib", "zoneinfo"}
"""Modules whose objects compare with their own kind only, though their classes define `==`."""
INDIRECT = {"exec", "eval", "globals", "locals", "vars", "setattr", "__import__"}
"""Who uses these may define names that cannot be seen."""


class Examined:
    r"""A test module with the names by which it calls the answer, and the names that always hold what the answer returned.

    >>> Examined(ast.parse("r = f(2)\nassert r(3) == 5"), "f").flaw(set())
    'the test calls what the answer returns, and only data can be returned'
    """

    def __init__(self, tree: ast.Module, entry: str) -> None:
        self.tree = tree
        self.checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
        self.answer = {entry, "candidate", *(node.args.args[0].arg for node in self.checks if node.args.args)}
        self.results: set[str] = set()
        given = collections.Counter(
            node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1 and self.called(node.value)
        )
        self.results = {name for name, count in given.items() if count == collections.Counter(_bound(tree))[name]}

    def called(self, node: ast.AST) -> bool:
        """Whether this is a call of the answer's function, or a name that holds the result of one."""
        if isinstance(node, ast.Name):
            return node.id in self.results
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.answer

    def flaw(self, known: Iterable[str]) -> str:
        """Why no answer can pass this test; empty if one may. `known` are the names that are there before the test runs."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and self.called(node.func):
                return "the test calls what the answer returns, and only data can be returned"
            if isinstance(node, ast.Attribute) and self.called(node.value) and node.attr not in FIELDS:
                return f"the test reads .{node.attr} of what the answer returns, and only data can be returned"
        bound = {*known, *_bound(self.tree), *vars(builtins), *self.answer}
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        if "*" in bound or used & INDIRECT:
            return ""
        for body in (self.tree, *self.checks):
            for statement in body.body:
                if isinstance(statement, ast.Assert):
                    for name in _always_read(statement.test):
                        if name not in bound:
                            return f"the test uses {name!r}, which nothing defines"
        return ""

    def rewrite(self) -> ast.Module:
        """The test with two things marked: what a result is compared with, and calls that are made for what they change."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.Is):
                if self.called(node.left):
                    node.comparators[0] = self._marked(node.comparators[0])
                elif self.called(node.comparators[0]):
                    node.left = self._marked(node.left)
            elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call) and self.called(call):
                call.args.insert(0, call.func)
                call.func = ast.Name(IN_PLACE, ast.Load())
        return ast.fix_missing_locations(self.tree)

    def _marked(self, node: ast.expr) -> ast.expr:
        if any(self.called(inner) for inner in ast.walk(node)):
            return node  # it hangs on the answer
        return ast.Call(ast.Name(WANTED, ast.Load()), [node], [])


def never_data(value: Any) -> str:
    """The type of what no data can ever be equal to, such as a function or a date; empty for all else.

    >>> never_data(print), never_data([1])
    ('builtin_function_or_method', '')
    """
    for item in foreign(value):
        kind = type(item)
        if kind.__eq__ is object.__eq__ or kind.__module__ in NO_DATA or (callable(item) and kind.__module__ == "builtins"):
            return kind.__name__
    return ""


def _bound(tree: ast.AST) -> Iterator[str]:
    """Every name that is given a value anywhere; "*" for names that cannot be known."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _always_read(node: ast.AST) -> Iterator[str]:
    """The names that are read whatever the other parts of an expression turn out to be."""
    if isinstance(node, ast.Name):
        yield node.id
    parts: Iterable[ast.AST]
    if isinstance(node, ast.BoolOp):
        parts = node.values[:1]
    elif isinstance(node, ast.IfExp):
        parts = [node.test]
    elif isinstance(node, ast.Compare):
        parts = [node.left, node.comparators[0]]
    elif isinstance(node, ast.Lambda):
        parts = []
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        parts = [node.generators[0].iter]
    else:
        parts = ast.iter_child_nodes(node)
    for part in parts:
        yield from _always_read(part)
