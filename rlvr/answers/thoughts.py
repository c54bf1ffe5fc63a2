r"""Remove thinking sections: text before the answer, which never counts as an answer.

Each row of the table is one pair of markers. Only the closing marker of the same row closes a section; a closing marker without an opening
one means that the prompt opened the section. One pass over the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thought:
    """A pair of markers of thinking sections: two patterns, the models that use them, and an example whose visible part declares 8.

    >>> THOUGHTS[0].example
    '<think>Is it 7?</think>The answer is 8.'
    """

    who: str
    opens: str
    closes: str
    example: str


_NAMES = r"(?:think|thinking|thought|thoughts|reason|reasoning|analysis|reflection|scratch_?pad)"

THOUGHTS = (
    Thought("most models", f"<{_NAMES}>", f"</{_NAMES}>", "<think>Is it 7?</think>The answer is 8."),
    Thought("Seed, LongCat", r"<\w{1,20}[:_]think>", r"</\w{1,20}[:_]think>", "<seed:think>Is it 7?</seed:think>The answer is 8."),
    Thought("Magistral", r"\[THINK\]", r"\[/THINK\]", "[THINK]Is it 7?[/THINK]The answer is 8."),
    Thought("Kimi", "◁think▷", "◁/think▷", "◁think▷Is it 7?◁/think▷The answer is 8."),
    Thought(
        "Sky-T1",
        r"<\|begin_of_thought\|>",
        r"<\|end_of_thought\|>(?:\s{0,9}<\|begin_of_solution\|>)?",
        "<|begin_of_thought|>Is it 7?<|end_of_thought|>\n<|begin_of_solution|>The answer is 8.<|end_of_solution|>",
    ),
    Thought(
        "gpt-oss, its channels as tokens",
        r"<\|channel\|>(?:analysis|commentary)",
        r"<\|channel\|>final[^<>\n]{0,60}<\|message\|>",
        "<|channel|>analysis<|message|>Is it 7?<|end|><|start|>assistant<|channel|>final<|message|>The answer is 8.<|return|>",
    ),
    Thought(
        "gpt-oss, decoded without its tokens",
        r"\Aanalysis(?=[A-Z\"'$\\(*])",
        r"assistantfinal",
        "analysisIs it 7?assistantfinalThe answer is 8.",
    ),
    Thought("Gemma", r"<\|channel>thought", r"<channel\|>", "<|channel>thought\nIs it 7?<channel|>The answer is 8."),
    Thought("Command", r"<\|START_THINKING\|>", r"<\|END_THINKING\|>", "<|START_THINKING|>Is it 7?<|END_THINKING|>The answer is 8."),
    Thought("Apertus", r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", "<|inner_prefix|>Is it 7?<|inner_suffix|>The answer is 8."),
    Thought(
        "Granite",
        r"\AHere is my thought process:",
        r"\bHere is my response:",
        "Here is my thought process: Is it 7?\n\nHere is my response: The answer is 8.",
    ),
)
"""The markers of thinking sections; one row for each family of models."""

_MARKS = re.compile("|".join(f"(?P<o{at}>{row.opens})|(?P<c{at}>{row.closes})" for at, row in enumerate(THOUGHTS)), re.IGNORECASE)
_HINTS = ("think", "thought", "reason", "reflection", "scratch", "channel", "assistantfinal", "inner_", "here is my", "analysis")
"""Prefilter: every marker contains one of these substrings."""


def visible(text: str) -> str | None:
    """Return the text outside every thinking section; None if a section is not closed.

    >>> visible("<think>is it 7?</think> It is 8.")
    ' It is 8.'
    """
    low = text.lower()
    return _outside(text) if any(hint in low for hint in _HINTS) else text


def _outside(text: str) -> str | None:
    """Strip thinking sections from a text that may contain markers; None if a section is not closed."""
    kept: list[str] = []
    start, thinking = 0, ""
    for mark in _MARKS.finditer(text):
        name = mark.lastgroup or ""
        if name[0] == "c":
            if thinking and thinking != name[1:]:
                continue  # the marker of another row, inside this section
            kept = kept if thinking else []  # no opening marker: the prompt opened the section, so all text before this was thinking
            start, thinking = mark.end(), ""
        elif not thinking:
            kept.append(text[start : mark.start()])
            thinking = name[1:]
    if thinking:
        return None
    return "".join(kept) + text[start:]
