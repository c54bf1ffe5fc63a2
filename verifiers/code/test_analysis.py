"""Analyze the test code of a task before any answer runs, and instrument it for the checker.

Only data is sent between the checker and an answer. So no answer can pass a test that calls a returned value, that reads an attribute
which no data type has, or that uses an undefined name. This is a fault of the task. It is decided from the text of the test alone, so no
answer can cause it. The text is only parsed here; it runs in the sandbox, first without an answer (dry run), then with one.
"""

from __future__ import annotations

import ast
import builtins
import collections
import decimal
import fractions
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from rlvr.errors import ConfigError
from rlvr.python_source import parse_python_threadsafe

DATA_TYPES = (str, int, float, complex, bytes, bytearray, range, list, tuple, dict, set, frozenset, collections.deque)
DATA_ATTRIBUTES = {name for kind in (*DATA_TYPES, decimal.Decimal, fractions.Fraction, type(None)) for name in dir(kind)}
DYNAMIC_NAMES = {"exec", "eval", "globals", "locals", "vars", "setattr", "__import__"}
"""Functions with which code may define names that static analysis does not find."""


@dataclass(frozen=True, slots=True)
class InstrumentedTest:
    """Instrumented test code: every statement with an assertion is a test, and records whether it passed.

    >>> prepare_test("assert f(1) == 2", "", "f").num_assertions
    1
    """

    source: str
    num_assertions: int
    """Number of statements with an assertion."""
    has_check_function: bool
    """Whether there is a function `check`, which is called with the answer's function."""
    is_class: bool = False
    """Whether the answer is a class, by the case of its name: its objects stay in the answer's process, and the test uses them there."""


@lru_cache(maxsize=1024)
def prepare_test(test: str, setup: str, entry_point: str) -> InstrumentedTest:
    """Instrument the test code of a task for the checker; ConfigError if no answer can pass it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # published code has invalid escapes, which give warnings
            examined, before = AnalyzedTest(parse_python_threadsafe(test), entry_point), parse_python_threadsafe(setup)
            flaw = examined.explain_unpassable(before)
            tree = examined.instrument()
            bodies: list[ast.Module | ast.FunctionDef] = [tree, *examined.check_functions]
            count = 0
            for node in bodies:
                node.body, count = _wrap_assertions(node.body, count)
            text = ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"the test code does not compile: {type(error).__name__}: {error}") from None
    if flaw or not (count or examined.check_functions):
        raise ConfigError(flaw or "the test code asserts nothing")
    return InstrumentedTest(text, count, bool(examined.check_functions), examined.is_class)


@lru_cache(maxsize=1024)
def find_answer_names(test: str) -> tuple[str, ...]:
    """Find the names that only the answer of a test can define: those that it calls, else uses, and neither it nor Python defines.

    Raises:
        ValueError: the text is not Python, or has no assertion.

    >>> find_answer_names("import math; assert math.floor(f(2.5)) == len(g)")
    ('f',)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parse_python_threadsafe(test)
    except SyntaxError as error:
        raise ValueError(f"is not Python ({error.msg}, line {error.lineno})") from None
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Assert) for node in nodes):
        raise ValueError("has no assertion")
    bound = {*_iter_bound_names(tree), *vars(builtins), "__name__"}
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    used = [node.id for node in nodes if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(name for name in called if name not in bound) or dict.fromkeys(name for name in used if name not in bound))


def _wrap_assertions(body: list[ast.stmt], first_index: int) -> tuple[list[ast.stmt], int]:
    """Wrap every asserting statement in a `try` that records whether it passed; also return the next test index."""
    changed: list[ast.stmt] = []
    for statement in body:
        defines = isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        if not defines and any(isinstance(node, ast.Assert) for node in ast.walk(statement)):
            caught = "(Exception, __undecided__)" if isinstance(statement, ast.Assert) else "Exception"
            note = parse_python_threadsafe(
                f"try:\n    pass\nexcept {caught} as __error__:\n    __failed__({first_index}, __error__)\nelse:\n    __passed__({first_index})"
            ).body[0]
            assert isinstance(note, ast.Try)
            note.body = [statement]
            statement, first_index = note, first_index + 1
        changed.append(ast.fix_missing_locations(statement))
    return changed, first_index


class AnalyzedTest:
    r"""A parsed test module, with the names that mean the answer and the names that always hold its results.

    >>> AnalyzedTest(ast.parse("r = f(2)\nassert r(3) == 5"), "f").explain_unpassable(ast.parse(""))
    'the test calls what the answer returns, but only data can be returned'
    """

    def __init__(self, tree: ast.Module, entry_point: str) -> None:
        self.tree = tree
        self.is_class = entry_point[:1].isupper()
        self.check_functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
        self.answer_names = {entry_point, "candidate", *(node.args.args[0].arg for node in self.check_functions if node.args.args)}
        self.result_names: set[str] = set()
        given = collections.Counter(
            node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and len(node.targets) == 1
            and self.is_answer_result(node.value)
        )
        self.result_names = {name for name, count in given.items() if count == collections.Counter(_iter_bound_names(tree))[name]}

    def is_answer_result(self, node: ast.AST) -> bool:
        """Whether a node is a call of the answer's function, or a name that holds its result."""
        if isinstance(node, ast.Name):
            return node.id in self.result_names
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.answer_names

    def explain_unpassable(self, setup: ast.Module) -> str:
        """Explain why no answer can pass this test; "" if one may pass. The setup runs before the test."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and self.is_answer_result(node.func):
                return "the test calls what the answer returns, but only data can be returned"
            if self.is_class:
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.answer_names:
                    return f"the test reads .{node.attr} of the answer's class itself, but only its objects can be used"
                continue
            if isinstance(node, ast.Attribute) and self.is_answer_result(node.value) and node.attr not in DATA_ATTRIBUTES:
                return f"the test reads .{node.attr} of what the answer returns, but only data can be returned"
        bound = {*_iter_bound_names(setup), *_iter_bound_names(self.tree), *vars(builtins), *self.answer_names, "__name__"}
        used = {node.id for tree in (setup, self.tree) for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if "*" in bound or used & DYNAMIC_NAMES:
            return ""
        for statement in [*self.tree.body, *(row for check in self.check_functions for row in check.body)]:
            for node in _iter_unconditional_nodes(statement.test) if isinstance(statement, ast.Assert) else ():
                if isinstance(node, ast.Name) and node.id not in bound:
                    return f"the test uses {node.id!r}, which is not defined"
        return ""

    def instrument(self) -> ast.Module:
        """Mark conditions of assertions, values that a result is compared with, and calls made for their side effects."""
        for node in list(ast.walk(self.tree)):
            if isinstance(node, ast.Assert):
                for part in list(_iter_unconditional_nodes(node.test)):
                    if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq | ast.Is):
                        if self.is_answer_result(part.left):
                            part.comparators[0] = self._mark_expected(part.comparators[0])
                        elif self.is_answer_result(part.comparators[0]):
                            part.left = self._mark_expected(part.left)
                node.test = ast.Call(ast.Name("__holds__", ast.Load()), [node.test], [])
            elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call) and self.is_answer_result(call):
                call.args.insert(0, call.func)
                call.func = ast.Name("__in_place__", ast.Load())
        return ast.fix_missing_locations(self.tree)

    def _mark_expected(self, node: ast.expr) -> ast.expr:
        if any(self.is_answer_result(inner) for inner in ast.walk(node)):
            return node  # it depends on the answer
        return ast.Call(ast.Name("__wanted__", ast.Load()), [node], [])


def _iter_bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that is bound anywhere; "*" for a star import, whose names are unknown."""
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


def _iter_unconditional_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression that are always evaluated."""
    yield node
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
        yield from _iter_unconditional_nodes(part)
