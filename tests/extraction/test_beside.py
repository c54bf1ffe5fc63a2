"""What is said around a declaration and after it: what takes it back, and what leaves it."""

from __future__ import annotations

import pytest

from rlvr.extraction import extract_answer
from rlvr.extraction.retractions import CONTRAST_PATTERNS, LATER_DENIAL_PATTERNS, LATER_RESULT_PATTERNS, RETRACTION_PATTERNS

DECLARATIONS = [r"So we get \boxed{42}.", "<answer>42</answer>", "The answer is 42."]


@pytest.mark.parametrize("head", DECLARATIONS)
@pytest.mark.parametrize(("pattern", "text"), [*RETRACTION_PATTERNS, *CONTRAST_PATTERNS, *LATER_DENIAL_PATTERNS, *LATER_RESULT_PATTERNS])
def test_an_answer_that_is_taken_back_does_not_count(head: str, pattern: str, text: str) -> None:
    assert extract_answer(f"{head}\n\n{text}").text is None


@pytest.mark.parametrize("head", DECLARATIONS)
@pytest.mark.parametrize(
    "text",
    [
        "However, note that 43 would be the answer if zero were counted.",
        "However, if order mattered, we get 84.",
        "This makes sense, since 6 and 7 are factors.",
        "The sum of its digits is 6.",
        "I hope this helps!",
    ],
)
def test_a_remark_leaves_the_answer(head: str, text: str) -> None:
    assert extract_answer(f"{head}\n\n{text}").text == "42"


@pytest.mark.parametrize("head", DECLARATIONS[:2])
@pytest.mark.parametrize("text", ["Wait, let me check that again: 6 * 7 = 42. Yes.", "Wait, did I make a mistake? No, 6 * 7 = 42."])
def test_a_doubt_that_comes_back_to_the_answer_leaves_it(head: str, text: str) -> None:
    assert extract_answer(f"{head}\n\n{text}").text == "42"


@pytest.mark.parametrize("head", DECLARATIONS[:2])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Answer: 43", "43"),
        ("**Answer:** 43", "43"),
        ("#### 43", "43"),
        ("答案：43", "43"),
        ("La respuesta es 43.", "43"),
        ("The final answer is $\\frac13$.", "$\\frac13$"),
        ("The answer is C.", "C"),
    ],
)
def test_another_answer_after_the_first_is_named(head: str, text: str, value: str) -> None:
    assert extract_answer(f"{head}\n\n{text}").candidates == ("42", value)


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 42 apples.",
        "Answer: 42",
        "#### 42",
        "#### Explanation",
        "The answer is in its simplest form.",
        "If zero counted, the answer would be 43.",
        "### Answer\n\n1. First we add.",
        "The answer is not 43.",
        "So the answer is 6 * 7 = 42.",
    ],
)
def test_the_same_answer_again_or_words_about_it_change_nothing(text: str) -> None:
    assert extract_answer("\\boxed{42}\n\n" + text).text == "42"


OFFERED = [
    (r"La respuesta es \boxed{42} o 43.", ("42", "43")),
    (r"Ответ: \boxed{42} или 43.", ("42", "43")),
    (r"答えは \boxed{42} または 43 です。", ("42", "43")),
    (r"\boxed{\frac12} or $\frac13$.", (r"\frac12", r"\frac13")),
    (r"The answer is \boxed{B} or C.", ("B", "C")),
    (r"\boxed{\text{yes}} or no.", (r"\text{yes}", "no")),
    (r"$\boxed{x+1}$ or $x+2$.", ("x+1", "x+2")),
    (r"The answer is 41 or \boxed{42}.", ("42", "41")),
    (r"It is either 41, or possibly $\boxed{42}$.", ("42", "41")),
    ("<answer>42</answer> or 43", ("42", "43")),
    (r"<answer>41</answer> or \boxed{<answer>42</answer>}", ("41", "42")),
    (r"\boxed{<answer>42</answer>} or <answer>41</answer>", ("42", "41")),
    (r"<answer>42</answer> or <answer>41</answer>, \boxed{42}", ("42", "41")),
    (r"\boxed{42}, or maybe <answer>41", ("42", "41")),
    ("41 or <answer>42</answer>", ("42", "41")),
]


@pytest.mark.parametrize(("text", "several"), OFFERED)
def test_a_value_offered_beside_the_answer_is_named(text: str, several: tuple[str, ...]) -> None:
    assert extract_answer(text).candidates == several


@pytest.mark.parametrize(
    "text", ["The answer is not <answer>42</answer>.", "<answer>42</answer> is wrong.", r"not <answer>\boxed{42}</answer>"]
)
def test_a_tag_that_is_denied_does_not_count(text: str) -> None:
    assert extract_answer(text).text is None


@pytest.mark.parametrize(
    "text",
    [
        "It is wrong that the answer is 42.",
        "I doubt that the answer is 42.",
        "Suppose the answer is 42.",
        "Some say the answer is 42.",
        "I don't think the answer is 42.",
    ],
)
def test_a_phrase_that_is_denied_does_not_count(text: str) -> None:
    assert extract_answer(text).text is None or extract_answer(text).reason == "the whole text"
    assert extract_answer(text, "final_line").text is None
    assert extract_answer(text + "\nThe answer is 43.", "final_line").text == "43"


def test_two_values_in_two_rows_are_no_answer() -> None:
    assert extract_answer("Answer:\n42\n43").candidates == ("42", "43")
    assert extract_answer("Answer:\n42\n\n42").text == "42"


@pytest.mark.parametrize(
    "text",
    [
        "~~42~~",
        "The answer is ~~42~~.",
        "#### ~~42~~",
        r"\boxed{~~42~~}",
        "<answer><s>42</s></answer>",
        "<answer><del>42</del></answer>",
        "<strike>42</strike>",
        "% \\boxed{42}\n43",
        "First this.\n  % The answer is \\boxed{42}",
        r"It was <del>\boxed{42}</del>",
        r"It was <s>\boxed{42}</s> 43",
        r"\boxed{42} Just kidding.",
        r"\boxed{42}. Wrong!",
    ],
)
def test_what_is_struck_through_or_in_a_comment_is_no_answer(text: str) -> None:
    assert extract_answer(text).text is None


@pytest.mark.parametrize(
    "text",
    [
        r"<s>\boxed{42}</s>",
        r"\boxed{~42~}",
        "\\boxed{42}\n% a comment",
        r"50% of 84 is \boxed{42}",
        r"\boxed{42} False hopes are gone.",
        r"\boxed{42}. No wrong turns.",
    ],
)
def test_what_only_looks_struck_through_or_commented_is_an_answer(text: str) -> None:
    assert (extract_answer(text).text or "").strip("~") == "42"
