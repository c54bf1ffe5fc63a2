"""The declared answer, and only that, is found."""

from __future__ import annotations

import pytest

from rlvr.errors import ConfigError
from rlvr.extraction import extract_answer

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
    ("auto", r"It is \boxed{ <ANSWER>42</ANSWER> }", "42"),
    ("boxed", r"\boxed{<answer>\frac{1}{2}</answer>}", r"\frac{1}{2}"),
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
    # several boxes: those after the last place where words set them apart
    ("auto", "The width is \\boxed{3}. Since it is a square, the area is \\boxed{9}.", "9"),
    ("auto", r"First \boxed{3}, then 3+4 = \boxed{7}.", "7"),
    ("auto", "**Part (a)** \\boxed{12}\n\n**Part (b)** \\boxed{7}", "7"),
    ("auto", "(a) $\\boxed{3}$\n\n(b) $\\boxed{4}$", "4"),
    ("auto", "\\boxed{8}\n\nI made a mistake. Let me redo it.\n\n\\boxed{7}", "7"),
    ("auto", r"\boxed{2}+\boxed{4}=\boxed{6}", "6"),
    ("auto", r"$n + 3 = \boxed{10}$. Subtracting three from it, $n = \boxed{7}$.", "7"),
    ("auto", r"The roots need work: \boxed{9}. So in the end they are \boxed{1} and \boxed{2}.", "1, 2"),
    ("auto", r"Someone might say \boxed{9}. The true value is \boxed{8}.", "8"),
    ("auto", r"The true value is \boxed{8}. A student once wrote \boxed{9}.", "8"),
    # empty boxes and words in the answer's place are none
    ("auto", r"Put the answer in \boxed{}. It is \boxed{5}.", "5"),
    ("auto", r"The format is \boxed{\text{answer}}. It is \boxed{5}.", "5"),
    ("auto", r"\boxed{5cm}", "5cm"),
    ("auto", "<answer>...</answer> <answer>5</answer>", "5"),
    # a number after the box that is the same number
    ("auto", r"\boxed{50\%}. The answer is 0.5.", r"50\%"),
    ("auto", r"\boxed{18} dollars. The answer is 18 dollars.", "18"),
    # special tokens, invisible characters, emoji
    ("auto", "Answer: 16<|eot_id|>", "16"),
    ("auto", "#### 72</s> <|im_end|>\n", "72"),
    ("whole", "72<|endoftext|>", "72"),
    ("auto", "\\boxed{42\u200b}", "42"),
    ("auto", "Final answer: 12 ✅", "12"),
    # lines and sentences
    ("auto", "### Answer\n42", "42"),
    ("auto", "**Answer**\n\nWe add 1 and 2.\n\nThe answer is 3.", "3"),
    ("auto", "The answer is 41.\n\nWait, actually the answer is 42.", "42"),
    ("auto", "So the answer is not 3.\nTherefore, the answer is 4.", "4"),
    ("auto", "**Answer:** 3\n\n**Explanation:** the answer is found by adding both.", "3"),
    ("auto", "We count.\n\nTherefore, the probability that it is red is $\\frac{1}{3}$.", "$\\frac{1}{3}$"),
    ("auto", "We count them all.\nThus, the number of students is **24**.", "24"),
    ("auto", "So, the day of the week will be **Tuesday**.", "Tuesday"),
    ("auto", "### Final Answer\n\nThe number of ways is **14**.", "14"),
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
    ("auto", r"\boxed{\phantom{2}}"),
    ("auto", r"\boxed{\quad}"),
    ("auto", r"\boxed{...}"),
    ("auto", r"\boxed{\text{answer}}"),
    # two offers
    ("auto", r"It would be wrong to answer \boxed{7}. I answer 8."),
    ("auto", "It's \\boxed{7}. It's \\boxed{8}."),
    ("auto", "- The answer is \\boxed{7}\n- The answer is \\boxed{8}"),
    ("auto", r"\boxed{8} \iffalse \boxed{7} \fi"),
    ("auto", r"\boxed{8} % \boxed{7}"),
    ("auto", r"\boxed{8} = \boxed{7}"),
    ("auto", "1. \\boxed{7}\n2. \\boxed{8}"),
    ("auto", "Case 1: the value is \\boxed{7}.\n\nCase 2: the value is \\boxed{8}."),
    ("auto", "If n is even, we get \\boxed{7}. If n is odd, we get \\boxed{8}."),
    ("auto", r"The mean is \boxed{3} and the median is \boxed{4}."),
    ("auto", r"\boxed{7} or 8"),
    ("auto", r"\boxed{7}. The answer is 8."),
    ("auto", "\\boxed{7}\n\n**Alternative answer:** 8"),
    ("auto", "**Answer:** 7\n\n**Alternative answer:** 8"),
    ("auto", "**Answer:** 7\n\nThis uses the formula.\n\n**Alternative answer:** 8"),
    ("final_line", "A common wrong answer is 7."),
    ("auto", "Answer 1: 7\nAnswer 2: 8"),
    ("auto", "Answer: 8\n\nFinal answer: 7"),
    ("auto", "The answer is 7. Just kidding, eight."),
    ("auto", "**Answer:** 2\n\nActually, on second thought, it is 3."),
    ("auto", "The answer is 7.\nOr 8."),
    ("final_line", "A lower bound for the answer is **8**."),
    ("final_line", "Twice the answer is 8."),
    ("auto", "Some work.\nSo the naive value is $5$."),
    ("auto", "Some work.\nThus, the maximum is $5$ and the minimum is $3$."),
]


@pytest.mark.parametrize(("channel", "text", "answer"), FOUND)
def test_the_declared_answer_is_found(channel: str, text: str, answer: str) -> None:
    assert extract_answer(text, channel).text == answer


@pytest.mark.parametrize(("channel", "text"), NOT_FOUND)
def test_what_is_not_declared_is_no_answer(channel: str, text: str) -> None:
    found = extract_answer(text, channel)
    assert found.text is None
    assert found.reason


def test_several_answers_are_named_and_the_last_can_be_asked_for() -> None:
    assert extract_answer(r"\boxed{41}\boxed{42}").candidates == ("41", "42")
    assert extract_answer(r"\boxed{41}\boxed{42}", multiple_answers="last").text == "42"


def test_an_unknown_channel_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'boxed'"):
        extract_answer("1", "boxd")


def test_numbers_beside_the_box_are_told_apart_by_value() -> None:
    assert extract_answer(r"\boxed{7} or 8").candidates == ("7", "8")
    assert extract_answer(r"\boxed{\frac12} or 0.5").candidates == (r"\frac12", "0.5")  # whoever can compare them decides
    assert extract_answer(r"\boxed{0.5} or 50\%").text == "0.5"


def test_what_hangs_at_the_edges_is_no_part_of_code_or_of_a_whole_text() -> None:
    assert extract_answer("```\na ✅\n```<|im_end|>", "fence").text == "a ✅\n"
    assert extract_answer("a ✅", "whole").text == "a ✅"
