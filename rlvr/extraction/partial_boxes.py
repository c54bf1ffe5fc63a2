r"""Detect a box that is only a part of a formula: `2\cdot\boxed{42}`, `x < \boxed{42}`, `\boxed{42}^2`. Such a box is no answer.

A box after `=` is a whole value, and so is a box in an equation that continues (`3 + \boxed{4} = 7`). An inclusive bound
(`\le`, `\ge`) counts, because the largest and the smallest value are often given that way.
"""

from __future__ import annotations

import re

FORMULA_BEFORE_PATTERNS = (
    (r"\\(?:neq?|lt|gt|nleq|ngeq)\s*|[≠]\s*|[\w})]\s*<\s*|[\w})]\s+>\s*", "a relation", r"$x \neq \boxed{7}$"),
    (r"[$=(]\s?-\s?|(?:\A|[\s:])-|\\pm\s*", "a sign", r"$-\boxed{7}$"),
    (r"\\(?:cdot|times|div)\s*|[×·÷]\s*|\d\s?\*\s?|\d", "a factor", r"$2 \cdot \boxed{7}$"),
    (r"\d\s?[-+/]\s?", "a term", r"$2 + \boxed{7}$"),
    (
        r"\\(?:sqrt(?:\[\w{1,3}\])?|[dt]?frac)\s?\{\s*|\\[dt]?frac\s?\{[^{}]{1,20}\}\s?\{\s*|[\^_]\{?\s*",
        "a root, a fraction, an index",
        r"$\sqrt{\boxed{7}}$",
    ),
    (r"\\(?:sin|cos|tan|ln|log|exp)\s?[({]?\s*", "a function", r"$\ln(\boxed{7})$"),
    (r"[(\[{]\s?-?\d[\d.]{0,20}\s?,\s?", "a list or a pair", r"$(2, \boxed{7})$"),
)
"""Text before a box that makes the box a part of a formula: (pattern, what it is, example)."""

FORMULA_AFTER_PATTERNS = (
    (r"\s?\}?\s?\^(?!\s*\{?\s*\\?(?:circ|prime))", "a power; not a degree", r"$\boxed{7}^2$"),
    (r"\s?\\(?:pi|sqrt|cdot|times|div|d?frac|ln|log|sin|cos|pm)(?![a-zA-Z])", "a factor", r"$\boxed{7}\pi$"),
    (r"[^\S\n]?[-+*/][^\S\n]?(?:\d|\(|\\(?![a-z]*box|[)\]]|[,;:! ])|(?![aAI]\s)[a-zA-Z](?![a-zA-Z]))", "a term", r"$\boxed{7} + 2$"),
    (r"\s?!\s?(?:\$(?!\$)|\\\))", "a factorial", r"$\boxed{7}!$"),
    (r"[inxyz](?![a-zA-Z])", "a letter", r"$\boxed{7}i$"),
    (r"\$?[.,](?:\\!)?\d", "more digits", r"\boxed{7},000"),
    (r"\{(?!\})", "another group in braces", r"\boxed{7}{8}"),
    (r"\s{0,2},\s{0,2}-?\d[\d.]{0,20}\s{0,2}(?:[)\]]|\$(?!\$?\d)|\Z)", "a list or a pair", r"$(\boxed{7}, 8)$"),
    (r"[\s$]{0,3}(?:hundred|thousand|million|billion|trillion|dozen)\b|[\s$]{0,3}[万亿億]", "a factor in words", r"\boxed{7} million"),
    (r"[\s$]{1,3}(?:plus|minus|times|divided\s+by)\s+[\d$\\]", "a term in words", r"\boxed{7} plus 2"),
)
"""Text after a box that makes the box a part of a formula: (pattern, what it is, example)."""

_FORMULA_BEFORE = re.compile(f"(?:{'|'.join(pattern for pattern, _, _ in FORMULA_BEFORE_PATTERNS)})$")
_FORMULA_AFTER = re.compile("|".join(pattern for pattern, _, _ in FORMULA_AFTER_PATTERNS))
_BEFORE_HINTS = tuple("<>≠-+/×·÷*{^_(,0123456789")
"""Prefilter: every match of `_FORMULA_BEFORE` ends with one of these or contains a backslash."""
_EQUATION_CONTINUES = re.compile(r"[^$\n=.]{0,40}=")


def is_part_of_formula(before: str, after: str) -> bool:
    r"""Whether the box between two texts is a part of a formula.

    >>> is_part_of_formula(r"$2\cdot", "$"), is_part_of_formula("$x = ", "$"), is_part_of_formula(r"$3\cdot", " = 21$")
    (True, False, False)
    """
    near = before[-40:]
    hint = "\\" in near or near.rstrip()[-1:] in _BEFORE_HINTS
    said = (hint and _FORMULA_BEFORE.search(near)) or (after.strip(" $.)*\\]\n") and _FORMULA_AFTER.match(after))
    return bool(said) and _EQUATION_CONTINUES.match(after) is None
