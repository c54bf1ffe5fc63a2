r"""Detect a box that is only a part of a formula: `2\cdot\boxed{42}`, `x < \boxed{42}`, `\boxed{42}^2`. Such a box is no answer.

A box after `=` is a whole value, and so is a box beside a term of an equation that continues (`3 + \boxed{4} = 7`); a box inside a fraction,
a root, an index, a bracket or the argument of a function never is. An inclusive bound (`\le`, `\ge`) counts, because the largest and the
smallest value are often given that way.
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
    (r"\s?!!?\s?(?:\$(?!\$)|\\\))", "a factorial", r"$\boxed{7}!$"),
    (r"[abeiknpqruvwxyz](?![a-zA-Z]|\.[a-z])", "a letter", r"$\boxed{7}i$"),
    (r"[^\S\n]?\\(?:choose|bmod)(?![a-zA-Z])", "a binomial or a remainder", r"$\boxed{7} \choose 2$"),
    (r"_\{?\d", "a base", r"$\boxed{7}_8$"),
    (r"[^\S\n]?(?:[<>]|\\(?:neq?|[lg]t)(?![a-z]))[^\S\n]?[a-zA-Z](?![a-zA-Z])", "a relation", r"$\boxed{7} < x$"),
    (r"\$?[.,](?:\\!)?\d", "more digits", r"\boxed{7},000"),
    (r"\{(?!\})", "another group in braces", r"\boxed{7}{8}"),
    (r"\s{0,2},\s{0,2}-?\d[\d.]{0,20}\s{0,2}(?:[)\]]|\\\}|\$(?!\$?\d)|\Z)", "a list or a pair", r"$(\boxed{7}, 8)$"),
    (r"[\s$]{0,3}(?:hundred|thousand|million|billion|trillion|dozen)\b|[\s$]{0,3}[万亿億]", "a factor in words", r"\boxed{7} million"),
    (r"[\s$]{1,3}(?:factorial|(?:squared|cubed)(?!\s+units?))\b", "a power in words", r"\boxed{7} squared"),
    (r"[\s$]{1,3}(?:plus|minus|times|divided\s+by)\s+[\d$\\]", "a term in words", r"\boxed{7} plus 2"),
)
"""Text after a box that makes the box a part of a formula: (pattern, what it is, example)."""

MATH_BEFORE_PATTERNS = (
    (r"(?<![a-zA-Z])[a-zA-Z]\s?[-+]\s?", "a term", r"$x + \boxed{7}$"),
    (r"\\(?:pi|alpha|beta|gamma|theta|lambda|mu|omega|sqrt\{[^{}]{1,20}\})\s?", "a factor", r"$\pi \boxed{7}$"),
    (r"\A\s?[a-z]\s?", "a letter", r"$x \boxed{7}$"),
    (r"\A\s?\d[\d.]{0,20}\s?:\s?", "a ratio", r"$3:\boxed{7}$"),
    (r"\A\s?\||(?:\\lvert|\\lfloor|\\lceil|⌊|⌈)\s?", "a function in bars", r"$|\boxed{7}|$"),
    (r"\\(?:log|ln|sin|cos|tan|exp)(?:_\{?\w\}?)?(?:\^\{?\w\}?)?\s?", "a function", r"$\log_2 \boxed{7}$"),
)
"""Text between the start of a formula and a box that makes the box a part of the formula: (pattern, what it is, example)."""

MATH_AFTER_PATTERNS = (
    (r"(?:\s|\\[,;:! ])?[abeiknpqruvwxyz](?=\s?(?:\$|\\\)|\\\]|[-+=^*/]))", "a letter", r"$\boxed{7}\,i$"),
    (r"\s?:\s?\d", "a ratio", r"$\boxed{7}:3$"),
)
"""Text after a box in a formula that makes the box a part of it: (pattern, what it is, example)."""

GROUP_PATTERNS = (
    (r"\\(?:[dtc]?frac|[dt]?binom)\s?\{", "a fraction", r"$\frac{\boxed{7}}{2} = 3.5$"),
    (r"\\(?:[dtc]?frac|[dt]?binom)\s?(?:\{[^{}]{0,40}\}|\d)\s?\{", "a fraction", r"$\frac{14}{\boxed{7}} = 2$"),
    (r"\\sqrt\s?(?:\[\w{1,3}\])?\s?\{", "a root", r"$\sqrt{\boxed{7}} = 2.6$"),
    (r"[\^_]\s?\{", "an index", r"$2^{\boxed{7}} = 128$"),
    (
        r"(?:(?<![a-zA-Z\\])[a-zA-Z]|\\(?!left|Rightarrow|implies|therefore|to|quad|qquad|in)[a-zA-Z]+)\s?(?:\\left\s?)?\(",
        "an argument",
        r"$f(\boxed{7}) = 3$",
    ),
)
"""Text that opens a group in which a box is only a part, also of an equation that continues: (pattern, what it is, example)."""

_FORMULA_BEFORE = re.compile(f"(?:{'|'.join(pattern for pattern, _, _ in FORMULA_BEFORE_PATTERNS)})$")
_FORMULA_AFTER = re.compile("|".join(pattern for pattern, _, _ in FORMULA_AFTER_PATTERNS))
_MATH_BEFORE = re.compile(f"(?:{'|'.join(pattern for pattern, _, _ in MATH_BEFORE_PATTERNS)})$")
_MATH_AFTER = re.compile("|".join(pattern for pattern, _, _ in MATH_AFTER_PATTERNS))
_GROUP = re.compile(f"(?:{'|'.join(pattern for pattern, _, _ in GROUP_PATTERNS)})$")
_BEFORE_HINTS = tuple("<>≠-+/×·÷*{^_(,0123456789")
"""Prefilter: every match of `_FORMULA_BEFORE` ends with one of these or contains a backslash."""
_CLOSING_SIGNS = " $.)*\\]\n"
_EQUATION_CONTINUES = re.compile(r"([^$\n=.]{0,40})=")
_MATH_START = re.compile(r"\$|\\[(\[]|\n|(?<![\\a-zA-Z])[a-zA-Z]{3,}")
"""Where the formula before a box starts at the latest: a sign of math mode, a new line, or after a word."""
_MATH_SIGN = re.compile(r"[$\\({\[]")
"""Prefilter: without it there is neither math mode nor a bracket that is open."""
_BRACKETS = re.compile(r"\\[{}]|[(){}\[\]]")
_CLOSER = re.compile(r"\s?(?:\\right\s?)?(?:[)\]]|\\\})")


def is_part_of_formula(before: str, after: str) -> bool:
    r"""Whether the box between two texts is a part of a formula.

    >>> is_part_of_formula(r"$2\cdot", "$"), is_part_of_formula("$x = ", "$"), is_part_of_formula(r"$3\cdot", " = 21$")
    (True, False, False)
    >>> is_part_of_formula(r"$\frac{", "}{2} = 21$"), is_part_of_formula("$(x, ", ")$")
    (True, True)
    """
    if not after.strip(_CLOSING_SIGNS) and before.rstrip()[-1:] not in _BEFORE_HINTS and not _MATH_SIGN.search(before):
        return False  # most boxes: after plain words, at the end
    start = max((found.end() for found in _MATH_START.finditer(before)), default=0)
    formula, is_math = before[start:], before[:start].endswith(("$", "\\(", "\\["))
    opener = _find_open_bracket(formula)
    if opener is not None:
        inside = formula[opener + 1 :]
        if _GROUP.search(formula[: opener + 1]) and "=" not in inside:
            return True
        if formula[opener] != "{" and (is_math or "\\" in formula):
            if inside.rstrip().endswith(",") and "=" not in inside:
                return True
            if not inside.strip() and (closer := _CLOSER.match(after)) is not None:  # $(\boxed{7})^2$
                before, after = re.sub(r"\\left\s?$|\\$", "", before[: start + opener]), after[closer.end() :]
                formula = before[start:]
    near = before[-40:]
    hint = "\\" in near or near.rstrip()[-1:] in _BEFORE_HINTS
    said = (hint and _FORMULA_BEFORE.search(near)) or (after.strip(_CLOSING_SIGNS) and _FORMULA_AFTER.match(after))
    if not said and is_math:
        said = _MATH_BEFORE.search(formula) or _MATH_AFTER.match(after)
    continued = _EQUATION_CONTINUES.match(after)
    return bool(said) and (continued is None or _closes_bracket(continued[1]))


def _find_open_bracket(text: str) -> int | None:
    """Find the last bracket that is still open at the end of a text; None if there is none."""
    opened: list[int] = []
    for bracket in _BRACKETS.finditer(text):
        if bracket[0][-1] in "({[":
            opened.append(bracket.end() - 1)
        elif opened:
            opened.pop()
    return opened[-1] if opened else None


def _closes_bracket(text: str) -> bool:
    """Whether a text closes a bracket that it does not open."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0][-1] in "({[" else -1
        if depth < 0:
            return True
    return False
