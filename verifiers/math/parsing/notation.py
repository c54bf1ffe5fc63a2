"""Strip words around an extracted answer that only announce it, and list alternative readings of a notation."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LEAD = re.compile(
    r"(?:it|this|that)\s+(?:is|equals|was)\s+(?!not\b|no\b)"
    r"|(?:therefore|thus|then|hence|simply|just|exactly|indeed|clearly|equal\s+to|given\s+by|found\s+to\s+be)\s*,?\s+(?=[\d$\\(-])"
    r"|(?:(?:so|thus|therefore|hence),?\s+)?(?:(?:the|our|my)\s+)?(?:final\s+|correct\s+|required\s+)?"
    r"(?:answer|ans|result|solution|value)s?\s*(?:is\s*:|is\b|are\b|[:.=]|(?=\$))\s*",
    re.IGNORECASE,
)
_LEADING_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]{0,60})\}\s*[:=]?")
_TITLE = re.compile(r"([A-Z][A-Za-z ]{2,40}:)\s*(?=[-\d$(\\\[{])")
_ANNOUNCEMENT = re.compile(r"(?:[a-z]{1,14}[ -]){1,8}(?:is|are|equals?|equal to)\b", re.IGNORECASE)
_CHANGING_WORDS = re.compile(
    r"\b(?:not|no|never|cannot|neither|nor|or|than|least|most|between|about|almost|nearly|if|maybe|perhaps|possibly|wrong|false|except|only"
    r"|incorrect|invalid|impossible|mistak\w*|naive|tempting|trap|rejected|excluded|half|twice|double|opposite|negative|inverse|reciprocal|complement|less|more|greater)\b|n't",
    re.IGNORECASE,
)


def _is_announcement(text: str) -> bool:
    """Whether words only announce a value: `the total number of ways is`; no word in them may change the value.

    >>> _is_announcement("the required sum of digits is"), _is_announcement("half of it is")
    (True, False)
    """
    return len(text) <= 80 and _ANNOUNCEMENT.fullmatch(text) is not None and not _CHANGING_WORDS.search(text)


def _is_value_label(text: str) -> bool:
    """Whether words with a colon only announce the value that follows: `Total:`.

    >>> _is_value_label("Maximum value:"), _is_value_label("Not the value:")
    (True, False)
    """
    named = re.fullmatch(r"[a-z]{3,20}(?: [a-z]{1,20}){0,4} ?:", text, re.IGNORECASE)
    return named is not None and not _CHANGING_WORDS.search(text) and not _GUESS_WORDS.search(text)


def strip_leading_words(text: str) -> str:
    r"""Strip words that only announce the answer.

    >>> strip_leading_words(r"\text{The answer is } 204")
    '204'
    """
    command = _LEADING_TEXT.match(text)
    if command is not None:
        said = command[0][command.start(1) - command.start() :].replace("}", "").strip()
        if _LEAD.fullmatch(said + ("" if said[-1:] in ":=" else " ")) or _is_announcement(said.rstrip(":= ")) or _is_value_label(said):
            return text[command.end() :].strip() or text
    titled = _TITLE.match(text)
    if titled is not None and _is_value_label(titled[1]):
        return text[titled.end() :].strip() or text
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
_GUESS_WORDS = re.compile(
    r"\b(?:guess|hope|hint|estimat|alternativ|other|lower|upper|bound|initial|first|intermediate|step|check|example|assume|suppose|let|where)\w*\b",
    re.IGNORECASE,
)


def extract_stated_formula(text: str) -> str | None:
    r"""Extract the one formula of a sentence that states it: `The solution is $x > 2$.`; None for anything else.

    >>> extract_stated_formula("Thus the required number is $17$."), extract_stated_formula("It is less than $17$.")
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
        if _OPENING.fullmatch(before) and _CLOSING.fullmatch(after) and not (_CHANGING_WORDS.search(before) or _GUESS_WORDS.search(before)):
            return value.strip()
    return None


_COMMA_DECIMAL = re.compile(r"(-?\d{1,20}),(\d{1,20})")


_BASE_TEN_LOG = re.compile(r"\\lg(?![a-zA-Z])|\\log\s*_\s*\{?\s*10(?!\d)\s*\}?")
_SCIENTIFIC = re.compile(r"(\d)e([-+]\d)(?![\d.])")
_WRITTEN_OUT_POWER = re.compile(r"(?<![\d.])(\d)e(\+\d)(?![\d.])")
"""`2e+1`: no program prints 20 so."""
_LETTER_DIFFERENCE = re.compile(r"-?\s?[a-zA-Z]{1,3}(?:\s{0,2}-\s{0,2}[a-zA-Z]{1,3}){1,8}")
_LETTERED_CHOICE = re.compile(r"(?:\$?\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?\(([A-J])\)\s*\}?\$?[.:]?\s{1,4}([^()]{1,80})")
_COUNTED_THING = re.compile(r"([$]?-?\d[\d,.]*(?:/\d+)?)\s+([a-zA-Z]{2,20}(?:\s+[a-zA-Z]{2,20}){1,4})")
_RATE_WITH_ARTICLE = re.compile(r"([$]?-?\d[\d,.]*(?:\s+[a-zA-Z]{2,20})?)\s+(?:an?|each|every)\s+(second|minute|hour|day|week|month|year)")
"""A numeral and words in plain text: `2 hot dogs`, whose short words could also be products of letters."""
_BARE_LOG = re.compile(r"\\log(?![a-zA-Z]|\s*_)")


def iter_alternative_readings(gold: str, answer: str) -> Iterator[tuple[str, str]]:
    r"""Yield other readings of gold and answer, such as a comma as the decimal point.

    The others: a bare logarithm with the other side's base ten, `2e-3` as 2 e - 3 if the gold contains the letter e, letters joined by a
    minus sign as a formula instead of a word with hyphens, the text after the letter of a choice, a rate with an article (`$5 a day`),
    and short words after a numeral as the name of what is counted.

    >>> list(iter_alternative_readings("2.75", "2,75")), list(iter_alternative_readings(r"\lg 2", r"\log 2"))
    ([('2.75', '2.75')], [('\\lg 2', '\\log_{10} 2')])
    """
    if (lettered := _LETTERED_CHOICE.fullmatch(answer.strip())) and not _CHANGING_WORDS.search(answer):
        yield gold, lettered[2]
    if rate := _RATE_WITH_ARTICLE.fullmatch(answer.strip()):
        yield gold, f"{rate[1]} per {rate[2]}"
    if (counted := _COUNTED_THING.fullmatch(answer.strip())) and any(len(word) > 2 for word in counted[2].split()):
        yield gold, rf"{counted[1]} \text{{ {counted[2]}}}"
    if (decimal := _convert_decimal_comma(answer)) is not None:
        yield gold, decimal
    if (decimal := _convert_decimal_comma(gold, 2)) is not None:
        yield decimal, answer
    if "e" in gold and _SCIENTIFIC.search(answer) and not _SCIENTIFIC.search(gold):
        yield gold, _SCIENTIFIC.sub(r"\1 e\2", answer)
    if "e+" in gold and _WRITTEN_OUT_POWER.search(gold):
        yield _WRITTEN_OUT_POWER.sub(r"\1 e\2", gold), _WRITTEN_OUT_POWER.sub(r"\1 e\2", answer)
    if _LETTER_DIFFERENCE.fullmatch(gold.strip(" $")):
        yield _space_letters(gold), _space_letters(answer) if _LETTER_DIFFERENCE.fullmatch(answer.strip(" $")) else answer
    if "\\l" in answer and "\\l" in gold:
        if _BASE_TEN_LOG.search(gold) and _BARE_LOG.search(answer):
            yield gold, _BARE_LOG.sub(r"\\log_{10}", answer)
        elif _BASE_TEN_LOG.search(answer) and _BARE_LOG.search(gold):
            yield _BARE_LOG.sub(r"\\log_{10}", gold), answer


def _space_letters(text: str) -> str:
    return re.sub("(?<=[a-zA-Z])(?=[a-zA-Z])", " ", text)


def _convert_decimal_comma(text: str, min_digits: int = 1) -> str | None:
    """Convert a decimal comma to a decimal point; None for anything else, and for a list of round numbers.

    >>> _convert_decimal_comma("2,74"), _convert_decimal_comma("2, 74"), _convert_decimal_comma("5,0")
    ('2.74', None, None)
    """
    match = _COMMA_DECIMAL.fullmatch(text.strip().strip("$"))
    if match and len(match[2]) == 3 and match[1].strip("-")[0] != "0" and len(match[1].strip("-")) <= 3:
        return None  # thousands
    return f"{match[1]}.{match[2]}" if match and match[2].strip("0") and len(match[2]) >= min_digits else None
