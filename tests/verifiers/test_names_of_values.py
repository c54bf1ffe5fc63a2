"""Letters that name a value or a function, products of letters, symbols of units, and golds in parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlvr.task import Task, make_user_prompt
from rlvr.verifiers.symbolic import Symbolic


@pytest.fixture(scope="module")
def verifier() -> Iterator[Symbolic]:
    with Symbolic() as plugin:
        yield plugin


CALLS = [
    ("5", "f(g(2)) = f(3) = 3+2 = 5", 1.0),
    ("5", "f(f(2)) = 5", 1.0),
    ("-2", "g(1) = f(0) = -2", 1.0),
    ("-2", "g(1) = f(0) = -3", 0.0),
    ("2x", "h(x) = f(x) - g(x) = 2x", 1.0),
    ("5", "f(g(2)) = f(3) = 3+3 = 5", 0.0),
    ("5", "f(2) = f(3)", 0.0),
    ("7", "f(x) = 8 = 7", 0.0),
    ("391", "f(g(2)) = f(3) = 17*23", 0.0),
    ("[1, 5]", r"1 \le f(x) \le 5", 1.0),
    ("(1, 5)", r"1 \le f(x) \le 5", 0.0),
    ("(1, 5)", "1 < f(x) + 1 < 5", 0.0),
    ("(1, 5)", "1 < ax < 5", 0.0),
]
EULER = [
    (r"\frac{16}{5}", r"e = \frac{16}{5}", 1.0),
    ("5", "e = 2 + 3 = 5", 1.0),
    ("10", "e = 5 + 5", 0.0),
    ("2", "e = 2.71828 = 2", 0.0),
    (r"\frac{e}{2}", r"e = \frac{e}{2}", 0.0),
    (r"\ln 5", r"\ln 5 = e", 0.0),
    ("e = mc^2", "mc^2", 1.0),
    (r"\frac{c}{a}", "e = c/a", 1.0),
    ("5", "i = 5", 1.0),
    ("2e+1", "1 + 2e", 1.0),
    ("2e+1", "1 + 3e", 0.0),
    ("x = e", "e", 1.0),
    ("a=1, e=3", "e=3, a=1", 1.0),
    ("a=1, e=3", "e=1, a=3", 0.0),
]
MEMBERSHIPS = [
    ("-1, 0, 1", r"x \in \{0, \pm 1\}", 1.0),
    (r"\{-1, 0, 1\}", r"x \in \{0, \pm 1\}", 1.0),
    ("0, 1", r"x \in \{0, \pm 1\}", 0.0),
]
PRODUCTS = [
    ("ad-bc", "-bc + ad", 1.0),
    ("ad - bc", "da - cb", 1.0),
    ("ad - bc", "bc - ad", 0.0),
    ("ad - bc", "ad + bc", 0.0),
    ("$mg-ma$", "m(g-a)", 1.0),
    ("mg-ma", "m(a-g)", 0.0),
    ("x-ray", "ray - x", 0.0),
]
UNITS = [
    (r"3\text{ A}", r"3\text{ amperes}", 1.0),
    ("3 A", r"3\text{ amps}", 1.0),
    ("3 A", r"4\text{ amps}", 0.0),
    ("3 A", r"3\text{ volts}", 0.0),
    (r"2\text{ T}", r"2\text{ tesla}", 1.0),
    (r"2\text{ H}", r"2\text{ henries}", 1.0),
    (r"2\text{ Wb}", r"2\text{ webers}", 1.0),
    (r"2\text{ cd}", r"2\text{ candelas}", 1.0),
    (r"2\text{ mA}", r"2\text{ milliamperes}", 1.0),
    (r"2\text{ kPa}", r"2000\text{ Pa}", 1.0),
    (r"5\text{ kA}", r"5000\text{ A}", 1.0),
    (r"5\text{ coulombs}", r"5\text{ C}", 1.0),
    (r"5\text{ coulombs}", r"5\text{ mC}", 0.0),
    (r"2\text{ ohms}", r"2\,\Omega", 1.0),
    (r"2\text{ }\Omega", r"2\text{ ohms}", 1.0),
    (r"5\text{ Gy}", r"5\text{ Sv}", 0.0),
    ("3T", r"3\text{ times}", 0.0),
]
MAXIMA = [
    (r"\max(a,b)", r"\frac{a+b+|a-b|}{2}", 1.0),
    (r"\max(a,b)", r"\frac{a+b+|b-a|}{2}", 1.0),
    (r"\min(a,b)", r"\frac{a+b-|a-b|}{2}", 1.0),
    (r"\min(a,b)", r"\frac{a+b+|a-b|}{2}", 0.0),
]


@pytest.mark.parametrize(("gold", "answer", "score"), [*CALLS, *EULER, *MEMBERSHIPS, *PRODUCTS, *UNITS, *MAXIMA])
def test_names_and_symbols_are_read_as_what_they_name(verifier: Symbolic, gold: str, answer: str, score: float) -> None:
    verdict = verifier.verify(Task(make_user_prompt("?"), gold, id="t"), f"\\boxed{{{answer}}}")
    assert verdict.score == score, verdict.reason


def test_a_letter_before_a_calculation_does_not_make_it_worked_out(verifier: Symbolic) -> None:
    task = Task(make_user_prompt(r"Simplify $\sqrt{48}$."), r"4\sqrt{3}", id="t")
    assert verifier.verify(task, r"\boxed{e = \sqrt{48}}").score == 0.0
    assert verifier.verify(task, r"\boxed{e = 4\sqrt{3}}").score == 1.0


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("(a) 5, (b) 12", "**(a)** 5\n\n**(b)** 12", 1.0),
        ("(a) 5, (b) 12", "(a) $5$\n(b) $12$", 1.0),
        ("(a) 5, (b) 12", "(a) 5\n(b) 13", 0.0),
        ("(a) 5, (b) 12", "(b) 5\n(a) 12", 0.0),
        ("1. 5\n2. 12", "1. 5\n2. 12", 1.0),
        ("1. 5\n2. 12", r"\boxed{5, 12}", 1.0),
        ("1. 5\n2. 12", r"\boxed{12, 5}", 0.0),
        ("12", "1. 3 + 4 = 7\n2. 7 + 5 = 12", 0.0),
    ],
)
def test_a_gold_in_parts_one_a_line(verifier: Symbolic, gold: str, answer: str, score: float) -> None:
    verdict = verifier.verify(Task(make_user_prompt("?"), gold, id="t"), answer)
    assert verdict.score == score, verdict.reason
