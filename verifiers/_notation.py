r"""The many ways to write one thing, made one: colours and sizes dropped, older commands and plain spellings made the usual ones.

Works on text, before there are tokens. Each rule is one regular expression with bounded repeats, and leaves all else alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_DOTS = r"(?:\.\.\.|\\[lc]?dots(?![a-zA-Z]))"
_N = r"\{?\s*(\d{1,6})\s*\}?"


def _cycle(match: re.Match[str]) -> str:
    r"""`0.\dot{1}4\dot{2}` marks the first and the last digit of what repeats; `0.333...` and `0.(3)` show it."""
    return rf"{match[1]}\overline{{{re.sub(r'[^0-9]', '', match[2])}}}"


def _outward(text: str) -> str:
    """`]a, b[` is the open interval (a, b): square brackets in pairs, each around two ends, some of them turned outward."""
    places = [at for at, sign in enumerate(text) if sign in "[]"]
    pairs = list(zip(places[::2], places[1::2], strict=False))
    if len(places) % 2 or not 1 <= len(pairs) <= 6 or all(text[a] == "[" and text[b] == "]" for a, b in pairs):
        return text
    if any(len(re.findall("[,;]", text[a:b])) != 1 for a, b in pairs):
        return text
    signs = list(text)
    for a, b in pairs:
        signs[a] = "(" if text[a] == "]" else "["
        signs[b] = ")" if text[b] == "[" else "]"
    return "".join(signs)


_RULES: tuple[_Rule, ...] = (
    (re.compile(r"\\(?:text)?color(?:box)?\s*\{[a-zA-Z0-9!,. ]{1,30}\}"), ""),
    (re.compile(r"\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|itshape)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:hspace|vspace)\*?\s*\{[^{}]{0,60}\}"), " "),
    (re.compile(r"\\(?:underline|underbrace|ensuremath|strut|checkmark|blacksquare|square|Box)(?![a-zA-Z])"), ""),
    (re.compile(r"\\bm\s*(?=\{)"), r"\\mathbf"),
    (re.compile(r"\\\\\s*\[\s*-?[\d.]{1,6}\s*(?:pt|em|ex|mm|cm|in)\s*\]"), r"\\\\ "),
    (re.compile(r"\\(q?quad)(?=[a-zA-Z])"), r"\\\1 "),
    (re.compile(r"(\d{0,20}\.\d{0,20})\\(?:bar|dot)\s*(\{?\d{1,20}\}?(?:\d{0,20}\\dot\s*\{?\d\}?)?)"), _cycle),
    (re.compile(r"(?<![\d.])(\d{0,20}\.\d{0,12}?)(\d{1,6}?)\2{2,20}" + _DOTS), _cycle),
    (re.compile(r"(?<![\d.])(\d{1,20}\.\d{0,12})\((\d{1,12})\)(?=\s*[%$]?\s*$)"), _cycle),
    (re.compile(r"(\.\d{3,60})" + _DOTS), r"\1"),
    (re.compile(r"(?:^|(?<=[=(+*/ -]))(?:\{\s*\})?[_^]\s*" + _N + r"\s*C\s*_?\s*" + _N), r"\\binom{\1}{\2}"),
    (re.compile(r"(?<![\w)\]}])C\s*\(\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\)"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?<=[\d)])\s*[xX]\s*(?=10\s*(?:\^|\*\*))"), r"\\times "),
    (re.compile(r"^\s*(\d{1,9})\s+to\s+(\d{1,9})\s*$"), r"\1:\2"),
    (re.compile(r"(?<=\d)\{:\}(?=\d)"), ":"),
)
_UNUSUAL = re.compile(
    r"\\(?:(?:text)?color|tiny|script|footnote|small|normalsize|[lL]arge|LARGE|[hH]uge|bfseries|itshape|[hv]space|under|ensure|strut"
    r"|checkmark|blacksquare|square|Box|bm|\\\s*\[|q?quad[a-zA-Z]|bar|dot)|\d\.\d*\(|\.\.\.|\d\s*\\[lc]?dots|C\s*[_({]|\d\s*[xX]\s*10|\d\s+to\s+\d|\{:\}"
)


def standard(text: str) -> str:
    r"""The text in the notation that the grammar reads.

    >>> standard(r"\color{blue}{0.\dot{3}}"), standard("]0, 1]")
    ('{0.\\overline{3}}', '(0, 1]')
    """
    if _UNUSUAL.search(text):
        for pattern, usual in _RULES:
            text = pattern.sub(usual, text)
    return _outward(text) if "[" in text and r"\sqrt" not in text else text


_LEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence),?\s+)?(?:(?:the|our|my)\s+)?(?:final\s+|correct\s+|required\s+)?"
    r"(?:answer|ans|result|solution|value)s?\s*(?:is\s*:|is\b|are\b|[:.=]|(?=\$))\s*",
    re.IGNORECASE,
)
_LEADING_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]{0,60})\}\s*:?")


def without_lead(text: str) -> str:
    r"""The text without words that only say that an answer follows.

    >>> without_lead(r"\text{The answer is } 204")
    '204'
    """
    command = _LEADING_TEXT.match(text)
    if command is not None and _LEAD.fullmatch(command[1].strip() + ("" if command[1].strip()[-1:] in ":=" else " ")):
        return text[command.end() :].strip() or text
    match = _LEAD.match(text)
    return (text[match.end() :].strip() or text) if match else text


_COMMA = re.compile(r"(-?\d{1,20}),(\d{1,20})")


def pointed(text: str, places: int = 1) -> str | None:
    """A decimal that is written with a comma, with a point; None for anything else, and for a list of round numbers.

    >>> pointed("2,74"), pointed("2, 74"), pointed("5,0")
    ('2.74', None, None)
    """
    match = _COMMA.fullmatch(text.strip().strip("$"))
    return f"{match[1]}.{match[2]}" if match and match[2].strip("0") and len(match[2]) >= places else None
