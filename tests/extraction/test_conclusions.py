"""Answers that the last lines of a text declare without a box, and last lines that declare nothing."""

from __future__ import annotations

import pytest

from rlvr.extraction import extract_answer

FOUND = [
    ("#### 42\n\nLet me know if you have questions!", "42"),
    ("The answer is 42!", "42"),
    ("The answer is **42**!", "42"),
    ("The answer is $5!$", "$5!$"),
    ("The answer is 42, not 43.", "42"),
    ("The answer is 42, and not 43 apples.", "42"),
    ("The answer is 42. We can check this: 6 * 7 = 42.", "42"),
    ("The answer is 42. To verify: 84 / 2 = 42.", "42"),
    ("We add.\n\n---\n\n**45**", "45"),
    ("| a | 5 |\n\n**Total: 14**", "14"),
    ("We add.\n\n**x = 45**", "x = 45"),
    ("```\n14\n```", "14"),
    ("```text\n14\n```", "14"),
    ("The answer is:\n\n```\n14\n```", "14"),
    ("So Tom has **10 apples** left.", "10 apples"),
    ("We count.\n\nThus there are **42** ways to do so.", "42"),
    ("Therefore, Tom has $10$ apples left.", "$10$"),
    ("Hence, **x = 42**.", "x = 42"),
    ("Each month she pays **$255**.", "$255"),
    ("Gold: **70 coins**", "70 coins"),
    ("She started with **18** vacuum cleaners.", "18"),
    ("The area is $12$ square units.", "$12$ square units"),
    ("We add.\nThus, the number of bags is 12.", "12"),
    ("The ratio of boys to girls is 3:4.", "3:4"),
    ("We add.\nTom has **10** apples.", "10"),
    ("We add.\n\nThe result is **$\\frac{5}{2}$**.", r"$\frac{5}{2}$"),
    ("**Step 1**: the mean.\n\nThe midpoint is **(-1, 6)**.", "(-1, 6)"),
    ("He should multiply.\n\nTotal: **$320**", "$320"),
]

NOT_FOUND = [
    "I considered this.\nI considered **280** and rejected it.",
    "#### 42\n\nWait, that cannot be.",
    "#### 42\n\nIt may be 43.",
    "The answer is 42. We can check this: 6 * 8 = 48.",
    "The answer is 42. We can check 6 * 7 = 48, or 42.",
    "We add.\n\n**41**\n\n**42**",
    "It is not\n\n**45**",
    "Is this right?\n\n**45**",
    "We add.\n\n**Step 1**",
    "We add.\n\n**A lower bound: 4**",
    "```\n1\n2\n```",
    "We add.\nSo Tom has at least **10** apples.",
    "We add.\nSo Tom has **10** or $11$ apples.",
    "We add.\nSo it is wrong that there are **10** apples.",
    "We add.\nSo suppose there are **10** apples.",
    "We add.\nTom has more than **10** apples.",
    "We add.\n1000 **280**",
    "We add.\n(B) **280**",
    "We add.\nTom started with **10** apples.",
    "We add.\nTom does not have **10** apples.",
    "We add.\nThus, the first number is 12.",
    "We add.\nThus, the number is 12 or 13.",
]


@pytest.mark.parametrize(("text", "answer"), FOUND)
def test_a_conclusion_is_found(text: str, answer: str) -> None:
    assert extract_answer(text).text == answer


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_concludes_nothing_is_no_answer(text: str) -> None:
    assert extract_answer(text).text is None
