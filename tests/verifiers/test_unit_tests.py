# ruff: noqa: E501  (programs stand in one line each)
"""The `unit_tests` verifier: right answers pass, wrong ones do not, and the three faults are kept apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers.unit_tests import UnitTests

SQUARE_IO = {"kind": "stdio", "cases": [{"stdin": "3", "stdout": "9\n"}, {"stdin": "4", "stdout": "16\n"}]}
SQUARE_CALLS = {"kind": "calls", "function": "square", "cases": [{"args": [3], "expected": 9}, {"args": [4], "expected": 16}]}
SQUARE_ASSERTS = {
    "kind": "asserts",
    "entry_point": "square",
    "test": "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(4) == 16\n",
}


@pytest.fixture(scope="module")
def verifier(process_sandbox: Sandbox) -> UnitTests:
    return UnitTests(sandbox=process_sandbox)


def judge(verifier: UnitTests, reference: Mapping[str, Any], code: str) -> Verdict:
    return verifier.verify(Task(make_user_prompt("write it"), reference, id="t"), f"Here it is.\n```python\n{code}\n```\n")


@pytest.mark.parametrize(("reference", "code"), [
    (SQUARE_IO, "print(int(input()) ** 2)"),
    (SQUARE_CALLS, "def square(x):\n    return x * x"),
    (SQUARE_CALLS, "class Solution:\n    def square(self, x):\n        return x * x"),
    (SQUARE_ASSERTS, "def square(x):\n    return x * x"),
    (SQUARE_ASSERTS, "square = lambda x: x ** 2"),
    (SQUARE_ASSERTS, "def square(x):\n    print('noise')\n    return x * x\nif __name__ == '__main__':\n    square(int(input()))"),
], ids=range(6))  # fmt: skip
def test_right_answers_pass(verifier: UnitTests, reference: dict[str, Any], code: str) -> None:
    verdict = judge(verifier, reference, code)
    assert verdict.score == 1.0, verdict
    assert [row["ok"] for row in verdict.detail["tests"]] == [True, True]


@pytest.mark.parametrize(("reference", "code", "fault"), [
    (SQUARE_IO, "print(9)", Fault.NONE),
    (SQUARE_IO, "print(int(input()) ** 2); raise SystemExit(1)", Fault.ANSWER),
    (SQUARE_IO, "def f(:", Fault.ANSWER),
    (SQUARE_IO, "", Fault.NONE),
    (SQUARE_CALLS, "def square(x):\n    return 9", Fault.NONE),
    (SQUARE_CALLS, "def square(x):\n    return str(x * x)", Fault.NONE),
    (SQUARE_CALLS, "def square(x):\n    return float('nan')", Fault.NONE),
    (SQUARE_CALLS, "def cube(x):\n    return x ** 3", Fault.ANSWER),
    (SQUARE_CALLS, "import os\nos._exit(0)", Fault.ANSWER),
    (SQUARE_ASSERTS, "def square(x):\n    return 9", Fault.NONE),
    (SQUARE_ASSERTS, "def square(x):\n    raise ValueError", Fault.NONE),
    (SQUARE_ASSERTS, "import sys\nsys.exit(0)", Fault.ANSWER),
    (SQUARE_ASSERTS, "def cube(x):\n    return x ** 3", Fault.ANSWER),
], ids=range(13))  # fmt: skip
def test_wrong_answers_score_0(verifier: UnitTests, reference: dict[str, Any], code: str, fault: Fault) -> None:
    verdict = judge(verifier, reference, code)
    assert (verdict.score, verdict.fault) == (0.0, fault), verdict


@pytest.mark.parametrize("reference", [
    None,
    {"kind": "nonsense"},
    {"kind": "stdio", "cases": []},
    {"kind": "stdio", "cases": [{"stdin": "1"}]},
    {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1", "weight": -1}]},
    {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}], "limits": {"wall": 1}},
    {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}], "limits": {"wall_s": 0}},
    {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}], "checker": "almost"},
    {"kind": "calls", "cases": [{"args": [1], "expected": 1}]},
    {"kind": "asserts", "entry_point": "f", "test": ""},
    {"kind": "asserts", "entry_point": "f g", "test": "assert f(1)"},
    {"kind": "asserts", "entry_point": "f", "test": "assert f("},
    {"kind": "asserts", "entry_point": "f", "test": "x = 1"},
    {"kind": "asserts", "entry_point": "f", "test": "x = 1 / 0\nassert f(1)"},
    {"kind": "asserts", "entry_point": "f", "test": "assert f(1)", "setup": "import nowhere"},
], ids=range(15))  # fmt: skip
def test_a_broken_task_has_no_score(verifier: UnitTests, reference: Any) -> None:
    verdict = judge(verifier, reference, "def f(x):\n    return True")
    assert (verdict.score, verdict.fault) == (None, Fault.TASK), verdict


class Dead(Sandbox):
    def run_program(self, program: Program) -> ExecutionResult:
        return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason="gone")


@pytest.mark.parametrize("reference", [SQUARE_IO, SQUARE_CALLS, SQUARE_ASSERTS])
def test_a_dead_sandbox_is_never_a_zero(reference: dict[str, Any]) -> None:
    verdict = judge(UnitTests(sandbox=Dead()), reference, "print(1)")
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA)


def test_an_answer_without_code_scores_0(verifier: UnitTests) -> None:
    verdict = verifier.verify(Task(make_user_prompt("x"), SQUARE_IO, id="t"), "print(int(input()) ** 2)")
    assert verdict.score == 0.0 and "no code" in verdict.reason


def test_the_last_block_counts(verifier: UnitTests) -> None:
    right, wrong = "```python\nprint(int(input()) ** 2)\n```\n", "```python\nprint(0)\n```\n"
    task = Task(make_user_prompt("x"), SQUARE_IO, id="t")
    assert verifier.verify(task, wrong + "Rather:\n" + right).score == 1.0
    assert verifier.verify(task, right + "Rather:\n" + wrong).score == 0.0


def test_a_fraction_counts_by_weight(process_sandbox: Sandbox) -> None:
    verifier = UnitTests(sandbox=process_sandbox, score="fraction")
    cases = [{"stdin": "3", "stdout": "9", "weight": 3}, {"stdin": "4", "stdout": "16"}]
    assert judge(verifier, {"kind": "stdio", "cases": cases}, "print(9)").score == 0.75
    assert judge(verifier, SQUARE_ASSERTS, "def square(x):\n    return 9").score == 0.5
    late = "def square(x):\n    if x == 4:\n        import os\n        os._exit(0)\n    return 9"
    assert judge(verifier, SQUARE_CALLS, late).score == 0.5, "what was answered before the end stands, the rest failed"
    assert judge(verifier, SQUARE_ASSERTS, late).score == 0.0, "a judge that was left hanging tells nothing"


class Slow(Sandbox):
    """Every program prints the right output, after `wall_s`."""

    def __init__(self, wall_s: float) -> None:
        self.wall_s, self.num_runs = wall_s, 0

    def run_program(self, program: Program) -> ExecutionResult:
        self.num_runs += 1
        return ExecutionResult(ExitStatus.OK, exit_code=0, stdout_bytes=b"1\n", wall_s=self.wall_s)


@pytest.mark.parametrize(("score", "wanted"), [("all", 0.0), ("fraction", 0.41)])
def test_an_answer_that_is_slow_in_every_case_is_judged_before_the_run_gives_up(score: str, wanted: float) -> None:
    cases = [{"stdin": str(number), "stdout": "1"} for number in range(100)]
    task = Task(make_user_prompt("?"), {"kind": "stdio", "cases": cases}, id="t")
    slow = Slow(9.9)
    verdict = UnitTests(sandbox=slow, score=score).verify(task, "```python\nprint(1)\n```")
    assert (verdict.score, slow.num_runs) == (wanted, 41)
    assert verdict.reason == "41 of 100 tests passed; case 42: its runs took more than 400 s together"
    waiting = Slow(99.0)  # of which at most 10 s, the limit, are its own
    assert UnitTests(sandbox=waiting, total_s=1000).verify(task, "```python\nprint(1)\n```").score == 1.0


def test_limits_of_the_task_hold(verifier: UnitTests) -> None:
    slow = {**SQUARE_IO, "limits": {"wall_s": 0.5}}
    verdict = judge(verifier, slow, "import time\ntime.sleep(30)")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER) and "time" in verdict.reason
    fat = {**SQUARE_CALLS, "limits": {"memory_mb": 64}}
    assert judge(verifier, fat, "x = bytearray(3 << 30)\ndef square(x): return x * x").score == 0.0


def test_the_prelude_and_the_setup(verifier: UnitTests) -> None:
    reference = {**SQUARE_ASSERTS, "prelude": "import math\ndef helper(x):\n    return math.prod([x, x])", "setup": "NINE = 9"}
    reference["test"] = "def check(candidate):\n    assert candidate(3) == NINE\n"
    assert judge(verifier, reference, "def square(x):\n    return helper(x)").score == 1.0
    assert judge(verifier, reference, "def square(x):\n    return NINE").score == 0.0


def test_exceptions_cross_as_their_builtin_kind(verifier: UnitTests) -> None:
    test = "def check(candidate):\n    try:\n        candidate(-1)\n        assert False\n    except ValueError as error:\n        assert 'low' in str(error)\n"
    reference = {"kind": "asserts", "entry_point": "f", "test": test}
    assert judge(verifier, reference, "class Low(ValueError): pass\ndef f(x):\n    raise Low('too low')").score == 1.0
    assert judge(verifier, reference, "def f(x):\n    raise KeyError('too low')").score == 0.0
    assert judge(verifier, reference, "def f(x):\n    return 1").score == 0.0


def test_an_assertion_in_a_loop_must_hold_every_time(verifier: UnitTests) -> None:
    reference = {
        "kind": "asserts",
        "entry_point": "f",
        "test": "def check(candidate):\n    for n in range(50):\n        assert candidate(n) == n % 40\n",
    }
    assert judge(verifier, reference, "def f(n):\n    return n").score == 0.0
    assert judge(verifier, reference, "def f(n):\n    return n % 40").score == 1.0


def test_assertions_at_the_top_level(verifier: UnitTests) -> None:
    reference = {
        "kind": "asserts",
        "entry_point": "f",
        "test": "assert f(1) == (1, [2])\nassert set(f(2)) == {2, 3}\n",
        "limits": {"wall_s": 20},
    }
    assert judge(verifier, reference, "def f(n):\n    return (1, [2]) if n == 1 else [2, 3, 3]").score == 1.0
    assert judge(verifier, reference, "def f(n):\n    return [1, [2]]").score == 0.0


def test_iterators_and_their_like_arrive(verifier: UnitTests) -> None:
    test = "def check(candidate):\n    assert list(candidate('gen')) == [0, 1]\n    assert sorted(candidate('keys')) == [1]\n    assert dict(candidate('counter')) == {'a': 2}\n    assert candidate('range') == range(3)\n    assert candidate('match')\n"
    code = "import collections, re\ndef f(w):\n    return {'gen': (i for i in range(2)), 'keys': {1: 2}.keys(), 'counter': collections.Counter('aa'), 'range': range(3), 'match': re.match('a', 'a')}[w]"
    assert judge(verifier, {"kind": "asserts", "entry_point": "f", "test": test}, code).score == 1.0


def test_reasons_do_not_tell_what_was_expected(verifier: UnitTests) -> None:
    secret = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "xyzzy"}]}
    assert "xyzzy" not in json.dumps(judge(verifier, secret, "print(1)").to_dict())
    calls = {"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": "xyzzy"}]}
    assert "xyzzy" not in json.dumps(judge(verifier, calls, "def f(x): return 1").to_dict())


class Told(Sandbox):
    """Reports what it is given, as if somebody else than the judge had written it."""

    def __init__(self, *messages: bytes) -> None:
        self.report = b"".join(len(raw).to_bytes(4, "big") + raw for raw in messages)

    def run_program(self, program: Program) -> ExecutionResult:
        return ExecutionResult(ExitStatus.OK, 0, checker_output=self.report)


@pytest.mark.parametrize("told", [
    b'{"test": 0, "ok": "yes"}',
    b'{"test": [0], "ok": true}',
    b'{"test": true, "ok": true}',
    b'{"test": 0, "ok": false, "why": %s}' % (b"[" * 900 + b"]" * 900),
    b'{"test": 0, "ok": false, "why": "\\ud800\\u001b[2J"}',
    b'{"over": %s}' % (b"[" * 900 + b"]" * 900),
    b'{"over": "\\ud800\\u001b[2J"}',
    b"[" * 100_000,
    b'{"test": 0, "ok": false, "why": "%s"}' % (b"x" * 1_000_000),
], ids=range(9))  # fmt: skip
def test_no_report_is_believed_beyond_its_form(told: bytes) -> None:
    verdict = judge(UnitTests(sandbox=Told(told)), SQUARE_CALLS, "x")
    assert verdict.score == 0.0
    assert verdict.reason.isprintable() and verdict.reason.encode()


@pytest.mark.parametrize(("length", "score"), [(100, 1.0), (100_000, 0.0)])
def test_a_record_that_is_too_long_for_the_judges_is_not_read(length: int, score: float) -> None:
    records = (b'{"test": %d, "ok": true, "why": "%s"}' % (index, b"x" * length) for index in range(2))
    assert judge(UnitTests(sandbox=Told(*records, b'{"end": true}')), SQUARE_CALLS, "x").score == score


@pytest.mark.parametrize("body", ["return x * x + 1", "raise StopIteration", "raise ValueError", "return None", "import os; os._exit(0)"])
def test_what_fails_between_the_assertions_is_the_answers_doing_once_it_was_called(verifier: UnitTests, body: str) -> None:
    """No answer may talk itself out of a 0 by breaking the test, nor end a loop of the test before it has asserted anything."""
    loop = "def check(candidate):\n    for got, wanted in zip(map(candidate, [2, 3]), [4, 9]):\n        assert got == wanted\n"
    between = "first = square(2) + 0\nassert first == 4\n"
    for test in (loop, between):
        right, wrong = (
            judge(verifier, {"kind": "asserts", "entry_point": "square", "test": test}, f"def square(x):\n    {line}")
            for line in ("return x * x", body)
        )
        assert right.score == 1.0 and wrong.score == 0.0, (test, right, wrong)
