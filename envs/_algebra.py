"""Verify formulas: whole-number arithmetic and polynomials in this process, integrals with SymPy in the sandbox."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import marshal
import zipfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from rlvr.contracts import ExitStatus, Limits, Program, Sandbox
from rlvr.python_source import parse_python_threadsafe
from rlvr.task import Fault, Verdict

MAX_FORMULA_CHARS = 600
FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "asin", "acos", "atan")
)
CONSTANTS = frozenset(("pi", "E"))
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd)
SKIPPED_FOLDERS = frozenset(("tests", "testing", "benchmarks", "__pycache__"))
COMPARE_LIMITS = Limits(cpu_s=10.0, wall_s=30.0, memory_mb=512)
COMPARE_PROGRAM = """
import json, sys
sys.path.insert(0, "algebra.zip")
import sympy
asked = json.load(sys.stdin)
print("ready", flush=True)
known = {name: sympy.Symbol(name) for name in asked["names"]}
said, right = (sympy.parse_expr(text, local_dict=dict(known)) for text in (asked["said"], asked["right"]))
if asked["derive"]:
    said = sympy.diff(said, known[asked["derive"]])
print("same" if said == right or sympy.simplify(said - right) == 0 else "different")
"""


def is_formula(text: str, allowed_names: frozenset[str]) -> bool:
    """Return whether a text is a formula of numbers, these names, + - * / **, brackets and the usual functions only.

    >>> is_formula("x**2/2 + C", frozenset("xC")), is_formula("__import__('os')", frozenset("x")), is_formula("x.real", frozenset("x"))
    (True, False, False)
    """
    tree = _parse_expression(text)
    return tree is not None and all(_is_allowed_node(node, allowed_names) for node in ast.walk(tree))


def evaluate_expression(text: str) -> tuple[Fraction, list[int]] | None:
    """Evaluate an expression of whole numbers and + - * /; return (value, its numbers), or None if it is invalid or divides by zero.

    >>> evaluate_expression("(1 + 2) * 8"), evaluate_expression("2**3"), evaluate_expression("1/0")
    ((Fraction(24, 1), [1, 2, 8]), None, None)
    """
    tree, numbers = _parse_expression(text), list[int]()
    if tree is None:
        return None
    try:
        return _evaluate(tree.body, numbers), numbers
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def _parse_polynomial(text: str, allowed_names: frozenset[str]) -> dict[tuple[tuple[str, int], ...], Fraction] | None:
    """Parse an expanded polynomial into its coefficients; None if it has a product of sums, or two terms with the same powers.

    >>> _parse_polynomial("2*x**2 - y*x + 3", frozenset("xy")), _parse_polynomial("(x + 1)*x", frozenset("x")), _parse_polynomial("x + 2*x", frozenset("x"))
    ({(('x', 2),): Fraction(2, 1), (('x', 1), ('y', 1)): Fraction(-1, 1), (): Fraction(3, 1)}, None, None)
    """
    tree, found = _parse_expression(text), dict[tuple[tuple[str, int], ...], Fraction]()
    try:
        for sign, term in _iter_terms(tree.body, 1) if tree is not None else ():
            numbers, powers = list[int](), dict[str, int]()
            _collect_factors(term, numbers, powers)
            key = tuple(sorted(powers.items()))
            if len(numbers) > 1 or not set(powers) <= allowed_names or key in found:
                return None
            found[key] = Fraction(sign * (numbers[0] if numbers else 1))
    except (ValueError, RecursionError):
        return None
    return found or None


def verify_formula(
    sandbox: Sandbox, answer: str, reference: str, *, allowed_names: frozenset[str], differentiate_by: str = "", gold: str = ""
) -> Verdict:
    """Verify that a formula (or its derivative) equals another one. If the answer breaks the comparison, `gold` is tried instead."""
    if not is_formula(answer, allowed_names):
        return Verdict(0.0, f"{answer!r:.80} is not a formula of {', '.join(sorted(allowed_names))}")
    asked = {"said": answer, "right": reference, "names": sorted(allowed_names), "derive": differentiate_by}
    program = Program(
        COMPARE_PROGRAM, stdin=json.dumps(asked).encode(), files={"algebra.zip": _build_sympy_archive()}, limits=COMPARE_LIMITS
    )
    outcome = sandbox.run(program)
    words = outcome.stdout_bytes.decode("utf-8", "replace").split()
    if outcome.status is ExitStatus.OK and words in (["ready", "same"], ["ready", "different"]):
        return Verdict(float(words[1] == "same"), f"{answer!r:.80} is {'right' if words[1] == 'same' else 'wrong'}")
    error = outcome.reason or outcome.stderr_bytes[-200:].decode("utf-8", "replace")
    why = f"the comparison of {answer!r:.80} ended with {outcome.status.value}: {error}"
    if outcome.status is ExitStatus.INTERNAL_ERROR or words[:1] != ["ready"]:
        return Verdict(None, why, fault=Fault.INFRA)
    if (
        gold
        and gold != answer
        and verify_formula(sandbox, gold, reference, allowed_names=allowed_names, differentiate_by=differentiate_by).score == 1.0
    ):
        return Verdict(0.0, why, fault=Fault.ANSWER)
    return Verdict(None, f"{why}; so does that of the right answer", fault=Fault.TASK)


@lru_cache(maxsize=1)
def _build_sympy_archive() -> bytes:
    """Pack SymPy into one zip file for the sandbox: bytecode if this Python is 3.11, as in the sandbox image, else source files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path, name in _iter_source_files("sympy", "mpmath"):
            if importlib.util.MAGIC_NUMBER == MAGIC_OF_3_11:
                code = SourceFileLoader(name, str(path)).get_code(name)  # uses the cached bytecode if it is fresh
                packed.writestr(name + "c", MAGIC_OF_3_11 + bytes(12) + marshal.dumps(code))
            else:
                packed.write(path, name)
    return made.getvalue()


MAGIC_OF_3_11 = (3495).to_bytes(2, "little") + b"\r\n"


def _iter_source_files(*packages: str) -> Iterator[tuple[Path, str]]:
    for package in packages:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        root = Path(found.origin).parent
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root.parent)
            if not SKIPPED_FOLDERS & set(name.parts):
                yield path, name.as_posix()


def _parse_expression(text: str) -> ast.Expression | None:
    try:
        return parse_python_threadsafe(text.strip(), "eval") if len(text) <= MAX_FORMULA_CHARS else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_allowed_node(node: ast.AST, names: frozenset[str]) -> bool:
    match node:
        case ast.Name():
            return node.id in names | CONSTANTS | FUNCTIONS
        case ast.Constant():
            return type(node.value) in (int, float)
        case ast.Call():
            return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        case _:
            return isinstance(node, (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Load, *OPERATORS))


def _evaluate(node: ast.expr, numbers: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(ast.USub(), inner):
            return -_evaluate(inner, numbers)
        case ast.BinOp(left, operator, right):
            return _apply_operator(operator, _evaluate(left, numbers), _evaluate(right, numbers))
        case _:
            raise ValueError("not whole numbers and + - * /")


def _iter_terms(node: ast.expr, sign: int) -> Iterator[tuple[int, ast.expr]]:
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as operator, right):
            yield from _iter_terms(left, sign)
            yield from _iter_terms(right, sign if isinstance(operator, ast.Add) else -sign)
        case ast.UnaryOp(ast.USub(), inner):
            yield from _iter_terms(inner, -sign)
        case _:
            yield sign, node


def _collect_factors(node: ast.expr, numbers: list[int], powers: dict[str, int]) -> None:
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            numbers.append(number)
        case ast.Name(name):
            powers[name] = powers.get(name, 0) + 1
        case ast.BinOp(ast.Name(name), ast.Pow(), ast.Constant(value=int(power))) if type(power) is int and power > 0:
            powers[name] = powers.get(name, 0) + power
        case ast.BinOp(left, ast.Mult(), right):
            _collect_factors(left, numbers, powers)
            _collect_factors(right, numbers, powers)
        case ast.UnaryOp(ast.USub(), inner):
            _collect_factors(inner, numbers, powers)
            numbers[:] = [-numbers[0], *numbers[1:]] if numbers else [-1]
        case _:
            raise ValueError("not a number times powers of names")


def _apply_operator(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case _:
            raise ValueError("only + - * / are allowed")


def get_required_metadata(dataset: str) -> tuple[str, ...]:
    """Return the metadata keys of a reasoning_gym question that verification needs.

    >>> get_required_metadata("countdown")
    ('numbers', 'target')
    """
    return REQUIRED_METADATA.get(dataset, ())


REQUIRED_METADATA: Mapping[str, tuple[str, ...]] = {
    "countdown": ("numbers", "target"),
    "puzzle24": ("numbers",),
    "simple_integration": ("variable", "integrand"),
    "intermediate_integration": ("variable", "integrand"),
    "polynomial_multiplication": ("variables",),
}


def is_gold_comparable(dataset: str, gold: str) -> bool:
    """Return whether the gold answer can be compared: some integrals of the package are left unevaluated.

    >>> golds = {"simple_integration": "x**2 + C", "intermediate_integration": "-2*Integral(x**3, x) + C"}
    >>> [is_gold_comparable(dataset, gold) for dataset, gold in golds.items()]
    [True, False]
    """
    return dataset not in REQUIRED_METADATA or "numbers" in REQUIRED_METADATA[dataset] or is_formula(gold, LETTERS)


LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def verify_without_package_scorer(dataset: str, answer: str, metadata: Mapping[str, Any], gold: str, sandbox: Sandbox | None) -> Verdict:
    """Verify an answer to one of the data sets whose own scorer would execute the answer."""
    if dataset in ("countdown", "puzzle24"):
        found, target = evaluate_expression(answer), metadata.get("target", 24)
        if found is None:
            return Verdict(0.0, f"{answer!r:.80} is not an expression of whole numbers and + - * /")
        if sorted(found[1]) != sorted(metadata["numbers"]):
            return Verdict(0.0, f"it uses {found[1]}, the numbers are {metadata['numbers']}")
        return Verdict(float(found[0] == target), f"it makes {found[0]}, the target is {target}")
    if dataset == "polynomial_multiplication":
        names = frozenset(metadata["variables"])
        worked, right = _parse_polynomial(answer, names), _parse_polynomial(gold, names)
        if right is None:
            return Verdict(None, f"the right answer {gold!r:.80} is no polynomial that is worked out", fault=Fault.TASK)
        if worked is None:
            return Verdict(0.0, f"{answer!r:.80} is not a polynomial of {', '.join(sorted(names))} that is worked out")
        return Verdict(float(worked == right), f"{answer!r:.80} is {'right' if worked == right else 'wrong'}")
    if sandbox is None:
        return Verdict(
            None, f"the answers of {dataset} are compared in a sandbox, and there is none; set sandbox: docker", fault=Fault.INFRA
        )
    variable = metadata["variable"]
    return verify_formula(
        sandbox, answer, metadata["integrand"], allowed_names=frozenset((variable, "C")), differentiate_by=variable, gold=gold
    )
