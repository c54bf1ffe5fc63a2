"""Every row of every table in rlvr.answers does what its example shows."""

from __future__ import annotations

import re

import pytest

from rlvr.answers import find, visible
from rlvr.answers.around import DENIED_AFTER, DENIED_BEFORE, LEADS, OFFERS
from rlvr.answers.edges import HAPPY, INVISIBLE, SPECIAL_TOKENS, ended, trimmed
from rlvr.answers.phrases import DENIALS, ENDINGS, LANGUAGES, Language
from rlvr.answers.thoughts import THOUGHTS, Thought


@pytest.mark.parametrize("row", THOUGHTS, ids=lambda row: row.who)
def test_a_thought_is_hidden(row: Thought) -> None:
    assert find(row.example).text == "8"
    assert re.search("7", visible(row.example) or "") is None
    boxes = row.example.replace("Is it 7?", r"It is \boxed{7}!").replace("The answer is 8.", r"It is \boxed{8}.")
    assert find(boxes).text == "8"


@pytest.mark.parametrize("row", THOUGHTS, ids=lambda row: row.who)
def test_a_thought_that_never_closes_hides_all(row: Thought) -> None:
    thought = row.example.split("Is it 7?")[0] + r"The answer is \boxed{7}."
    assert find(thought).text is None


@pytest.mark.parametrize("row", THOUGHTS, ids=lambda row: row.who)
def test_a_thought_that_the_prompt_opened_is_hidden(row: Thought) -> None:
    opened = row.example.split("Is it 7?")[0]
    assert find(r"\boxed{7}" + row.example[len(opened) :]).text == "8"


def test_the_mark_of_another_row_does_not_close_a_thought() -> None:
    assert visible("<think>7 [/THINK] 7") is None


@pytest.mark.parametrize(("row", "text", "answer"), [(row, *example) for row in LANGUAGES for example in row.examples])
def test_a_phrase_declares_an_answer(row: Language, text: str, answer: str) -> None:
    assert find(text, "final_line").text == answer
    assert find("1 + 2 = 3\n\n" + text + "\n").text == answer
    low = text.lower()
    assert any(hint in low for hint in row.hints)


@pytest.mark.parametrize(("pattern", "text"), DENIALS)
def test_a_line_that_denies_declares_nothing(pattern: str, text: str) -> None:
    assert find(text, "final_line").text is None


@pytest.mark.parametrize(("name", "pattern", "text"), ENDINGS)
def test_an_ending_is_no_part_of_the_value(name: str, pattern: str, text: str) -> None:
    assert find(text, "final_line").text == "18"


@pytest.mark.parametrize(("pattern", "text"), [*DENIED_BEFORE, *DENIED_AFTER])
def test_a_box_that_is_denied_does_not_count(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)
    assert find(text, "boxed").text is None
    assert find(text + r" So we get \boxed{9}.", "boxed").text == "9"


@pytest.mark.parametrize(("pattern", "text"), OFFERS)
def test_a_second_offer_is_refused(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)
    assert find(text, "boxed").text is None


@pytest.mark.parametrize(("pattern", "text"), LEADS)
def test_a_later_result_counts(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)
    assert find(text, "boxed").text == "8"


@pytest.mark.parametrize(("token", "pattern"), SPECIAL_TOKENS)
def test_a_special_token_at_the_end_is_dropped(token: str, pattern: str) -> None:
    assert re.fullmatch(pattern, token, re.IGNORECASE)
    assert ended(f"7{token} {token}\n") == "7"
    assert ended(f"7{token} 8") == f"7{token} 8"


def test_only_the_edges_are_trimmed() -> None:
    assert trimmed(f" {INVISIBLE}1{INVISIBLE}2{HAPPY}\n") == f"1{INVISIBLE}2"
    assert [trimmed(text) for text in ("12 ❌", "12 👎", "90°", "5!")] == ["12 ❌", "12 👎", "90°", "5!"]
