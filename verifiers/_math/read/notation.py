r"""The many ways to write one thing, made one: colours and sizes dropped, older commands and plain spellings made the usual ones.

Works on text, before there are tokens. Each rule is one regular expression with bounded repeats, and leaves all else alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_DOTS = r"(?:\.\.\.|\\[lc]?dots(?![a-zA-Z]))"
_UNIT = r"\\(?:text|mathrm)\s*\{\s*([a-zA-Z]{1,12}(?:\^\{?\d\}?)?)\s*\}"
_ALL = (
    r"(?:\\q?quad|\\[ ,;])?\s{0,4}(?:\\text\s*\{\s*,?\s*|,\s*)for\s+(?:all|any|every|some|each)"
    r"(?:\s+(?:real|fixed|arbitrary|numbers?|constants?)){0,3}\s*\}?\s*\$?[a-zA-Z]?"
)
_REALS = r"\\(?:mathbb\s*\{?\s*R\s*\}?|R(?![a-zA-Z]))"
_PRIME = r"(?:'|\^\s*\{?\s*\\prime\s*\}?)"
_N = r"\{?\s*(\d{1,6})\s*\}?"


def _cycle(match: re.Match[str]) -> str:
    r"""`0.\dot{1}4\dot{2}` marks the first and the last digit of what repeats; `0.333...` and `0.(3)` show it."""
    return rf"{match[1]}\overline{{{re.sub(r'[^0-9]', '', match[2])}}}"


def _excepted(match: re.Match[str]) -> str:
    """`all real numbers except x = 2` as a difference of sets; left alone when the words go on."""
    left_out = re.sub(r"\s*,?\s*(?:\\text\s*\{\s*and\s*\}|\band\b)\s*", ",", match[1])
    left_out = re.sub(r"^\s*[a-z]\s*=\s*|[$.\s]+$|^\s+", "", left_out)
    return rf"\mathbb{{R}}\setminus\{{{left_out}\}}" if not re.search(r"(?<!\\)[a-zA-Z]{2}", left_out) else match[0]


def _over_reals(match: re.Match[str]) -> str:
    r"""`f(x) = 2x, x \in R` says no more than `f(x) = 2x`; a parameter that runs over the reals is something else."""
    before = match.string[: match.start()]
    return "" if re.search(rf"\(\s*{match[1]}\s*\)\s*=|[<>]|\\[gl]e|\\ne(?![a-z])", before) else match[0]


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


_INTEGER = re.compile(
    r"(?:(?:where|with|for) )?(?:(?:any |every |all |some |each |an )?integers? (?:values of )?(\w)|(\w) (?:is )?(?:an |any )?integer)"
)


def _whole(match: re.Match[str]) -> str:
    """`for any integer k`, `where k is an integer`: the letter runs over the whole numbers; other words are left alone."""
    said = _INTEGER.fullmatch(" ".join(re.sub(r"\\text\s*\{|[{}$,.]", " ", match[1]).split()))
    return rf", {said[1] or said[2]} \in \mathbb{{Z}}" if said else match[0]


def _system(match: re.Match[str]) -> str:
    r"""A brace that only opens, `\left\{ ... \right.`, is a case distinction or a system, whatever stands behind it."""
    name, body = match[1], match[2]
    return rf"\begin{{cases}}{body}\end{{cases}}" if name == "array" else rf"\begin{{{name}}}{body}\end{{{name}}}"


_MONEY = {"US": r"\$", "USD": r"\$", "EUR": r"\text{euro}", "GBP": r"\text{pound}", "INR": r"\text{rupee}", "JPY": r"\text{yen}"}
_RULES: tuple[_Rule, ...] = (
    (re.compile(r"[\s,]{0,9}\\text\s*\{[\s,]{0,9}((?:where|with|for|any|integers?)[\s}].{0,60})$"), _whole),
    (re.compile(r"\^\s*\{?\s*(?:\\top|\\(?:math(?:sf|rm|bf|tt)|text)\s*\{?\s*T\s*\}?|\\intercal)\s*\}?"), "^T"),
    (
        re.compile(
            r"\\left\s*\\(?:\{|lbrace)\s*\\begin\s*\{(array|aligned|gathered|split|cases)\}(?:\s*\{[lcr|\s]{1,9}\})?"
            r"(.{1,600}?)\\end\s*\{\1\}\s*\\right\s*(?:\.|$)",
            re.DOTALL,
        ),
        _system,
    ),
    (
        re.compile(
            r"(\d{1,4})\s*\^\s*\{?\s*\\circ\s*\}?\s*(\d{1,2})\s*" + _PRIME + r"(?:\s*(\d{1,2})\s*(?:" + _PRIME + '|"){1,2})?(?!\\d)'
        ),
        lambda m: rf"({m[1]}+{m[2]}/60+{m[3] or 0}/3600)^\circ",
    ),
    (re.compile(r"\\mathbb\s*\{?\s*(?:N\s*\}?\s*\^\s*\{?\s*\*|[NZ]\s*\}?\s*(?:\^\s*\{?\s*\+|_\s*\{?\s*(?:\+|>\s*0)))\s*\}?"), r"\\N "),
    (re.compile(r"\\(?:text)?color(?:box)?\s*\{[a-zA-Z0-9!,. ]{1,30}\}"), ""),
    (re.compile(r"\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|itshape)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:hspace|vspace)\*?\s*\{[^{}]{0,60}\}"), " "),
    (re.compile(r"\\(?:underline|underbrace|ensuremath|strut|checkmark|blacksquare|square|Box)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:boxed|fbox|(?:bm|pmb|boldsymbol|math(?:bf|it|rm))(?=\s*\{[^{}]{0,200}\\[a-zA-Z]))\s*(?=\{)"), ""),
    (re.compile(r"\\(?:bm|pmb)\s*(?=\{)"), r"\\mathbf"),
    (re.compile(r"\\\\\s*\[\s*-?[\d.]{1,6}\s*(?:pt|em|ex|mm|cm|in)\s*\]"), r"\\\\ "),
    (re.compile(r"\\(q?quad)(?=[a-zA-Z])"), r"\\\1 "),
    (re.compile(r"(\d{0,20}\.\d{0,20})\\(?:bar|dot)\s*(\{?\d{1,20}\}?(?:\d{0,20}\\dot\s*\{?\d\}?)?)"), _cycle),
    (re.compile(r"(?<![\d.])(\d{0,20}\.\d{0,12}?)(\d{1,6}?)\2{2,20}" + _DOTS), _cycle),
    (re.compile(r"(?<![\d.])(\d{1,20}\.\d{0,12})\((\d{1,12})\)(?=\s*[%$]?\s*$)"), _cycle),
    (re.compile(r"(\.\d{3,60})" + _DOTS), r"\1"),
    (re.compile(r"(?:^|(?<=[=(+*/ -]))(?:\{\s*\})?[_^]\s*" + _N + r"\s*C\s*_?\s*" + _N), r"\\binom{\1}{\2}"),
    (re.compile(r"(?:^|(?<=[=(+*/ -]))(?:\{\s*\})?[_^]\s*" + _N + r"\s*P\s*_?\s*" + _N), r"\\frac{\1!}{(\1-\2)!}"),
    (re.compile(r"(?<=[\d)])\s*[xX]\s*(?=10\s*(?:\^|\*\*))"), r"\\times "),
    (re.compile(r"^\s*(\d{1,9})\s*(?:\\text\s*\{\s*to\s*\}|\sto\s)\s*(\d{1,9})\s*$"), r"\1:\2"),
    (re.compile(r"^\s*([a-zA-Z])\s*:\s*([a-z])\s*\\mapsto(?![a-zA-Z])"), r"\1(\2)="),
    (re.compile(r"\\text\s*\{\s*([a-zA-Z ]{1,30}?)\s+(and|or)\s*\}(?=\s*\d)"), r"\\text{\1}\\text{ \2 }"),
    (re.compile(r"\\(?:hat|vec|mathbf|boldsymbol|bm)\s*\{\s*\\?(?:hat\{|mathbf\{)?\s*([ijk])(?:math)?\s*\}?\s*\}"), r" \\ell_{v\1}"),
    (re.compile(r"\\mathbb\s*\{?\s*R\s*\}?\s*(?:\^\s*\{?\s*\+\s*\}?|_\s*\{?\s*(?:\+|>\s*0)\s*\}?)"), r"(0,\\infty)"),
    (re.compile(r"\\(?:hat|vec|mathbf|bm)\s*([ijk])(?![a-zA-Z])"), r" \\ell_{v\1}"),
    (re.compile(r"(?<![\d},.])(\d{1,9})\{,\}(\d{1,2}|\d{4,9})(?![\d.]|\{,\})"), r"\1.\2"),  # a comma that is set as a decimal point
    (re.compile(r"\\mathbb\s*\{?\s*C\s*\}?"), r"\\C "),
    (re.compile(r"^\s*(.{1,60}?)\s*(?:\\text\s*\{\s*(?:R|remainder)\s*\}|(?<=\d)\s+R|remainder)\s*(-?\d{1,9})\s*$"), r"\1 + \2 R_{est}"),
    (re.compile(r"\b(sq|cu)\."), r"\1"),
    (re.compile(r"(?<=[\dA-F])\s*(?:\\text\s*\{\s*)?\(\s*(?:in\s+)?base[\s-]+(\d{1,2})\s*\)\s*\}?"), r"_{\1}"),
    (re.compile(r"\\(?:text|mathrm)\s*\{([0-9A-F]{1,12})\}(?=_\{?1[1-6])"), r"\1"),
    (re.compile(r"\\[dt]?frac\s*\{\s*" + _UNIT + r"\s*\}\s*\{\s*" + _UNIT + r"\s*\}"), r"\\text{\1}/\\text{\2}"),
    (re.compile(r"^\s*\{(\s*[a-zA-Z]\s*(?:\\in\s*\\[a-zA-Z]{1,9}(?:\{[A-Z]\})?\s*)?(?:\||:|\\mid).{1,200})\}\s*$"), r"\\{\1\\}"),
    (
        re.compile(
            r"^(?:\\text\s*\{)?\s*all\s+real(?:s|\s+numbers)\s+(?:except|but|excluding|other\s+than)(?:\s+for)?\s*\}?([-\s\w\\{}/,=.$]{1,80})$"
        ),
        _excepted,
    ),
    (re.compile(r"^\s*(\d{1,6})\s*C\s*(\d{1,6})\s*$"), r"\\binom{\1}{\2}"),
    (re.compile(_ALL + r"(?:\s*\\in\s*" + _REALS + r")?\s*\}?[\s$.]*$"), ""),
    (re.compile(r"\s*,\s*([a-zA-Z])\s*\\in\s*" + _REALS + r"[\s$.]*$"), _over_reals),
    (re.compile(r"^\\text\s*\{\s*[Aa]ll(?:\s+real)?(?:\s+numbers)?\s*\}\s*(?=[a-zA-Z]\s*(?:\\(?:[gl]e|ne)|[<>]))"), ""),
    (re.compile(r"^\s*\\(?:therefore|because|implies|(?:Long)?[rR]ightarrow)(?![a-zA-Z])\s*"), ""),
    (re.compile(r"(?:\\text\s*\{\s*)?\b(USD|EUR|GBP|INR|JPY|US(?=\\?\$))\s*\}?\s*\\?\$?\s*(?=\d)"), lambda m: _MONEY[m[1]]),
    (re.compile(r"\bper\s+cent\b"), "percent"),
    (re.compile(r"(?:\\text\s*\{\s*)?\bRs\.?\s*\}?\s*(?=\d)"), r"\\text{rupee}"),
    (re.compile(r"^\s*(\d{1,6})\s*\^?\{?(?:\\(?:text|mathrm)\s*\{)?\s*(?:st|nd|rd|th)\s*\}?\}?\s*$"), r"\1"),
    (re.compile(r"(?<=\d)\{:\}(?=\d)"), ":"),
    (re.compile(r"(?:\\[ ,;:]|\\q?quad|\s){0,8}\(\s*([a-zA-Z])\s*\\in\s*([^()]{1,30})\)(?=[\s.$]*$)"), r", \1 \\in \2"),
    (re.compile(r"\\text\s*\{\s{0,4},?\s{0,4}(?:where|with|for(?: any| all| some| every)?)\s*\}\s*(?=[a-zA-Z]\s*\\in)"), ", "),
)
_SIGNS = (
    r"integer", r"mathbb\s*\{?\s*C", r"[{ ]R\s*\}?\s*\d", r"remainder", r"\\(?:hat|vec|mathbf|bm)\s*[ijk](?![a-zA-Z])",
    r"\d\{,\}\d", r"\^\s*\{?\s*\\(?:top|math|text|inter)",
    r"\\(?:(?:text)?color|tiny|script|footnote|small|normalsize|[lL]arge|LARGE|[hH]uge"
    r"|bfseries|itshape|[hv]space|under|ensure|strut|checkmark|blacksquare|square|Box|bm|pmb|boldsymbol"
    r"|math(?:bf|it|rm)\s*\{[^{}]{0,200}\\|f?box(?:ed)?\s*\{|\\\s*\[|q?quad[a-zA-Z]|bar|dot|(?:hat|vec|mathbf)\s*\{[^{}]{0,9}[ijk])",
    r"\d\.\d*\(", r"\.\.\.", r"\d\s*\\[lc]?dots", r"[CP]\s*[_{]", r"\d\s*[xX]\s*10", r"\d\s*(?:\\text\s*\{\s*to|\sto\s)",
    r"\\mapsto", r"(?:and|or)\s*\}\s*\d", r"frac\s*\{\s*\\(?:text|mathrm)", r"^\s*\{\s*[a-zA-Z]", r"[Aa]ll\s+real",
    r"[Aa]ll\s*\}", r"for\s+(?:all|any|every|some|each)", r"\\in\s*\\(?:mathbb\s*\{?\s*)?R", r"Rs", r"(?:st|nd|rd|th)\b",
    r"\d\s*C\s*\d", r"\\left\s*\\(?:\{|lbrace)\s*\\begin", r"circ\s*\}?\s*\d", r"[RNZ}]\s*[\^_]\s*\{?\s*[+>*]",
    r"therefore|because|implies|ightarrow", r"US[D$\\]|EUR|GBP|INR|JPY", r"per\s+cent\b",
    r"\b(?:sq|cu)\.", r"\(\s*(?:in\s+)?base", r"\}_\{?1", r"\{:\}", r"(?:\(|\}\s*)[a-zA-Z]\s*\\in(?![a-zA-Z])",
)  # fmt: skip
_UNUSUAL = re.compile("|".join(_SIGNS))
"""One of these stands in whatever a rule changes; looking for them first is cheaper."""


def standard(text: str) -> str:
    r"""The text in the notation that the grammar reads.

    >>> standard(r"\color{blue}{0.\dot{3}}"), standard("]0, 1]")
    ('{0.\\overline{3}}', '(0, 1]')
    """
    if "  " in text or "\n" in text or "\t" in text:
        text = " ".join(text.split())  # long runs of spaces are what makes a regular expression slow
    if _UNUSUAL.search(text):
        for pattern, usual in _RULES:
            text = pattern.sub(usual, text)
    return _outward(text) if ("[" in text or "]" in text) and r"\sqrt" not in text else text


_LEAD = re.compile(
    r"(?:it|this|that)\s+(?:is|equals|was)\s+(?!not\b|no\b)"
    r"|(?:therefore|thus|then|hence|simply|just|exactly|indeed|clearly|equal\s+to|given\s+by|found\s+to\s+be)\s*,?\s+(?=[\d$\\(-])"
    r"|(?:(?:so|thus|therefore|hence),?\s+)?(?:(?:the|our|my)\s+)?(?:final\s+|correct\s+|required\s+)?"
    r"(?:answer|ans|result|solution|value)s?\s*(?:is\s*:|is\b|are\b|[:.=]|(?=\$))\s*",
    re.IGNORECASE,
)
_LEADING_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]{0,60})\}\s*[:=]?")
_STATES = re.compile(r"(?:[a-z]{1,14}[ -]){1,8}(?:is|are|equals?|equal to)\b", re.IGNORECASE)
_TURNS = re.compile(
    r"\b(?:not|no|never|cannot|neither|nor|or|than|least|most|between|about|almost|nearly|if|maybe|perhaps|possibly|wrong|false|except|only"
    r"|incorrect|invalid|impossible|mistak\w*|naive|tempting|trap|rejected|excluded|half|twice|double|opposite|negative|inverse|reciprocal|complement|less|more|greater)\b|n't",
    re.IGNORECASE,
)


def states(text: str) -> bool:
    """Whether words say nothing but that a value follows: `the total number of ways is`; no word in them may turn the value.

    >>> states("the required sum of digits is"), states("half of it is")
    (True, False)
    """
    return len(text) <= 80 and _STATES.fullmatch(text) is not None and not _TURNS.search(text)


def entitles(text: str) -> bool:
    """Whether words with a colon only name the value that follows: `Total:`.

    >>> entitles("Maximum value:"), entitles("Not the value:")
    (True, False)
    """
    named = re.fullmatch(r"[a-z]{3,20}(?: [a-z]{1,20}){0,4} ?:", text, re.IGNORECASE)
    return named is not None and not _TURNS.search(text) and not _GUESSED.search(text)


def without_lead(text: str) -> str:
    r"""The text without words that only say that an answer follows.

    >>> without_lead(r"\text{The answer is } 204")
    '204'
    """
    command = _LEADING_TEXT.match(text)
    if command is not None:
        said = command[0][command.start(1) - command.start() :].replace("}", "").strip()
        if _LEAD.fullmatch(said + ("" if said[-1:] in ":=" else " ")) or states(said.rstrip(":= ")) or entitles(said):
            return text[command.end() :].strip() or text
    match = _LEAD.match(text)
    return (text[match.end() :].strip() or text) if match else text


_SPAN = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_OPENING = re.compile(
    r"(?:[a-z' -]{1,80}\s(?:is|are|be|equals|get|gets|obtain|have|find|gives?|becomes)(?:\s+that)?"
    r"|therefore|thus|hence|so|here is [a-z ]{1,40}|[a-z ]{1,30}(?=[:=])|answer)\s*[,:=]?",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"(?:(?:is|as|for) (?:the|our|my) [a-z ]{0,20}(?:answer|solution|result|value|solution set)s?)?(?:,? as (?:required|desired|needed))?",
    re.IGNORECASE,
)
_GUESSED = re.compile(r"\b(?:guess|hope|bound|initial|first|intermediate|step|check|example|assume|suppose|let|where)\w*\b", re.IGNORECASE)


def stated(text: str) -> str | None:
    r"""The one formula of one sentence that states it: `The solution is $x > 2$.`; None when more or less is said.

    >>> stated("Thus the required number is $17$."), stated("It is less than $17$.")
    ('17', None)
    """
    text = text.strip()
    spans = list(_SPAN.finditer(text)) if len(text) <= 300 else []
    forms = []
    if len(spans) == 1:
        value = next(part for part in spans[0].groups() if part)
        forms.append((text[: spans[0].start()], value, text[spans[0].end() :]))
    match = re.fullmatch(r"(.{3,200}\s(?:is|are|equals|be))\s+([-\d$\\(\[].{0,80}?)", text.rstrip("."), re.DOTALL)
    if match and 1 <= len(spans) <= 3:
        forms.append((_SPAN.sub("it", match[1]), match[2].strip("$"), ""))
    for before, value, after in forms:
        before, after = " ".join(before.split()), after.strip().rstrip(".!").strip()
        if _OPENING.fullmatch(before) and _CLOSING.fullmatch(after) and not (_TURNS.search(before) or _GUESSED.search(before)):
            return value.strip()
    return None


_COMMA = re.compile(r"(-?\d{1,20}),(\d{1,20})")


_COMMON = re.compile(r"\\lg(?![a-zA-Z])|\\log\s*_\s*\{?\s*10(?!\d)\s*\}?")
_BARE = re.compile(r"\\log(?![a-zA-Z]|\s*_)")


def readings(gold: str, text: str) -> Iterator[tuple[str, str]]:
    r"""Gold and answer as they may be read besides: a comma as the decimal point, a bare logarithm to the other one's base of ten.

    >>> list(readings("2.75", "2,75")), list(readings(r"\lg 2", r"\log 2"))
    ([('2.75', '2.75')], [('\\lg 2', '\\log_{10} 2')])
    """
    if (decimal := pointed(text)) is not None:
        yield gold, decimal
    if (decimal := pointed(gold, 2)) is not None:
        yield decimal, text
    if "\\l" in text and "\\l" in gold:
        if _COMMON.search(gold) and _BARE.search(text):
            yield gold, _BARE.sub(r"\\log_{10}", text)
        elif _COMMON.search(text) and _BARE.search(gold):
            yield _BARE.sub(r"\\log_{10}", gold), text


def pointed(text: str, places: int = 1) -> str | None:
    """A decimal that is written with a comma, with a point; None for anything else, and for a list of round numbers.

    >>> pointed("2,74"), pointed("2, 74"), pointed("5,0")
    ('2.74', None, None)
    """
    match = _COMMA.fullmatch(text.strip().strip("$"))
    if match and len(match[2]) == 3 and match[1].strip("-")[0] != "0" and len(match[1].strip("-")) <= 3:
        return None  # thousands
    return f"{match[1]}.{match[2]}" if match and match[2].strip("0") and len(match[2]) >= places else None
