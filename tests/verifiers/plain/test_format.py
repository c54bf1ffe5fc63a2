"""The form of an answer: tags, pattern, length and language, each by itself, and texts that try to look well-formed."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr import Task, make_user_prompt, make_verifier
from rlvr.errors import ConfigError

TASK = Task(make_user_prompt("2+2="), None, id="t")
ENGLISH = "First we add the two numbers that are given in the question, and so the sum of three and four is $7$."
GERMAN = "Zuerst addieren wir die beiden Zahlen, die in der Aufgabe stehen, und das ist dann nicht mehr als $7$."
CHINESE = "首先我们把两个数相加，所以答案是 $7$。"


def score(text: str, **settings: Any) -> float | None:
    with make_verifier("format", **settings) as verifier:
        return float(verifier.verify(TASK, text).score)


@pytest.mark.parametrize(("text", "expected"), [
    ("<think>a</think><answer>b</answer>", 1), ("\n<think>\na\n</think>\n\n<answer>b</answer>\n", 1), ("", 0), ("b", 0),
    ("<think>a</think>", 0), ("<think>a</think><answer>b", 0), ("<answer>b</answer><think>a</think>", 0),
    ("<think> </think><answer>b</answer>", 0), ("<think>a</think><answer>\n</answer>", 0), ("x<think>a</think><answer>b</answer>", 0),
    ("<think>a</think>x<answer>b</answer>", 0), ("<think>a<think>a</think></think><answer>b</answer>", 0),
    ("<think>a</think><answer>b</answer><answer>b</answer>", 0), ("<think>a</answer><answer>b</think>", 0),
    ("<THINK>a</THINK><answer>b</answer>", 0), ("```<think>a</think><answer>b</answer>```", 0),
    ("&lt;think>a</think><answer>b</answer>", 0), ("<think>a</think ><answer>b</answer>", 0),
])  # fmt: skip
def test_tags_are_all_there_in_order_and_not_empty(text: str, expected: float) -> None:
    assert score(text) == expected


def test_a_pattern_is_matched_by_the_whole_answer() -> None:
    pattern = r"Reason: .+\nAnswer: [0-9]+"
    assert score("Reason: a\nb\nAnswer: 7", pattern=pattern) == 1
    tags = r"<think>.+</think>\s*<answer>\d+</answer>"
    assert score("<think>a</think> <answer>7</answer>", pattern=tags) == 1 and score("<answer>7</answer>", pattern=tags) == 0
    assert score("Answer: 7 " + " " * 20_000, pattern="Answer: 7 *") == 0, "a text that long is compared with nothing"
    assert score("Reason: a\nAnswer: 7 or 8", pattern=pattern) == score("Answer: 7", pattern=pattern) == 0


def test_a_pattern_that_never_ends_is_stopped() -> None:
    with make_verifier("format", pattern="(a|aa)+b") as verifier:
        assert verifier.verify(TASK, "a" * 5000).score == 0 and verifier.verify(TASK, "aab").score == 1
    assert score("word " * 40 + "?" * 3, pattern=r"(\w+\s?)+!") == 0


@pytest.mark.parametrize("blank", ["\u200b", "\u3164", "\u2800", "\x00", "\xad", "\u0301", "\u2060\ufeff"])
def test_what_cannot_be_seen_fills_no_section_and_is_no_word(blank: str) -> None:
    assert score(f"<think>{blank}</think><answer>b</answer>") == score(f"{blank} {blank} {blank}", min_words=3) == 0
    assert score(blank, max_words=3) == 0


def test_words_are_separated_by_what_looks_like_a_space_too() -> None:
    assert score("a\u2800b\u200bc\u3164d", max_words=3) == 0
    assert score("- - -", min_words=3) == 0 and score("two & three", min_words=2, max_words=3) == 1


def test_length_counts_words() -> None:
    assert [score("one two three", min_words=least, max_words=most) for least, most in ((1, 3), (4, None), (0, 2))] == [1, 0, 0]


@pytest.mark.parametrize(("text", "language", "expected"), [
    (ENGLISH, "en", 1), (ENGLISH, "de", 0), (GERMAN, "de", 1), (GERMAN, "en", 0), (CHINESE, "zh", 1), (CHINESE, "en", 0),
    (ENGLISH, "zh", 0), (ENGLISH + CHINESE * 3, "en", 0), ("Сначала сложим числа: `x = 3`.", "ru", 1), ("まず数を足します。", "ja", 1),
    (CHINESE, "ja", 0), ("$x^2 + 1$ 42", "zh", 1), ("def f(x): return x", "en", 1),
])  # fmt: skip
def test_the_language_is_told_by_script_and_frequent_words(text: str, language: str, expected: float) -> None:
    assert score(text, language=language) == expected


def test_partial_gives_the_share_of_the_requirements() -> None:
    verdict = make_verifier("format", tags=["answer"], max_words=3, partial=True).verify(TASK, "one two three")
    assert (verdict.score, dict(verdict.components)) == (0.5, {"tags": 0.0, "length": 1.0})
    assert score("one two three", tags=["answer"], max_words=3) == 0
    assert score(" ", max_words=3, partial=True) == 0, "an empty answer has no form"


@pytest.mark.parametrize(("settings", "words"), [
    ({"tags": "think"}, "tags is 'think'"), ({"tags": ["a b"]}, "list of tag names"), ({"pattern": "("}, "is not a regular expression"),
    ({"pattern": ".*"}, "accepts an empty answer"),
    ({"min_words": 5, "max_words": 3}, "no answer could have the right length"), ({"max_words": -1}, "max_words is -1"),
    ({"language": "english"}, "language is 'english'"),
])  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_verifier("format", **settings)
