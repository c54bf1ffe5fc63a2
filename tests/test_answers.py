"""The declared answer, and only that, is found."""

from __future__ import annotations

import time

import pytest

from rlvr.answers import CHANNELS, find
from rlvr.errors import ConfigError

FOUND = [
    ("auto", r"so \boxed{42}.", "42"),
    ("auto", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ("auto", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    ("auto", r"$\boxed 5$", "5"),
    ("auto", r"first \boxed{42} and again \boxed{ 42 }", "42"),
    ("auto", r"\boxed{\boxed{7}}", "7"),
    ("auto", r"\fbox{7}", "7"),
    ("auto", r"{a \boxed{7} } then } \boxed{7}", "7"),
    ("auto", "\\\\boxed{8} and \\boxed{7}", "7"),
    ("auto", r"the box \fbox 7", "7"),
    ("auto", r"It is not \boxed{8}. " + r"\boxed{7} " * 3000, "7"),
    ("auto", r"<think>\boxed{41}</think>\boxed{42}", "42"),
    ("auto", r"it may be \boxed{41}</think>\boxed{42}", "42"),
    ("auto", "<answer> 42 </answer>", "42"),
    ("auto", r"<answer>It is $\boxed{42}$</answer>", "42"),
    ("auto", "work\n#### 42", "42"),
    ("auto", "The final answer is $42$. I hope it is correct.", "$42$"),
    ("auto", "**Final Answer**\n\n42", "42"),
    ("auto", "**Answer:** 4.5", "4.5"),
    ("auto", "ANSWER: B", "B"),
    ("auto", "x = 5", "x = 5"),
    ("auto", "\\begin{pmatrix}\n1\\\\2\n\\end{pmatrix}", "\\begin{pmatrix}\n1\\\\2\n\\end{pmatrix}"),
    ("auto", r"$x=\boxed{1}$ or $x=\boxed{2}$", "1, 2"),
    ("auto", r"The answer is not \boxed{41}, it is \boxed{42}", "42"),
    ("hash", "#### Step 1\n4\n#### 42", "42"),
    ("final_line", "the answer is 1.5", "1.5"),
    ("fence", "```python\na\n```\nthen\n```python\nb\n```", "b\n"),
    ("whole", "  7\n8 ", "7\n8"),
    (("tag", "boxed"), r"\boxed{3}", "3"),
]

NOT_FOUND = [
    ("auto", r"\boxed{41}\boxed{42}"),
    ("auto", r"\boxed{41} ... \boxed{42}"),
    ("auto", r"\boxed{41} <answer>42</answer>"),
    ("auto", r"it cannot be \boxed{42}"),
    ("auto", r"<think>\boxed{42}"),
    ("auto", r"<think>\boxed{42}</think> I am done <think>"),
    ("auto", r"\boxed{42"),
    ("auto", r"\boxed{}"),
    ("auto", ""),
    ("auto", "It could be 40.\nOr 41, or 42."),
    ("auto", "The answer is 41. Or maybe 42."),
    ("boxed", "42"),
    ("tag", "<answer>41</answer><answer>42</answer>"),
    ("hash", "#### 41\n#### 42"),
    ("fence", "```python\nprint(1)\n"),
]


@pytest.mark.parametrize(("channel", "text", "answer"), FOUND)
def test_the_declared_answer_is_found(channel: str, text: str, answer: str) -> None:
    assert find(text, channel).text == answer


@pytest.mark.parametrize(("channel", "text"), NOT_FOUND)
def test_what_is_not_declared_is_no_answer(channel: str, text: str) -> None:
    found = find(text, channel)
    assert found.text is None
    assert found.reason


def test_several_answers_are_named_and_the_last_can_be_asked_for() -> None:
    assert find(r"\boxed{41}\boxed{42}").several == ("41", "42")
    assert find(r"\boxed{41}\boxed{42}", several="last").text == "42"


def test_an_unknown_channel_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'boxed'"):
        find("1", "boxd")


@pytest.mark.parametrize(
    "piece", ["$", "\\boxed{", "{", "}", "<answer>", "</think>", "<think>", "the answer is ", "#### 1\n", "```\n", "\\boxed{1}", "\\"]
)
@pytest.mark.parametrize("channel", sorted(CHANNELS))
def test_every_scanner_is_linear(piece: str, channel: str) -> None:
    def cost(count: int) -> float:
        text = piece * count
        best = 9e9
        for _ in range(3):
            start = time.process_time()
            find(text, channel)
            best = min(best, time.process_time() - start)
        return best

    assert cost(8_000) <= 30 * cost(800) + 0.02


def test_a_long_row_of_empty_lines_is_read_in_one_go() -> None:
    def cost(lines: int) -> float:
        began = time.process_time()
        assert find("\n" * lines + "x", "final_line").text is None
        return max(time.process_time() - began, 1e-3)

    assert cost(40_000) < 24 * min(cost(5_000) for _ in range(3))  # eight times as long; 64 times where each line reads all that follow
