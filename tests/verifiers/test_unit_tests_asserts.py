# ruff: noqa: E501  (programs stand in one line each)
"""Test code as `unit_tests` runs it: what changes in place, and which tests nobody can be judged by."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from rlvr import make_verifier
from rlvr.contracts import Limits, Sandbox
from rlvr.errors import ConfigError
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers.code.reference import parse_reference
from rlvr.verifiers.code.test_analysis import prepare_test
from rlvr.verifiers.unit_tests import UnitTests


@pytest.fixture(scope="module")
def verifier(process_sandbox: Sandbox) -> UnitTests:
    return UnitTests(sandbox=process_sandbox)


def judge(verifier: UnitTests, test: str, code: str, **more: Any) -> Verdict:
    reference = {"kind": "asserts", "entry_point": "f", "test": test, **more}
    return verifier.verify(Task(make_user_prompt("write it"), reference, id="t"), f"```python\n{code}\n```\n")


@pytest.mark.parametrize(("test", "right", "wrong"), [
    ("xs = [3, 1, 2]\nf(xs)\nassert xs == [1, 2, 3]", "def f(xs): xs.sort()", "def f(xs): return sorted(xs)"),
    ("def check(candidate):\n    m = [[1, 2], [3, 4]]\n    candidate(m)\n    assert m == [[3, 1], [4, 2]]",
     "def f(m): m[:] = [list(r) for r in zip(*m[::-1])]", "def f(m): m.reverse()"),
    ("def check(g):\n    d = {1: 2}\n    g(d)\n    assert d == {2: 1}", "def f(d):\n    d[2] = 1\n    del d[1]", "def f(d): pass"),
    ("s = {1, 2}\nf(s, 3)\nassert s == {1, 2, 3}", "def f(s, x): s.add(x)", "def f(s, x): s.clear()"),
    ("b = bytearray(b'ab')\nf(b)\nassert b == b'ba'", "def f(b): b.reverse()", "def f(b): return b[::-1]"),
    ("import collections\nq = collections.deque([1])\nf(q)\nassert list(q) == [1, 2]", "def f(q): q.append(2)", "def f(q): q.clear()"),
    ("xs = [2, 1]\nf(xs=xs)\nassert xs == [1, 2]", "def f(xs): xs.sort()", "def f(xs): pass"),
])  # fmt: skip
def test_a_call_that_is_made_for_its_effect_changes_the_arguments(verifier: UnitTests, test: str, right: str, wrong: str) -> None:
    assert judge(verifier, test, right).score == 1.0
    assert judge(verifier, test, wrong).score == 0.0


def test_where_the_result_counts_the_arguments_stay_as_they_were(verifier: UnitTests) -> None:
    """Else an answer could change what the test computes its expectation from."""
    test = "def check(candidate):\n    xs = [3, 1, 2]\n    assert candidate(xs) == sorted(xs)"
    cheat = "def f(xs):\n    xs.clear()\n    return []"
    assert judge(verifier, test, cheat).score == 0.0
    assert judge(verifier, test, "def f(xs):\n    xs.sort()\n    return xs").score == 1.0


def test_a_task_may_say_that_both_count(verifier: UnitTests) -> None:
    test = "xs = [1, 1, 2]\nk = f(xs)\nassert k == 2 and xs[:k] == [1, 2]"
    right = "def f(xs):\n    xs[:] = sorted(set(xs))\n    return len(xs)"
    assert judge(verifier, test, right, in_place=True).score == 1.0
    assert judge(verifier, test, "def f(xs): return 2", in_place=True).score == 0.0
    assert judge(verifier, test, right, in_place="yes").fault is Fault.TASK


@pytest.mark.parametrize("body", ["xs.append(print)", "xs[:] = [xs]", "import os; os._exit(0)", "xs.append(xs)"])
def test_what_an_answer_does_to_its_arguments_is_its_own_doing(verifier: UnitTests, body: str) -> None:
    verdict = judge(verifier, "xs = [1]\nf(xs)\nassert xs == [2]\nassert f(xs) is None", f"def f(xs):\n    {body}")
    assert verdict.score == 0.0, verdict


UNFIT = {
    "passes a function": ("assert f(lambda x: x + 1, 1) == 2", "def f(g, x): return g(x)"),
    "passes a class": ("assert f(int) == 0", "def f(k): return k()"),
    "passes an object, deep": ("import datetime\nassert f([{'a': (datetime.date(2020, 1, 1),)}]) == 2020", "def f(x): return x[0]['a'][0].year"),
    "passes it in the second test": ("assert f(1) == 1\nassert f(len) == 1", "def f(x): return 1"),
    "wants a date": ("import datetime\nassert f(1) == datetime.date(2020, 1, 1)", "import datetime\ndef f(x): return datetime.date(2020, 1, x)"),
    "wants a date, by a name": (
        "import datetime\ndef check(candidate):\n    got = candidate(1)\n    assert got == datetime.date(2020, 1, 1)",
        "import datetime\ndef f(x): return datetime.date(2020, 1, x)",
    ),
    "wants a date, the other way round": (
        "from datetime import timedelta\nassert [timedelta(1)] == f(1)", "from datetime import timedelta\ndef f(x): return [timedelta(x)]"
    ),
    "wants a date, in a loop": (
        "import datetime\ncases = [(1, datetime.date(2020, 1, 1))]\ndef check(candidate):\n    for day, date in cases:\n        assert candidate(day) == date",
        "import datetime\ndef f(x): return datetime.date(2020, 1, x)",
    ),
    "wants a record of the test's": (
        "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\nassert f(1) == P(1)",
        "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\ndef f(x): return P(x)",
    ),
    "wants a class": ("assert f('a') is str", "def f(x): return type(x)"),
    "calls the result": ("assert f(1)(2) == 3", "def f(x): return lambda y: x + y"),
    "calls the result, by a name": ("add = f(1)\nassert add(2) == 3", "def f(x): return lambda y: x + y"),
    "reads a field of it": ("r = f(2020)\nassert r.year == 2020", "import datetime\ndef f(x): return datetime.date(x, 1, 1)"),
    "uses an unknown name": ("assert f(1) == WANTED", "def f(x): return x"),
    "uses an unknown name in check": ("def check(candidate):\n    assert abs(candidate(1) - one) < eps", "def f(x): return x"),
}  # fmt: skip


@pytest.mark.parametrize(("test", "right"), UNFIT.values(), ids=UNFIT)
def test_a_test_that_only_more_than_data_could_pass_is_the_tasks_fault(verifier: UnitTests, test: str, right: str) -> None:
    verdict = judge(verifier, test, right)
    assert (verdict.score, verdict.fault) == (None, Fault.TASK), verdict
    assert "cannot be verified" in verdict.reason


FIT = {
    "an iterator is data": ("assert f(iter([1, 2])) == 3", "def f(x): return sum(x)"),
    "a comparison of one's own": (
        "class Near:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return abs(self.x - other) < 1\nassert f(1) == Near(1.5)",
        "def f(x): return x",
    ),
    "an unknown name that is only the message": ("assert f(1) == 1, message", "def f(x): return x"),
    "an unknown name that is never reached": ("assert f(1) == 1 or unknown", "def f(x): return x"),
    "a name that is made in the test": ("for n in range(3):\n    assert f(n) == n\nassert n == 2", "def f(x): return x"),
    "a name of the setup": ("assert f(1) == ONE", "def f(x): return x"),
    "methods of data": ("assert f('a').upper() == 'A'\nr = f('b')\nassert r.isalpha()", "def f(x): return x"),
    "the type of a result": ("assert type(f(1)) is int and isinstance(f(1), int)", "def f(x): return x"),
    "a name that is more than a result": ("r = f(1)\nr = abs\nassert r(-1) == f(1)", "def f(x): return x"),
    "an exception": (
        "def check(candidate):\n    try:\n        candidate(0)\n        assert False\n    except ZeroDivisionError as e:\n        assert type(e) is ZeroDivisionError",
        "def f(x): return 1 / x",
    ),
}


@pytest.mark.parametrize(("test", "right"), FIT.values(), ids=FIT)
def test_a_test_that_data_can_pass_is_run(verifier: UnitTests, test: str, right: str) -> None:
    assert judge(verifier, test, right, setup="ONE = 1").score == 1.0
    assert judge(verifier, test, "def f(x): return {}", setup="ONE = 1").score == 0.0


OBJECT = "class A:\n    __eq__ = __call__ = lambda *a: True\n    __getattr__ = lambda *a: A()\n"


@pytest.mark.parametrize("answer", [
    "def f(x): return A()", "def f(x): return A", "def f(x): return len", "def f(x): return [A()]", "def f(x): raise NameError('x')",
    "def f(x): raise NameError(\"name 'WANTED' is not defined\", name='WANTED')", "def f(x):\n    import datetime\n    return datetime.date(1, 1, 1)",
])  # fmt: skip
@pytest.mark.parametrize("test", [
    "assert f(1) == 5", "assert f(f(1)) == 5", "r = f(1)\nassert r == 5", "assert f(1).real == 5", "assert f(1) in (5, len)", "assert f([f(1)]) == 5",
    "assert f(1) == 5 or unknown", "assert f(1) == 5, unknown", "def check(c):\n    r = c(1)\n    r2 = c(r)\n    assert r2 == c(r)", "xs = [1]\nf(xs)\nassert xs == 5",
    "assert f(1) == f(2) == 5", "assert f(1) == 5 or f(2) == len", "assert 5 == f(1) if f(2) == 3 else f(1) == len",
])  # fmt: skip
def test_no_answer_talks_itself_out_of_a_0_by_what_it_returns(verifier: UnitTests, test: str, answer: str) -> None:
    verdict = judge(verifier, test, OBJECT + answer)
    assert verdict.score == 0.0, verdict


@pytest.mark.parametrize("answer", ["def f(x): return 1", "def f(x): return 2", "raise SystemExit", "no code"])
def test_an_unfit_test_gives_no_score_to_any_answer(verifier: UnitTests, answer: str) -> None:
    """Otherwise an answer could choose between no score and 0."""
    verdict = judge(verifier, "assert f(1) == 1\nassert f(len) == 1", answer)
    assert (verdict.score, verdict.fault) == (None, Fault.TASK), verdict


@pytest.mark.parametrize(
    "test", ["assert f(", "x = 1", "assert f(1) == '\0'", "assert f(1)" + "(" * 300 + ")" * 300, "x = " + "-" * 5000 + "1\nassert f(x)"]
)
def test_test_code_that_cannot_be_read_is_refused(test: str) -> None:
    with pytest.raises(ConfigError, match=r"compile|asserts nothing"):
        prepare_test(test, "", "f")


# ---- a reference that is the text of the assertions


@pytest.mark.parametrize("reference", [
    "assert add(1, 2) == 3",
    "assert add(1, 2) == 3\nassert add(0, 0) == 0",
    "import math\nassert math.isclose(add(1, 2), 3) and set([add(1, 1)]) == {2}",
    "for a in range(3):\n    assert add(a, 1) == a + 1",
    "def check(candidate):\n    assert candidate(1, 2) == 3\n\ncheck(add)",
    ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
])  # fmt: skip
def test_assertions_alone_are_a_reference(verifier: UnitTests, reference: Any) -> None:
    assert verifier("```python\ndef add(a, b): return a + b\n```", reference).score == 1.0
    assert verifier("```python\ndef add(a, b): return a - b\n```", reference).score == 0.0
    assert verifier("```python\ndef sub(a, b): return a + b\n```", reference).score == 0.0


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("Paris", "the text 'Paris' has no assertion"),
        ("assert add(1, 2) = 3", "the text 'assert add.* is not Python"),
        ("assert 1 == 1", "call no function of the answer"),
        ("assert add(1, 2) == 3\nassert sub(3, 2) == 1", "add and sub.*'entry_point'"),
        (["assert add(1, 2) == 3", 5], "a list"),
        (5, "the reference is 5"),
        (None, "the reference is None"),
        ({"asserts": ["assert add(1, 2) == 3"]}, "has no 'kind'"),
        ({"kind": "assert", "test": "assert add(1, 2) == 3"}, "did you mean 'asserts'"),
        ({"kind": "asserts", "asserts": "assert add(1, 2) == 3"}, "has no 'asserts'"),
        ({"kind": "asserts", "test": "assert add(1, 2) == 3"}, "needs 'test' and 'entry_point'"),
    ],
)
def test_a_reference_that_is_none_is_answered_with_a_whole_one(verifier: UnitTests, reference: Any, words: str) -> None:
    verdict = verifier("```python\ndef add(a, b): return a + b\n```", reference)
    assert (verdict.score, verdict.fault) == (None, Fault.TASK) and re.search(words, verdict.reason), verdict.reason
    assert verdict.reason.count("'entry_point': 'add', 'test': 'assert add(1, 2) == 3'") == 1


@pytest.mark.parametrize("kind", ["calls", "stdio"])
def test_the_whole_reference_is_of_the_kind_that_was_meant(verifier: UnitTests, kind: str) -> None:
    verdict = verifier("```python\npass\n```", {"kind": kind})
    shown = re.search(r"such as (\{.*\})$", verdict.reason)
    assert shown is not None and ast.literal_eval(shown[1])["kind"] == kind
    assert parse_reference(ast.literal_eval(shown[1]), Limits()).kind == kind


@pytest.mark.parametrize("name", ["timeout", "timeout_s", "time_limit"])
def test_a_timeout_is_a_limit(process_sandbox: Sandbox, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"has no setting '{name}'; write limits=\{{'wall_s': 5\}}"):
        make_verifier("unit_tests", sandbox=process_sandbox, **{name: 5})
    assert make_verifier("unit_tests", sandbox=process_sandbox, limits={"wall_s": 5}).limits.wall_s == 5  # type: ignore[attr-defined]


def test_code_without_a_block_is_told_how_to_be_taken(process_sandbox: Sandbox, verifier: UnitTests) -> None:
    code = "def add(a, b): return a + b"
    verdict = verifier(code, "assert add(1, 2) == 3")
    assert verdict.score == 0.0 and "```python ... ```" in verdict.reason and "extractor='whole'" in verdict.reason
    assert UnitTests(sandbox=process_sandbox, extractor="whole")(code, "assert add(1, 2) == 3").score == 1.0
