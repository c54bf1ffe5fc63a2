"""Prefilters change the time of an extraction, never its result."""

from __future__ import annotations

import random
import re
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

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
    for _ in range(700):
        words = [*rng.choices(FILLER, k=rng.randint(0, 60)), rng.choice(EXAMPLES), *rng.choices(FILLER, k=rng.randint(0, 3))]
        text = rng.choice([" ", "\n", " \n"]).join(words)
        pattern, _, start = get_declaration_patterns(text)
        assert [m.span() for m in pattern.finditer(text, start)] == [m.span() for m in pattern.finditer(text)], text
        shorter += start > 0
    assert shorter > 200


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


def write_match(tree: Any, rng: random.Random) -> str:
    """A random text that a parsed pattern matches: the shortest repetitions and some longer ones."""
    parts = []
    for op, value in tree:
        if str(op) == "LITERAL":
            parts.append(chr(value))
        elif str(op) == "BRANCH":
            parts.append(write_match(rng.choice(value[1]), rng))
        elif str(op) == "SUBPATTERN":
            parts.append(write_match(value[-1], rng))
        elif str(op) in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = value
            parts += [write_match(inner, rng) for _ in range(rng.randint(least, min(int(most), least + 2)))]
        elif str(op) == "IN":
            chosen, what = value[0] if str(value[0][0]) == "NEGATE" else rng.choice(value)
            by_class = {"CATEGORY_SPACE": " ", "CATEGORY_WORD": "x", "CATEGORY_NOT_SPACE": "y"}
            parts.append(" z " if str(chosen) == "NEGATE" else chr(what) if str(chosen) == "LITERAL" else by_class[str(what)])
        elif str(op) != "AT":
            raise AssertionError(op)
    return "".join(parts)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in context_words.DENIAL_PATTERNS_BEFORE])
def test_the_prefilter_passes_whatever_a_denial_pattern_matches(pattern: str) -> None:
    rng, tree, matched = random.Random(pattern), parser.parse(pattern), 0
    for _ in range(200):
        phrase = write_match(tree, rng)
        if not re.search(rf"(?:{pattern})$", phrase):
            continue  # a boundary of a word that the random text does not have
        for text in (phrase, "so it is " + phrase, "x, " + phrase + " that the answer is "):
            if context_words._DENIAL_BEFORE.search(text):
                assert context_words._may_deny(text), text
                matched += 1
    assert matched > 300


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
