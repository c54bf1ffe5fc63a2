"""A box that is a part of a formula is no answer; one that is the whole value is."""

from __future__ import annotations

import pytest

from rlvr.extraction import extract_answer
from rlvr.extraction.partial_boxes import FORMULA_AFTER_PATTERNS, FORMULA_BEFORE_PATTERNS


@pytest.mark.parametrize(("pattern", "what", "text"), [*FORMULA_BEFORE_PATTERNS, *FORMULA_AFTER_PATTERNS])
def test_a_part_of_a_formula_is_no_answer(pattern: str, what: str, text: str) -> None:
    assert extract_answer(text).text is None
    assert extract_answer(text).reason == "the box is only a part of a formula"


@pytest.mark.parametrize(
    "text",
    [
        r"$x = \boxed{7}$",
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
