# ruff: noqa: E501  (many answers stand in one line each)
"""The `countdown` verifier: honest ways to write an expression are read, and nothing but a solution is paid."""

from __future__ import annotations

import random
import re
import time
from fractions import Fraction
from typing import Any

import pytest

from rlvr import make_verifier
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers.countdown import NOTATION_RULES, evaluate_expression, normalize_expression

FOURTEEN = {"numbers": [2, 3, 4], "target": 14}
THREE = {"numbers": [1, 6, 8], "target": 3}


def ask(verifier: Any, reference: Any, text: str) -> Verdict:
    verdict: Verdict = verifier.verify(Task(make_user_prompt("?"), reference, id="t"), text)
    return verdict


def test_expressions_are_computed_exactly() -> None:
    dice = random.Random(0)
    for _ in range(300):
        text = str(dice.randint(0, 9))
        for _ in range(dice.randint(0, 6)):
            text = f"({text})" if dice.random() < 0.3 else text
            text = f"{text}{dice.choice('+-*/')}{dice.randint(0, 9)}"
        try:
            value: Fraction | None = evaluate_expression(text)[0]
        except ValueError:
            value = None
        try:
            expected = eval(text, {"__builtins__": {}}, {})  # this test's own digits and signs
        except ZeroDivisionError:
            assert value is None
        else:
            assert value is not None and float(value) == pytest.approx(expected)


@pytest.mark.parametrize("text", [
    "", "+", "1+", "(1", "1)", "()", "1 2", "1**2", "1//2", "1+-2", "a+1", "__import__('os')", "1;2", "1e3", "0.5", "1,2", "((((" * 20 + "1",
    "1/0", "1/(2-2)", "\u0661+1", "1+1" * 200,
])  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it |its |missing|bracket|allowed|unexpected"):
        evaluate_expression(text)


def test_every_number_counts_once() -> None:
    verifier = make_verifier("countdown")
    reference = {"numbers": [2, 2, 3], "target": 12}
    answers = {
        "2*2*3": 1.0,
        "3*2*2": 1.0,
        "2*3*2=12": 1.0,
        "2*6": 0.0,
        "2*2*3*1": 0.0,
        "2*3": 0.0,
        "3*3+3": 0.0,
        "12": 0.0,
        "2*2*3=13": 0.0,
    }
    assert {text: ask(verifier, reference, text).score for text in answers} == answers
    assert ask(verifier, {"numbers": [2, 3, 50], "target": 6}, "2*3").score == 0.0
    some = make_verifier("countdown", use_all=False)
    assert ask(some, {"numbers": [2, 3, 50], "target": 6}, "2*3").score == 1.0
    for broken in (None, {}, {"numbers": [], "target": 1}, {"numbers": [1], "target": "1"}, {"numbers": [1.5], "target": 1}, [1, 2]):
        assert ask(verifier, broken, "1").fault is Fault.TASK


@pytest.mark.parametrize("row", NOTATION_RULES, ids=[row[2] for row in NOTATION_RULES])
def test_each_other_writing_is_read(row: tuple[str, str, str, str]) -> None:
    verifier = make_verifier("countdown")
    example = row[3]
    right = {"numbers": [int(digits) for digits in re.findall(r"\d+", re.split("[=＝]", example)[0])], "target": 14}
    assert ask(verifier, right, example).score == 1.0, normalize_expression(example)
    assert ask(verifier, right, rf"\boxed{{{example}}}").score == 1.0
    wrong = {**right, "target": 15}
    assert ask(verifier, wrong, example).score == ask(verifier, wrong, rf"\boxed{{{example}}}").score == 0.0


@pytest.mark.parametrize("text", [
    r"\boxed{(3+4)\times 2}", r"\boxed{(3+4)\cdot 2}", "2+3·4", "2+3×4", r"\[2+3\times4=14\]", "\\[\n2+3\\times4=14\n\\]", "14=2+3*4", "2+3*4=2+12=14",
    "14 = 2 + 3*4 = 2 + 12", "(3+4)*2 = 7*2 = 14", "**2+3*4**", "`2+3*4`", "**`2+3*4`**", "*2+3*4*", "***2+3*4***", "**2+3*4**.", "**2+3*4 = 14.**",
    "The expression is 2+3*4", "The expression is 2+3*4.", "So, the final expression is: **2+3*4**.", "One possible solution is $2+3\\cdot4$.",
    "The answer is `2+3*4`.", r"The answer is $2 + 3 \times 4 = 14$.", "<answer>**2 + 3 × 4**</answer>", "<answer>2+3*4=14</answer>", "#### 2+3*4=14",
    "(3 + 4) x 2", "2 X (3+4)", "2(3+4)", "(3+4)2", "[3+4]*2", "2[3+4]", "2 &times; (3+4)", "2 ＋ 3 ＊ 4", "```\n2+3*4\n```",
    "2 times 3 is 6.\n2 + 12 is 14.\n\nThe expression is 2+3*4.", "Let me see.\n**The expression is 2+3*4**", r"$$\left(3+4\right)\times 2$$",
    r"\boxed{\frac{4*3*2+4}{2}}", "2+3*4" + " " * 500,
])  # fmt: skip
def test_honest_writings(text: str) -> None:
    reference = {"numbers": [2, 2, 3, 4, 4], "target": 14} if "frac" in text else FOURTEEN
    assert ask(make_verifier("countdown"), reference, text).score == 1.0, normalize_expression(text)


@pytest.mark.parametrize("text", [
    # the chain must be true, and its first side must be the solution
    "2+3*4=2+13=14", "2+3*4=14=15", "2+3*4=2+12=13", "2*7=2+3*4", "2+12=14", "14=2+12=2+3*4", "14=14", "14=14=2+3*4", "14", "=14", "14=", "2+3*4=",
    "=2+3*4", "2+3*4==14", "2+3*4!=14", "2+3*4<=14", r"2+3*4\neq14", r"2+3*4\ne 14", "2+3*4≠14", "2+3*4≈14", "2+3*4=14=14=14=14=14=14=14=14",
    "2*3+4=14", "2*3*4=14", "15-1=2+3*4", "2+3*4=14.0", "2+3*4=014",
    # several answers
    "2+3*4 or (3+4)*2", "2+3*4, (3+4)*2", "2+3*4; 2*3+4", "2+3*4\n(3+4)*2", r"\boxed{2+3*4} \boxed{2*3+4}", "The expression is 2*3+4.\nThe expression is 2+3*4.",
    "The expression is 2+3*4.\nThe expression is 2*3+4.", "The expression is not 2+3*4", "The expression is 2+3*4, not 2*3+4", "The expression is 2+3*4?",
    "2*3+4\nThe expression is 2+3*4\nor so", "<answer>1</answer> The expression is 2+3*4", "\\boxed{1}\nThe expression is 2+3*4", "<think>The expression is 2+3*4",
    # other numbers, or the same ones by other means
    "02+3*4", "2+03*4", "2+3*4*1", "2+3*4+0", "2+3*4-0", "2+3*4/1", "2e0+3*4", "2.0+3*4", "0x2+3*4", "2_0+3*4", "٢+3*4", "²+3*4", "2+3⁎4", "２+3*4",
    r"2\,3-9", "2$3-9", "2`3-9", "2~3-9", r"2\quad3-9", "2 3-9", r"2\(3-9", r"2\left(3*4\right", r"{2}+3*4", r"\frac23+4", r"2\frac{3}{4}", r"\frac{2+3*4}", r"\frac{28}{2}",
    r"\frac{2+3*4}{}", r"\frac{2+3*4}{1}", r"2\times\times3+4", r"2\timesx3", r"\timestwo", "2+3*4!", "2+3*4%", "--2+3*4", "(2+3*4", "2+3*4)", "()2+3*4",
    "2**3+4", "**2**3+4**", "2//3", "sum([2,3,4])", "__import__('os').system('true')", "lambda: 14", "2+3*4#", "2+3*4 # 14", "#2+3*4", "'2+3*4'", '"2+3*4"',
    r"\text{2+3*4}", r"\phantom{2+3*4}", r"\boxed{\phantom{9}2+3*4}", "2+3*4\u200b5", "2+3*4\x005", "(" * 60 + "2" + ")" * 60 + "+3*4",
    "*" * 300 + "2+3*4", "`" * 399, "**" * 100 + "1" + "**" * 99,
])  # fmt: skip
def test_nothing_but_a_solution_is_paid(text: str) -> None:
    verdict = ask(make_verifier("countdown"), FOURTEEN, text)
    assert verdict.score == 0.0, (normalize_expression(text), verdict)


def test_a_negative_target_may_be_named() -> None:
    verifier = make_verifier("countdown")
    reference = {"numbers": [2, 7], "target": -5}
    assert [ask(verifier, reference, text).score for text in ("2-7", "2-7=-5", "-5=2-7", "-5", "-5=-5", "2-7=5", "7-2")] == [
        1,
        1,
        1,
        0,
        0,
        0,
        0,
    ]


def test_the_last_numbers_case() -> None:
    verifier = make_verifier("countdown")
    for text in ("**8+1-6**", "`8+1-6`", "The expression is 8+1-6", "8+1-6", "3 = 8+1-6", "8+1-6=9-6=3"):
        assert ask(verifier, THREE, text).score == 1.0, text


def test_signs_between_random_numbers_are_never_joined() -> None:
    """Whatever is put between two numbers: either it is an operation that is computed, or nothing is paid."""
    verifier, dice = make_verifier("countdown"), random.Random(1)
    between = [
        "",
        " ",
        "\\,",
        "$",
        "`",
        "~",
        "\\quad",
        "{}",
        "_",
        "*",
        "\\times ",
        "·",
        "+",
        "-",
        "\\cdot ",
        "()",
        ".",
        ",",
        "\n",
        "\\(",
        "\\]",
        "**",
        "=",
    ]
    for _ in range(2000):
        a, b, sign = dice.randint(1, 9), dice.randint(1, 9), "".join(dice.choices(between, k=dice.randint(1, 2)))
        text = f"{a}{sign}{b}"
        reference = {"numbers": [a, b], "target": dice.choice([int(f"{a}{b}"), a, b, 10 * a, 100 * a + b])}
        paid = ask(verifier, reference, text).score
        values = {a * b if set(sign) & set("*·ti") else None, a + b if "+" in sign else None, a - b if "-" in sign else None}
        assert paid == 0.0 or reference["target"] in values, (text, reference)


def test_long_answers_cost_little() -> None:
    verifier = make_verifier("countdown")

    def used(count: int) -> float:
        began = time.process_time()
        for piece in ("the ", "**", "=", "The expression is ", "\\frac{", "(", "\n", "so the "):
            ask(verifier, FOURTEEN, piece * count)
        return time.process_time() - began

    assert used(16_000) < 24 * max(used(2_000), 5e-3)


def test_a_negative_number_in_the_reference_is_a_fault_of_the_task() -> None:
    reference = {"numbers": [5, -3], "target": 2}
    for answer in ("5-3", "5+(-3)", "2"):
        verdict = ask(make_verifier("countdown"), reference, answer)
        assert verdict.score is None and verdict.fault is Fault.TASK and "-3" in verdict.reason
    assert ask(make_verifier("countdown", use_all=False), {"numbers": [5, -3, 3], "target": 2}, "5-3").score == 1.0
