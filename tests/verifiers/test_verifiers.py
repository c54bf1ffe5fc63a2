# ruff: noqa: E501 -- tables of answers read better in lines
"""The verifiers that need no machinery: what exactly counts as a number, a text, a format, a sum of parts, an expression."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvr
from rlvr import Fault, Task, Verdict, make, user
from rlvr.errors import ConfigError
from rlvr.verifiers.numeric import parse


def ask(verifier: Any, reference: Any, answer: str) -> Verdict:
    verdict = verifier.verify(Task("t", user("q"), reference), answer)
    assert isinstance(verdict, Verdict)
    return verdict


# ---- numeric

NUMERALS = {
    "7": Fraction(7), "-7": Fraction(-7), "+7": Fraction(7), "−7": Fraction(-7), "007": Fraction(7), "7.": Fraction(7),
    "0.5": Fraction(1, 2), ".5": Fraction(1, 2), "1,234": Fraction(1234), "1,234,567.25": Fraction(123456725, 100),
    "3/4": Fraction(3, 4), "-3/4": Fraction(-3, 4), "1e3": Fraction(1000), "2.5E-2": Fraction(1, 40), "$1,200": Fraction(1200),
    "-$5": Fraction(-5), "50%": Fraction(50), "$7$": Fraction(7), " 7 ": Fraction(7),
}  # fmt: skip
NO_NUMERALS = [
    "", " ", ".", "-", "+", "nan", "NaN", "inf", "-inf", "Infinity", "1_000", "0x10", "0b1", "1,23", "12,34,567", "1,2345", "1 000", "1.2.3",
    "--7", "7-", "7+", "3/0", "3//4", "3/4/5", "1e", "e5", "1e5.5", "1e9999", "\u0667", "\uff17", "7 apples", "seven", "7,", "7 8", "7;", "(7)", "None", "True",
    "9" * 300,
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMERALS.items())
def test_a_numeral_means_exactly_one_number(text: str, value: Fraction) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", NO_NUMERALS)
def test_anything_else_means_none(text: str) -> None:
    assert parse(text) is None


@given(st.fractions(max_denominator=10**6), st.sampled_from(["fraction", "decimal"]))
def test_every_number_is_read_as_itself(value: Fraction, form: str) -> None:
    if form == "decimal":
        value = Fraction(round(value * 1000), 1000)
        sign, whole, part = "-" if value < 0 else "", abs(value) // 1, int(abs(value) % 1 * 1000)
        assert parse(f"{sign}{whole}.{part:03d}") == parse(f"{sign}{whole:,}.{part:03d}") == value
    else:
        assert parse(f"{value.numerator}/{value.denominator}") == value


@given(st.text())
def test_no_text_is_read_more_kindly_than_by_float(text: str) -> None:
    value = parse(text)
    if value is not None and not set(text) & set("/,$€£%\\−"):
        assert float(text.strip().rstrip(".") or "x") == pytest.approx(float(value))


def test_references_may_be_json_numbers_and_nothing_vague() -> None:
    numeric = make("verifier", "numeric")
    assert ask(numeric, 0.1, "0.1").score == ask(numeric, 12, "12.0").score == ask(numeric, 1e21, "1e21").score == 1.0
    for reference in (None, True, "", "four", "1 or 2", float("nan"), float("inf"), [4], {"a": 1}):
        verdict = ask(numeric, reference, "4")
        assert (verdict.score, verdict.fault) == (None, Fault.TASK)


def test_tolerances_are_exact_at_their_edge() -> None:
    near = make("verifier", "numeric", tolerance=0.1)
    assert [ask(near, "4", text).score for text in ("4.1", "3.9", "4.1000001", "3.8999")] == [1.0, 1.0, 0.0, 0.0]
    share = make("verifier", "numeric", relative=0.01)
    assert [ask(share, "-200", text).score for text in ("-202", "-198", "-202.1", "200")] == [1.0, 1.0, 0.0, 0.0]
    percent = make("verifier", "numeric", percent=True)
    assert [ask(percent, "0.5", text).score for text in ("50%", "0.5", "50", r"50\%")] == [1.0, 1.0, 0.0, 1.0]


# ---- exact


def test_exact_compares_whole_texts() -> None:
    exact = make("verifier", "exact")
    assert [ask(exact, "ab c", text).score for text in ("ab c", " ab c\n", "abc", "ab  c", "AB C", "ab c.")] == [
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]
    assert ask(exact, "caf\u00e9", "cafe\u0301").score == 1.0  # one letter, two spellings of it in Unicode
    loose = make("verifier", "exact", ignore_case=True, channel="boxed")
    assert [ask(loose, ["Yes", "y"], text).score for text in (r"\boxed{YES}", "yes")] == [1.0, 0.0]
    for reference in (None, 4, "", " ", [], ["", "a"], [1]):
        assert ask(exact, reference, "4").fault is Fault.TASK


# ---- structure


def test_the_format_multiplies_and_never_adds() -> None:
    good, wrong = "<think>x</think><answer>4</answer>", "<think>x</think><answer>5</answer>"
    strict = make("verifier", "structure")
    soft = make("verifier", "structure", soft=0.5)
    assert [ask(strict, "4", text).score for text in (good, wrong, "4", "5")] == [1.0, 0.0, 0.0, 0.0]
    assert [ask(soft, "4", text).score for text in (good, wrong, "4", "5")] == [1.0, 0.0, 0.5, 0.0]
    assert ask(strict, "4", "4").parts.keys() == ask(strict, "4", good).parts.keys() == {"format", "content"}
    assert ask(soft, "4", "4").parts == {"format": 0.5, "content": 1.0}


def test_what_the_inner_verifier_cannot_judge_stays_unjudged() -> None:
    verdict = ask(make("verifier", "structure"), "four", "<think></think><answer>4</answer>")
    assert (verdict.score, verdict.fault) == (None, Fault.TASK)


@pytest.mark.parametrize("text", [
    "<answer>4</answer><think></think>", "<think><answer>4</answer></think>", "<think></think><answer>4</answer>5", "1<think></think><answer>4</answer>",
    "<think></think> so <answer>4</answer>", "<think></think><answer>4", "<think></think><answer>4</answer><answer>4</answer>", "",
    "<think></think><think></think><answer>4</answer>", "</think><answer>4</answer>", "<THINK></THINK><ANSWER>4</ANSWER>",
])  # fmt: skip
def test_a_malformed_answer_is_worth_nothing(text: str) -> None:
    assert ask(make("verifier", "structure"), "4", text).score == 0.0


# ---- composite


class Unable(rlvr.Verifier):
    """Never gives a score."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(None, "the engine sleeps", fault=Fault.INFRA)


def test_weights_are_shares() -> None:
    parts = {"value": {"verifier": "numeric", "weight": 3}, "text": {"verifier": "exact"}}
    both = make("verifier", "composite", parts=parts)
    verdicts = [ask(both, "4", text) for text in ("4", "4.0", "5")]
    assert [verdict.score for verdict in verdicts] == [1.0, 0.75, 0.0]
    assert verdicts[1].parts == {"value": 1.0, "text": 0.0}


def test_an_unscored_part_leaves_the_whole_unscored() -> None:
    both = make("verifier", "composite", parts={"value": {"verifier": "numeric"}, "judge": {"verifier": Unable(), "weight": 0}})
    verdict = ask(both, "4", "4")
    assert (verdict.score, verdict.fault, verdict.reason) == (None, Fault.INFRA, "judge: the engine sleeps")


def test_a_part_that_cannot_be_built_closes_the_others() -> None:
    closed = []

    class Watched(Unable):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ConfigError):
        make("verifier", "composite", parts={"a": {"verifier": Watched()}, "b": {"verifier": "nothing"}})
    assert len(closed) == 1


SENT_TO_THE_SANDBOX = {"_code/driver.py", "_code/judge.py"}
"""Programs of ours whose text runs inside the sandbox, beside the answer: running code is what they are for."""


def test_the_rooms_never_evaluate_text() -> None:
    root = Path(__file__).resolve().parents[2]
    for room in ("envs", "verifiers"):
        for path in (root / room).rglob("*.py"):
            if str(path.relative_to(root / room)) in SENT_TO_THE_SANDBOX:
                continue
            tree = ast.parse(path.read_text("utf-8"))
            imported = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
            imported += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
            called = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
            shells = [n for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg == "shell"]
            forbidden = {"pickle", "marshal", "shelve", *(f"rlvr.verifiers.{name[:-3].replace('/', '.')}" for name in SENT_TO_THE_SANDBOX)}
            assert forbidden.isdisjoint(imported) and {"eval", "exec", "os.system"}.isdisjoint(called) and not shells, path
