"""A box that is a part of a formula is no answer; one that is the whole value is."""

from __future__ import annotations

import pytest

from rlvr.extraction import extract_answer
from rlvr.extraction.partial_boxes import (
    FORMULA_AFTER_PATTERNS,
    FORMULA_BEFORE_PATTERNS,
    GROUP_PATTERNS,
    MATH_AFTER_PATTERNS,
    MATH_BEFORE_PATTERNS,
)

PATTERNS = [*FORMULA_BEFORE_PATTERNS, *FORMULA_AFTER_PATTERNS, *MATH_BEFORE_PATTERNS, *MATH_AFTER_PATTERNS, *GROUP_PATTERNS]


@pytest.mark.parametrize(("pattern", "what", "text"), PATTERNS)
def test_a_part_of_a_formula_is_no_answer(pattern: str, what: str, text: str) -> None:
    assert extract_answer(text).text is None
    assert extract_answer(text).reason == "the box is only a part of a formula"


@pytest.mark.parametrize(
    "text",
    [
        r"$\frac{6 + \boxed{7}}{2} = 6.5$",
        r"$(\boxed{7} + 1) \cdot 2 = 16$",
        r"$(x, \boxed{7})$",
        r"$(\sqrt{2}, \boxed{7})$",
        r"\left(-\frac12, \boxed{7}\right)",
        r"$\{\boxed{7}, 8\}$",
        r"$\left(\boxed{7}\right)^2$",
        r"$\gcd(\boxed{7}, 8) = 1$",
        r"$\boxed{7}!!$",
        r"\boxed{7} factorial",
    ],
)
def test_a_box_inside_a_group_is_no_answer(text: str) -> None:
    assert extract_answer(text).reason == "the box is only a part of a formula"


@pytest.mark.parametrize(
    "text",
    [
        r"$x = \boxed{7}$",
        r"$(\boxed{7})$",
        r"(The answer is \boxed{7}.)",
        r"$f(3) = \boxed{7}$",
        r"$\mathbf{\boxed{7}}$",
        r"\text{Answer (a): \boxed{7}}",
        r"Hence, (A) $\boxed{7}$",
        r"\boxed{7}, i.e. seven",
        r"The answer is \boxed{7}!",
        r"\color{blue}{\boxed{7}}",
        r"Step 3: \boxed{7}",
        r"with $x=1$, \boxed{7}",
        r"\boxed{7}<br>",
        r"$N \equiv \boxed{7} \pmod{9}$",
        r"> \boxed{7}",
        r"- \boxed{7}",
        r"**\boxed{7}**",
        r"Answer - \boxed{7}",
        r"$$6 + 1=\boxed{7}$$",
        r"$2 \cdot \boxed{7} = 14$",
        r"$S \leq \boxed{7}$",
        r"$\boxed{7}^\circ$",
        r"$\boxed{7}$ cm",
        r"\boxed{7} \text{ apples}",
        r"<b>\boxed{7}</b>",
        r"$\therefore n = \boxed{7}$",
        r"$\sqrt{49} = \boxed{7}$",
        r"| \boxed{7} |",
    ],
)
def test_a_whole_value_is_an_answer(text: str) -> None:
    assert extract_answer(text).text == "7"


def test_a_percent_sign_behind_the_box_belongs_to_the_value() -> None:
    assert extract_answer(r"$\boxed{7}\%$").text == r"7\%"
    assert extract_answer("It depends on whether order counts. With it we get \\boxed{7}. So without it we get \\boxed{8}.").candidates == (
        "7",
        "8",
    )
