"""Answers that are read in the words of their question: named values, formulas of the question, formulas that hide an undone one."""

from __future__ import annotations

import pytest

import rlvr

PAIR = (r"Enter the ordered pair $(m,b)$.", r"\left( \frac{3}{2}, -13 \right)")
EXPAND = (r"Expand: \begin{align*} x\left(x(1+x)+2x\right)-3(x^2-x+2)\end{align*}", "x^3+3x-6")
PLAIN = ("Expand and simplify (x+1)(x+2)-2x", "x^2+x+2")
SIMPLIFY = (r"Simplify $\frac{4+6a}{5}-\frac{1+3a}{4}$.", r"\frac{11+9a}{20}")
MATRIX = (r"Find $\mathbf{A}^{27}+\mathbf{A}^{31}$.", r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}")


@pytest.mark.parametrize(
    ("question", "reference", "answer", "score"),
    [
        ("How many cars are there?", "3", "#### 3 red cars", 1),
        ("How many cars are there?", "3", "#### 2 red cars", 0),
        ("How many cars are there?", "1", "#### 1 hot dog", 1),
        ("How many cars are there?", "3", "#### 3 or two cars", 0),
        ("How many cars are there?", "3", "#### 3 is not it", 0),
        ("How many cars are there?", "10", "#### **10** cars", 1),
        ("How many cars are there?", "10", "Answer: **10** cars", 1),
        ("How many cars are there?", "10", "Answer: **10** or 11 cars", 0),
        ("How many cars are there?", "10", "Answer: **10** is wrong", 0),
        ("How many cars are there?", "8", "#### 2**3 cars", 0),
        ("How much does he earn?", "14400", "#### $14,400 a year", 1),
        ("How far does he run?", "5", "#### 5 miles a day", 1),
        ("How much more does it cost?", "2", "#### $2 more", 1),
        ("How much less does it cost?", "2", "#### $2 more", 0),
        ("How much does it cost?", "2", "#### $2 more", 0),
        ("Express the product in base 8.", "52_8", "The answer is $52$ (base $8$).", 1),
        ("Express the product in base 8.", "52_8", "The answer is $52$ in base eight.", 1),
        ("Express the product in base 8.", "52_8", "The answer is $52$ in base nine.", 0),
        ("Find the remainder.", "-13x+3", "The remainder is $r(x)=-13x+3$.", 1),
    ],
)
def test_words_around_a_value(question: str, reference: str, answer: str, score: float) -> None:
    verdict = rlvr.verify("symbolic", answer=answer, reference=reference, prompt=question)
    assert verdict.score == score, verdict.reason


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("(C)", 1),
        ("(C) Plane", 1),
        (r"\text{(C)}", 1),
        (r"\textbf{(C)}\ \text{plane}", 1),
        (r"\text{(C) Sphere}", 0),
        (r"\textbf{(C)}\ \text{Sphere}", 0),
        ("C. Sphere", 0),
        ("C: Line", 0),
    ],
)
def test_a_choice_with_the_words_of_another_option_is_wrong(answer: str, score: float) -> None:
    question = "Find the shape. (A) Line\n(B) Circle\n(C) Plane\n(D) Sphere\n\nEnter the letter of the correct option."
    verdict = rlvr.verify("symbolic", answer=rf"\boxed{{{answer}}}", reference=r"\text{(C)}", prompt=question)
    assert verdict.score == score, verdict.reason


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (PAIR, "m=3/2, b=-13"),
        (PAIR, "b=-13, m=3/2"),
        (PAIR, r"b = -13 \text{ and } m = \frac32"),
        (PAIR, "(b,m)=(-13,3/2)"),
        (("?", PAIR[1]), "m=3/2, b=-13"),  # nothing says the order: as written
        (("?", "(1, 2)"), "y=2, x=1"),
        (EXPAND, "3x-6+x^3"),
        (PLAIN, "2 + x + x^2"),
        (SIMPLIFY, r"\frac{9a+11}{20}"),
        ((r"Compute $6_8 \cdot 7_8$.", "52_8"), r"6_8 \cdot 7_8 = 52_8"),
        (("Write 999 in base 6.", "4343_6"), "999_{10} = 4343_6"),
        ((r"What is $x^3 - 2x + 1$?", "2"), "x^3 - 2x + 1 = 2"),
        ((r"What is $5 \star 1$?", "47"), r"5 \star 1 = 47"),
        ((r"Compute $1^{(2^{235423523})}$.", "1"), "1^{(2^{235423523})} = 1"),
        (MATRIX, r"\mathbf{A}^{27} + \mathbf{A}^{31} = \begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}"),
        (MATRIX, "-I"),
        (MATRIX, r"-\mathbf{I}"),
        (MATRIX, "-I_2"),
        (("?", r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}"), "I_2"),
        (("The point $(x,y)$ is on both lines.", "y=2, x=1"), "y=2, x=1"),
        (("Find $(m,b)$.", "(b,m)=(2,1)"), "(b,m)=(2,1)"),
        (("Numbers $(a,b)$ with $a<b$.", r"\{1,2\}"), "a=1, b=2"),
        (("Roots $(r,s)$, in increasing order.", "2,5"), "r=5, s=2"),
        (("?", "0.15"), "0{.}15"),
        (("?", "1260"), "{1,260}"),
        (("?", r"\text{Navin}"), r"{\textbf{Navin}}"),
    ],
)
def test_a_right_answer_in_the_words_of_its_question_is_right(question: tuple[str, str], answer: str) -> None:
    assert rlvr.verify("symbolic", answer=rf"\boxed{{{answer}}}", reference=question[1], prompt=question[0]).score == 1


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (PAIR, "m=-13, b=3/2"),
        (PAIR, "b=3/2, m=-13"),
        (PAIR, "(b,m)=(3/2,-13)"),
        (("?", PAIR[1]), "m=-13, b=3/2"),
        (("?", "(1, 2)"), "y=1, x=2"),
        (EXPAND, r"\left(x\left(x(1+x)+2x\right)-3(x^2-x+2)\right)"),
        (PLAIN, "((x+1)(x+2)-2x)"),
        (PLAIN, r"\frac{(x+1)(x+2)-2x}{3}\cdot 3"),
        (SIMPLIFY, r"\det\begin{pmatrix} \frac{4+6a}{5}-\frac{1+3a}{4} \end{pmatrix}"),
        (SIMPLIFY, r"\begin{vmatrix} \frac{4+6a}{5}-\frac{1+3a}{4} & 0 \\ 0 & 1 \end{vmatrix}"),
        (("?", "1"), r"1 \text{ and } 1 + 0"),
        ((r"Compute $6_8 \cdot 7_8$.", "52_8"), r"6_8 \cdot 7_8 = 53_8"),
        ((r"What is $x^3 - 2x + 1$?", "2"), "x^3 - 2x + 1 = 3"),
        ((r"If $x^2 = 4$ and $x > 0$, what is $x$?", "4"), "x^2 = 4"),
        (MATRIX, "-2I"),
        (MATRIX, "-I_3"),
        (("If $2x+3$ is equal to $7$, find $x$.", "2"), "2x+3 = 2"),
        (("If $x^2$ is 16, find the positive $x$.", "4"), "x^2 = 4"),
        ((r"Compute $12 \cdot 3$ and report $12 \cdot 3 + 1$.", "37"), r"12 \cdot 3 = 37"),
        ((r"Reduce $\frac{21}{28}$; what is the numerator?", "3"), r"\frac{21}{28} = 3"),
        (("Compute $5+7$, then double it.", "24"), "5+7 = 24"),
    ],
)
def test_a_wrong_or_undone_one_is_not(question: tuple[str, str], answer: str) -> None:
    assert rlvr.verify("symbolic", answer=rf"\boxed{{{answer}}}", reference=question[1], prompt=question[0]).score == 0
