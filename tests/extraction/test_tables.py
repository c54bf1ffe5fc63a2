"""Every row of every table in rlvr.extraction does what its example shows."""

from __future__ import annotations

import re

import pytest

from rlvr.extraction import extract_answer, strip_thinking
from rlvr.extraction.context_words import ALTERNATIVE_PATTERNS, DENIAL_PATTERNS_AFTER, DENIAL_PATTERNS_BEFORE, LATER_RESULT_PATTERNS
from rlvr.extraction.declaration_phrases import DENIAL_PATTERNS, ENDING_PATTERNS, LANGUAGES, LanguagePhrases
from rlvr.extraction.thinking import THINKING_MARKERS, ThinkingMarkers
from rlvr.extraction.trimming import (
    APPROVING_EMOJI,
    INVISIBLE_CHARS,
    SPECIAL_TOKENS,
    strip_trailing_special_tokens,
    strip_whitespace_and_emoji,
)


@pytest.mark.parametrize("row", THINKING_MARKERS, ids=lambda row: row.model_family)
def test_a_thought_is_hidden(row: ThinkingMarkers) -> None:
    assert extract_answer(row.example).text == "8"
    assert re.search("7", strip_thinking(row.example) or "") is None
    boxes = row.example.replace("Is it 7?", r"It is \boxed{7}!").replace("The answer is 8.", r"It is \boxed{8}.")
    assert extract_answer(boxes).text == "8"


@pytest.mark.parametrize("row", THINKING_MARKERS, ids=lambda row: row.model_family)
def test_a_thought_that_never_closes_hides_all(row: ThinkingMarkers) -> None:
    thought = row.example.split("Is it 7?")[0] + r"The answer is \boxed{7}."
    assert extract_answer(thought).text is None


@pytest.mark.parametrize("row", THINKING_MARKERS, ids=lambda row: row.model_family)
def test_a_thought_that_the_prompt_opened_is_hidden(row: ThinkingMarkers) -> None:
    opened = row.example.split("Is it 7?")[0]
    assert extract_answer(r"\boxed{7}" + row.example[len(opened) :]).text == "8"


def test_the_mark_of_another_row_does_not_close_a_thought() -> None:
    assert strip_thinking("<think>7 [/THINK] 7") is None


@pytest.mark.parametrize(("row", "text", "answer"), [(row, *example) for row in LANGUAGES for example in row.examples])
def test_a_phrase_declares_an_answer(row: LanguagePhrases, text: str, answer: str) -> None:
    assert extract_answer(text, "final_line").text == answer
    assert extract_answer("1 + 2 = 3\n\n" + text + "\n").text == answer
    low = text.lower()
    assert any(hint in low for hint in row.hints)


@pytest.mark.parametrize(("pattern", "text"), DENIAL_PATTERNS)
def test_a_line_that_denies_declares_nothing(pattern: str, text: str) -> None:
    assert extract_answer(text, "final_line").text is None


@pytest.mark.parametrize(("name", "pattern", "text"), ENDING_PATTERNS)
def test_an_ending_is_no_part_of_the_value(name: str, pattern: str, text: str) -> None:
    assert extract_answer(text, "final_line").text == "18"


@pytest.mark.parametrize(("pattern", "text"), [*DENIAL_PATTERNS_BEFORE, *DENIAL_PATTERNS_AFTER])
def test_a_box_that_is_denied_does_not_count(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)
    assert extract_answer(text, "boxed").text is None
    assert extract_answer(text + r" So we get \boxed{9}.", "boxed").text == "9"


@pytest.mark.parametrize(("pattern", "text"), ALTERNATIVE_PATTERNS)
def test_a_second_offer_is_refused(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)
    assert extract_answer(text, "boxed").text is None


@pytest.mark.parametrize(("pattern", "text"), LATER_RESULT_PATTERNS)
def test_a_later_result_counts(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)
    assert extract_answer(text, "boxed").text == "8"


@pytest.mark.parametrize(("token", "pattern"), SPECIAL_TOKENS)
def test_a_special_token_at_the_end_is_dropped(token: str, pattern: str) -> None:
    assert re.fullmatch(pattern, token, re.IGNORECASE)
    assert strip_trailing_special_tokens(f"7{token} {token}\n") == "7"
    assert strip_trailing_special_tokens(f"7{token} 8") == f"7{token} 8"


def test_only_the_edges_are_trimmed() -> None:
    assert strip_whitespace_and_emoji(f" {INVISIBLE_CHARS}1{INVISIBLE_CHARS}2{APPROVING_EMOJI}\n") == f"1{INVISIBLE_CHARS}2"
    assert [strip_whitespace_and_emoji(text) for text in ("12 ❌", "12 👎", "90°", "5!")] == ["12 ❌", "12 👎", "90°", "5!"]
