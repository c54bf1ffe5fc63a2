"""Remove Markdown and LaTeX markup that does not change the content of a text, for verifiers that read plain values."""

from __future__ import annotations

import re

MARKUP_RULES: tuple[tuple[str, str, str, str], ...] = (
    (r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*]*)(?<=[^\s*])\1(?![\w*])", r"\2", "bold or italic; not a power such as 2**3**4", "**280**"),
    (r"(?<!\w)(_{1,2})(?=[^\s_])([^_]*)(?<=[^\s_])\1(?!\w)", r"\2", "bold or italic with underscores; not 1_000_000", "__280__"),
    (r"(?<![\w`])(`{1,2})(?=[^\s`])([^`]*)(?<=[^\s`])\1(?![\w`])", r"\2", "code in a line", "`280`"),
    (r"\\(?:text(?:bf|it|rm|tt|normal)?|math(?:bf|rm|it)|mbox)\s*\{([^{}]*)\}", r"\1", "words or a font in a formula", r"\textbf{280}"),
    (r"(?:\\[ ,;:!]|\\q?quad(?![a-zA-Z]))+", " ", "spaces in a formula", r"280\,"),
    (r"\\\((.*)\\\)|\\\[(.*)\\\]", r"\1\2", "math brackets of LaTeX", r"\(280\)"),
    (r"\A\$\$?([^$]+)\$?\$(?=\.?\Z)", r"\1", "a formula between dollar signs that is the whole text", "$280$"),
)
"""Rows: pattern, replacement, description, example (each becomes 280)."""

MAX_CHARS = 2000
"""Maximum length in characters; a longer text is not a short answer and is returned unchanged."""


def strip_markdown_and_latex(text: str) -> str:
    """Strip Markdown and LaTeX markup from a text.

    >>> strip_markdown_and_latex("The product is **280**."), strip_markdown_and_latex("2**3**4")
    ('The product is 280.', '2**3**4')
    """
    if len(text) > MAX_CHARS or not any(mark in text for mark in "*_`\\$"):
        return text.strip()
    for _ in range(2):  # `**280**` is bold in code, **`280`** is code in bold
        for pattern, becomes, _why, _example in MARKUP_RULES:
            text = re.sub(pattern, becomes, text.strip())
    return text.strip()
