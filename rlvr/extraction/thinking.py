r"""Remove thinking sections: text before the answer, which never counts as an answer.

Each row of the table is one pair of markers. Only the closing marker of the same row closes a section; a closing marker without an opening
one means that the prompt opened the section. One pass over the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """A pair of markers of thinking sections: two patterns, the models that use them, and an example whose visible part declares 8.

    >>> THINKING_MARKERS[0].example
    '<think>Is it 7?</think>The answer is 8.'
    """

    model_family: str
    open_pattern: str
    close_pattern: str
    example: str


_TAG_NAMES = r"(?:think|thinking|thought|thoughts|reason|reasoning|analysis|reflection|scratch_?pad)"

THINKING_MARKERS = (
    ThinkingMarkers("most models", f"<{_TAG_NAMES}>", f"</{_TAG_NAMES}>", "<think>Is it 7?</think>The answer is 8."),
    ThinkingMarkers("Seed, LongCat", r"<\w{1,20}[:_]think>", r"</\w{1,20}[:_]think>", "<seed:think>Is it 7?</seed:think>The answer is 8."),
    ThinkingMarkers("Magistral", r"\[THINK\]", r"\[/THINK\]", "[THINK]Is it 7?[/THINK]The answer is 8."),
    ThinkingMarkers("Kimi", "◁think▷", "◁/think▷", "◁think▷Is it 7?◁/think▷The answer is 8."),
    ThinkingMarkers(
        "Sky-T1",
        r"<\|begin_of_thought\|>",
        r"<\|end_of_thought\|>(?:\s{0,9}<\|begin_of_solution\|>)?",
        "<|begin_of_thought|>Is it 7?<|end_of_thought|>\n<|begin_of_solution|>The answer is 8.<|end_of_solution|>",
    ),
    ThinkingMarkers(
        "gpt-oss, its channels as tokens",
        r"<\|channel\|>(?:analysis|commentary)",
        r"<\|channel\|>final[^<>\n]{0,60}<\|message\|>",
        "<|channel|>analysis<|message|>Is it 7?<|end|><|start|>assistant<|channel|>final<|message|>The answer is 8.<|return|>",
    ),
    ThinkingMarkers(
        "gpt-oss, decoded without its tokens",
        r"\Aanalysis(?=[A-Z\"'$\\(*])",
        r"assistantfinal",
        "analysisIs it 7?assistantfinalThe answer is 8.",
    ),
    ThinkingMarkers("Gemma", r"<\|channel>thought", r"<channel\|>", "<|channel>thought\nIs it 7?<channel|>The answer is 8."),
    ThinkingMarkers(
        "Command", r"<\|START_THINKING\|>", r"<\|END_THINKING\|>", "<|START_THINKING|>Is it 7?<|END_THINKING|>The answer is 8."
    ),
    ThinkingMarkers("Apertus", r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", "<|inner_prefix|>Is it 7?<|inner_suffix|>The answer is 8."),
    ThinkingMarkers(
        "Granite",
        r"\AHere is my thought process:",
        r"\bHere is my response:",
        "Here is my thought process: Is it 7?\n\nHere is my response: The answer is 8.",
    ),
)
"""The markers of thinking sections; one row for each family of models."""

_THINKING_MARK = re.compile(
    "|".join(f"(?P<o{at}>{row.open_pattern})|(?P<c{at}>{row.close_pattern})" for at, row in enumerate(THINKING_MARKERS)), re.IGNORECASE
)
_MARK_HINTS = ("think", "thought", "reason", "reflection", "scratch", "channel", "assistantfinal", "inner_", "here is my", "analysis")
"""Prefilter: every marker contains one of these substrings."""


def strip_thinking(text: str) -> str | None:
    """Return the text outside every thinking section; None if a section is not closed.

    >>> strip_thinking("<think>is it 7?</think> It is 8.")
    ' It is 8.'
    """
    low = text.lower()
    return _strip_marked_thinking(text) if any(hint in low for hint in _MARK_HINTS) else text


def _strip_marked_thinking(text: str) -> str | None:
    """Strip thinking sections from a text that may contain markers; None if a section is not closed."""
    kept: list[str] = []
    start, thinking = 0, ""
    for mark in _THINKING_MARK.finditer(text):
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
