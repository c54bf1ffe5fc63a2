"""Time grows with the length of a text and no faster, whatever it repeats."""

from __future__ import annotations

import re
import time

import pytest

from rlvr.extraction import EXTRACTORS, answer_lines, extract_answer
from rlvr.extraction.context_words import is_denied
from rlvr.extraction.declaration_phrases import LANGUAGES
from rlvr.extraction.extraction import MAX_DECLARATIONS

PIECES = [
    *("$", "\\boxed{", "{", "}", "<answer>", "</think>", "<think>", "the answer is ", "#### 1\n", "```\n", "\\boxed{1}", "\\"),
    *(
        "[THINK]",
        "◁think▷ ",
        "<|channel|>analysis",
        "assistantfinal",
        "<seed:think>",
        "<x",
        "think",
        "<|im_end|>",
        "<|im_end|> \u200b",
        "\u200b",
    ),
    *("**Answer**\n", "# ", "* ", "\n\n", "answer\n", "the answer to the ", "answer to ", "correct ", "final ", "ans ", "I answer 7 "),
    *(
        "答案是",
        "故选",
        "答",
        "答えは18ではない",
        "정답은",
        "respuesta ",
        "Ответ — ",
        "الجواب ",
        "the the ",
        "is ",
        "Therefore, ",
        "Therefore, the sum is $7$. ",
    ),
    *(
        "\\boxed{1} so then we have ",
        "\\boxed{1}. So ",
        "\\boxed{1} or ",
        "\\boxed{} ",
        "\\boxed{\\phantom{",
        "\\phantom{}",
        "wrong to answer \\boxed{7} ",
    ),
    *(
        "not ",
        "or ",
        ". ",
        "word ",
        "word. ",
        "Someone may might say ",
        "Answer: 7\n",
        "Answer: 7. ",
        "as wanted",
        "7 or 8 ",
        "\\( ",
        "\\boxed{7}. Wait, ",
        "however, we get ",
        ", but ",
        "the result is 7. ",
        "**7**\n\n",
        "So Tom has **7** ",
        "#### 7\n\nbye ",
        "depends on ",
        "<answer>7</answer> or ",
        "The answer is 7!",
        "**7** ",
        "_",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_every_scanner_is_linear(piece: str) -> None:
    def cost(channel: str, count: int) -> float:
        text = piece * count
        best = 9e9
        for _ in range(3):
            start = time.process_time()
            extract_answer(text, channel)
            best = min(best, time.process_time() - start)
        return best

    slow = [channel for channel in EXTRACTORS if cost(channel, 6_000) > 30 * cost(channel, 600) + 0.02]
    assert slow == []


@pytest.mark.parametrize("head", ["The answer is \\boxed{7}", "Answer: 7", "Therefore, the sum is $7$"])
@pytest.mark.parametrize("fill", [" ", "\n", "x", "$", "**", "the ", "or "])
def test_a_long_fill_before_or_after_a_declaration_is_read_in_one_go(head: str, fill: str) -> None:
    def cost(count: int) -> float:
        best = 9e9
        for _ in range(3):
            start = time.process_time()
            for text in (head + fill * count, fill * count + head, head + fill * count + head):
                extract_answer(text)
            best = min(best, time.process_time() - start)
        return best

    assert cost(40_000) < 24 * cost(5_000) + 0.02  # eight times as long


def test_a_long_row_of_empty_lines_is_read_in_one_go() -> None:
    def cost(lines: int) -> float:
        began = time.process_time()
        assert extract_answer("\n" * lines + "x", "final_line").text is None
        return max(time.process_time() - began, 1e-3)

    assert cost(40_000) < 24 * min(cost(5_000) for _ in range(3))  # eight times as long; 64 times where each line reads all that follow


NOUNS = sorted(
    {
        mark[0].strip()
        for row in LANGUAGES
        for example, _value in row.examples
        for pattern in (row.heading_pattern, row.full_phrase_pattern)
        if pattern and (mark := re.search(pattern, example, re.IGNORECASE))
    }
)
"""Every noun that may stand before an answer, in every language, as the examples write it."""


@pytest.mark.parametrize("fill", [" ", "\n", "*", " \n", "_", "**\n", ":", "> "])
@pytest.mark.parametrize("noun", NOUNS)
def test_a_long_fill_after_a_noun_is_read_in_one_go(noun: str, fill: str) -> None:
    def cost(length: int) -> float:
        best = 9e9
        for _ in range(2):
            text = noun + fill * (length // len(fill)) + "x"
            start = time.process_time()
            extract_answer(text)
            extract_answer(noun + " (final)" + text.removeprefix(noun))
            best = min(best, time.process_time() - start)
        return best

    assert cost(6_000) < 8 * cost(1_500) + 0.02  # four times as long; 16 times where two fills share the run, 64 where three do


@pytest.mark.parametrize("text", ["#### 1{}é\n#### 2", "#### -{}é\n#### 2", "the total is{}x", "so{}x"])
def test_a_long_run_of_spaces_within_a_line_is_read_in_one_go(text: str) -> None:
    def cost(length: int) -> float:
        start = time.process_time()
        extract_answer(text.format(" " * length))
        return time.process_time() - start

    assert cost(6_000) < 8 * min(cost(1_500) for _ in range(3)) + 0.02


@pytest.mark.parametrize("mark", ["~", "`"])
def test_a_long_fence_that_is_none_is_read_in_one_go(mark: str) -> None:
    def cost(length: int) -> float:
        start = time.process_time()
        extract_answer(mark * length + "`x", "fence")
        return time.process_time() - start

    assert cost(12_000) < 8 * min(cost(3_000) for _ in range(3)) + 0.02


def test_a_text_that_denies_a_hundred_thousand_answers_is_read_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def counted(before: str, after: str) -> bool:
        asked.append(before)
        return is_denied(before, after)

    monkeypatch.setattr(answer_lines, "is_denied", counted)
    assert extract_answer("answer is not " * 100_000, "auto").text is None
    assert extract_answer("answer is not 8. " * 100_000 + "\nThe answer is 7.", "auto").text == "7"
    assert len(asked) < 10 * MAX_DECLARATIONS
    flood = "The answer is 5. " + "I do not think the answer is 8.\n" * (3 * MAX_DECLARATIONS) + "\nSo 7."
    assert extract_answer(flood, "auto").text is None  # the first one is not looked at, and is not taken for none
