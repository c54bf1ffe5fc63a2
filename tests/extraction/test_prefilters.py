"""Prefilters change the time of an extraction, never its result."""

from __future__ import annotations

import random
import re
from re import _parser as parser  # type: ignore[attr-defined]

import pytest

from rlvr.extraction import context_words, partial_boxes
from rlvr.extraction.declaration_phrases import LANGUAGES, get_declaration_patterns

EXAMPLES = [text for language in LANGUAGES for text, _ in language.examples]
FILLER = [
    "So 3 + 4 = 7.",
    "She has\nthe answers",
    "**",
    "#",
    "not",
    "correct",
    "final\n",
    "because, of the 4 people,",
    "# > *",
    "\n\n",
    "答",
    "7",
]


@pytest.mark.parametrize("seed", range(4))
def test_no_declaration_begins_before_the_position_to_search_from(seed: int) -> None:
    rng, shorter = random.Random(seed), 0
    for _ in range(1500):
        words = [*rng.choices(FILLER, k=rng.randint(0, 60)), rng.choice(EXAMPLES), *rng.choices(FILLER, k=rng.randint(0, 3))]
        text = rng.choice([" ", "\n", " \n"]).join(words)
        pattern, _, start = get_declaration_patterns(text)
        assert [m.span() for m in pattern.finditer(text, start)] == [m.span() for m in pattern.finditer(text)], text
        shorter += start > 0
    assert shorter > 300


def test_a_denial_pattern_of_words_has_no_choice_outside_of_brackets() -> None:
    for pattern, _ in context_words.DENIAL_PATTERNS_BEFORE:
        if pattern.startswith(r"\b"):
            assert str(parser.parse(pattern)[0][0]) == "AT", pattern


@pytest.mark.parametrize(("pattern", "example"), context_words.DENIAL_PATTERNS_BEFORE)
def test_a_denial_is_found_after_another_sentence_and_in_capitals(pattern: str, example: str) -> None:
    before = example[: example.index("\\boxed")]
    assert context_words.is_denied("I have looked at 3.5 of them! Then.\n" + before, "")
    assert context_words.is_denied(before.upper(), "") or "\\" in before
    assert context_words.is_denied(before.replace("s", "ſ"), "")


def test_a_box_after_plain_words_is_not_searched_for_a_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = []
    texts = [
        ("So it is ", "."),
        ("I get 3 ", "."),
        ("The value (", ")"),
        ("We add 2+", "."),
        ("thus ", "$"),
        ("", ""),
        ("x = ", " = 3 + y"),
    ]
    for sign in (partial_boxes._MATH_SIGN, re.compile("")):
        monkeypatch.setattr(partial_boxes, "_MATH_SIGN", sign)
        expected.append([partial_boxes.is_part_of_formula(*pair) for pair in texts])
    assert expected[0] == expected[1]
    assert True in expected[0]
    assert False in expected[0]
