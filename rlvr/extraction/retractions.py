r"""Detect alternatives beside a declaration, and retractions or later results after it.

Each table has a row for each wording, with one example in which 42 is declared and does not count.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rlvr.extraction.extraction import Extraction

RETRACTION_WINDOW_CHARS = 2000
"""How many characters after a declaration are read for a retraction."""

_PLAIN_NUMERAL = re.compile(r"[\s$\\(*]*(-?\d[\d,]*(?:\.\d+)?(?:/\d+)?)\s?(\\?%)?[\s$*.)\\]*")
_DIGITS = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_OR_WORDS = r"(?:\b(?:or|oder|ou|o|oppure|или|або)\b|或者?|还是|または|あるいは|또는)"
_MAYBE_WORDS = r"(?:(?:maybe|perhaps|possibly|even|also|vielleicht|quizás|tal\s+vez|peut-être|возможно|也许|可能)\s+)?"
_NUMERAL = r"[$\\(*]{0,4}-?\d[\d,]*(?:\.\d+)?(?:/\d+)?"
_VALUE = (
    rf"(?:\$[^$\n]{{1,60}}\$|\\\([^\n]{{1,60}}?\\\)|{_NUMERAL}\s?(?:\\?%)?"
    r"|\(?(?-i:[A-J])\)?(?!\w)|\b(?:yes|no|true|false|none)\b)"
)
_ALTERNATIVE_AFTER = re.compile(rf"[\s$)\]*.,\\]{{0,12}}{_OR_WORDS}\s{{0,4}}{_MAYBE_WORDS}[*\s]{{0,4}}(?P<value>{_VALUE})", re.IGNORECASE)
_ALTERNATIVE_BEFORE = re.compile(
    rf"(?P<value>{_VALUE})(?:\s[a-z]{{1,12}}(?=\s))?[\s).*,]{{0,6}}{_OR_WORDS}\s{{0,4}}{_MAYBE_WORDS}[\s:$\\(*]{{0,8}}$", re.IGNORECASE
)
_OR_HINTS = ("or", " o ", "ou", "od", "op", "или", "або", "或", "还是", "または", "あるいは", "또는")

_RESTATED_AFTER = re.compile(
    rf"[^.!?\n\d]{{0,30}}?\b(?:i\.\s?e\.|that\s+is|that\s+means|in\s+other\s+words)[,:]?\s{{0,4}}(?P<value>{_NUMERAL})[$)*\s]{{0,4}}(?:\Z|[.!](?:\s|\Z)|\n)",
    re.IGNORECASE,
)
"""The same in other words, with a number that has no unit: `\\boxed{17} pairs, i.e. 34`."""

RETRACTION_PATTERNS = (
    (r"wait\b", "Wait, I forgot to subtract 1. The result is 41."),
    (r"hmm+\b", "Hmm, that double counts one case. So the correct value is 41."),
    (r"hold\s+on\b", "Hold on, that can't be right."),
    (r"oops\b", "Oops, that's wrong; the total is 43."),
    (r"(?:I'm\s+)?sorry\b", "Sorry, I meant 43."),
    (r"scratch\s+that\b", "Scratch that. It is 43."),
    (r"correction\b", "Correction: 43."),
    (r"on\s+second\s+thought\b", "On second thought, it is 43."),
    (r"I\s+(?:forgot|misread|made\s+an?\s+(?:\w+\s+)?(?:mistake|error))\b", "I misread the question. It must be 43."),
)
"""Beginnings of a sentence that retracts the answer: (pattern, example after an answer of 42)."""

CONTRAST_PATTERNS = (
    (r"however\b", "However, since order matters, we get 84."),
    (r"but\b", "But that double counts, so it is really 21."),
    (r"actually\b", "Actually, it is 43."),
    (r"in\s+fact\b", "In fact, the total is 43."),
)
"""Contrast words that retract the answer if their sentence claims another number: (pattern, example after an answer of 42)."""

LATER_DENIAL_PATTERNS = (
    (r"(?:can't|cannot|can\s+not|couldn't)\s+be\b", "Wait, that cannot be."),
    (r"(?:\bnot|n't)\s+(?:right|correct|true|valid)\b", "Hmm, this is not right."),
    (r"\b(?:wrong|incorrect|mistaken?|error|misread|forgot)\b", "Wait, I made a mistake."),
    (r"\bno\s+(?:such|solution|answer)\b", "Wait. There is no solution."),
    (r"\bdouble[-\s]counts?\b", "Hmm, this double counts."),
)
"""Denials in a sentence that retracts the answer: (pattern, example after an answer of 42)."""

LATER_RESULT_PATTERNS = (
    (r"\bthe\s+(?:(?:correct|actual|real|true|right|final)\s+)?(?:result|output)\s+(?:is|should\s+be|equals)", "The result is 41."),
    (
        r"\bthe\s+(?:correct|actual|real|true|right|final)\s+(?:value|total|count|number)\s+(?:is|equals)",
        "So the correct value is 41.",
    ),
    (r"\b(?:I|we)\s+should\s+(?:get|have\s+(?:got|gotten|found))", "We should get 41."),
)
"""Declarations of another result after the answer: (pattern before the number, example after an answer of 42)."""

_CLAIMED_NUMBER = r"\s{0,4}:?\s{0,4}(?:really|actually|only|in\s+fact)?\s{0,4}" + f"(?P<value>{_NUMERAL})"
_RETRACTION_START = re.compile(
    rf"(?:\A|[.!?,;:)\n])[\s$*_>#(-]{{0,8}}(?:(?P<back>(?:oh|no|ah),?\s+)?(?:{'|'.join(p for p, _ in RETRACTION_PATTERNS)})"
    rf"|(?P<turn>{'|'.join(p for p, _ in CONTRAST_PATTERNS)}))",
    re.IGNORECASE,
)
_OTHER_NUMBER_CLAIM = re.compile(
    r"\b(?:we|I|it|that|this|answer|total|result|value|count|calculation|number)\b[^.!?\n]{0,24}?"
    rf"\b(?:is|be|get|gets|gives?|makes?|meant|equals?|becomes?|comes?\s+to){_CLAIMED_NUMBER}",
    re.IGNORECASE,
)
_CONDITION_WORDS = re.compile(r"\b(?:if|were|would|had|unless|when|suppose|assum\w+|without|instead\s+of)\b", re.IGNORECASE)
_LATER_DENIAL = re.compile("|".join(pattern for pattern, _ in LATER_DENIAL_PATTERNS), re.IGNORECASE)
_LATER_RESULT = re.compile(f"(?:{'|'.join(pattern for pattern, _ in LATER_RESULT_PATTERNS)}){_CLAIMED_NUMBER}", re.IGNORECASE)
_SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")
_CLOSING_MARKS = " \t\r\n$.)*\\]}"


def parse_number(text: str) -> Fraction | None:
    """Parse a plain numeral; None for anything else.

    >>> parse_number("$1,000$"), parse_number("50%"), parse_number("x")
    (Fraction(1000, 1), Fraction(1, 2), None)
    """
    match = _PLAIN_NUMERAL.fullmatch(text) if len(text) <= 60 else None
    return None if match is None else _parse_fraction(match[1], bool(match[2]))


def _parse_fraction(digits: str, percent: bool = False) -> Fraction | None:
    try:
        value = Fraction(digits.replace(",", "").rstrip("/"))
    except (ValueError, ZeroDivisionError):
        return None
    return value / 100 if percent else value


def is_same_value(left: str, right: str) -> bool:
    """Whether two declarations in running text have the same value.

    >>> is_same_value("42", "42 apples"), is_same_value("$x+1$", "x + 1"), is_same_value("42", "43"), is_same_value("1/2", "0.5")
    (True, True, False, True)
    """
    first, second = (re.sub(r"[\s$*]|\\[()]", "", text).rstrip(".,;:!") for text in (left, right))
    if first == second or first == second.rpartition("=")[2] or second == first.rpartition("=")[2]:
        return True
    value, other = parse_number(left), parse_number(right)
    if value is not None and other is not None:
        return value == other
    words = re.match(r"[\s$\\(*]{0,4}(-?\d[\d,]*(?:\.\d+)?(?:/\d+)?)[$*)]{0,3}[,:;]?\s+[^\W\d_]", right)
    if words and value is not None and value == _parse_fraction(words[1].rstrip(",")):
        return True
    return bool(first) and re.match(rf"[$*(\s]*{re.escape(left.strip())}[$*)]*[,:;]?\s+[^\W\d_]", right) is not None


def is_closing_punctuation(after: str) -> bool:
    r"""Whether a text has only the punctuation that closes a sentence or a formula.

    >>> is_closing_punctuation("$.\n"), is_closing_punctuation(" or 8")
    (True, False)
    """
    return not after.strip(_CLOSING_MARKS)


_ANSWER_TAG = re.compile(r"</?answer>", re.IGNORECASE)


def reject_alternatives(extraction: Extraction, text_before: str, text_after: str) -> Extraction:
    r"""Return the extraction, or no answer if the words beside the declaration offer another value: `\boxed{7} or 8`, `41 or \boxed{42}`.

    >>> reject_alternatives(Extraction("7", "in the box"), "It is ", " or 8.").candidates
    ('7', '8')
    """
    text_after = _ANSWER_TAG.sub("", text_after[:200]) if "<" in text_after[:200] else text_after
    near = text_before[-30:].lower()
    restated = None if is_closing_punctuation(text_after) else _RESTATED_AFTER.match(text_after[:120])
    if restated is not None and parse_number(extraction.text or "") not in (None, parse_number(restated["value"])):
        return Extraction(None, "it is put in other words as another value", (extraction.text or "", restated["value"].strip(" $*.,")))
    earlier = None
    for hint in _OR_HINTS:
        if hint in near:
            earlier = _ALTERNATIVE_BEFORE.search(text_before[-100:])
            break
    for match in (None if is_closing_punctuation(text_after) else _ALTERNATIVE_AFTER.match(text_after[:100]), earlier):
        if match is not None and not is_same_value(extraction.text or "", match["value"]):
            return Extraction(None, "another value is offered next to it", (extraction.text or "", match["value"].strip(" $*.,")))
    return extraction


def reject_retracted(extraction: Extraction, text_after: str) -> Extraction:
    """Return the extraction, or no answer if the text after the declaration retracts it.

    >>> reject_retracted(Extraction("42", "in the box"), " Wait, I forgot to subtract 1. The result is 41.").text is None
    True
    """
    if extraction.text is None or is_closing_punctuation(text_after):
        return extraction
    text_after, mine = text_after[:RETRACTION_WINDOW_CHARS], parse_number(extraction.text)
    for start in _RETRACTION_START.finditer(text_after):
        rest = text_after[start.end() : start.end() + 600]
        why = _find_contrary_number(rest, mine) if start["turn"] else _find_replacement(rest, mine)
        if why:
            return Extraction(None, "the text after it takes it back", (extraction.text, why))
    for result in _LATER_RESULT.finditer(text_after) if mine is not None else ():
        sentence = text_after[max(0, result.start() - 60) : result.end()]
        if not is_same_value(extraction.text, result["value"]) and not _CONDITION_WORDS.search(_SENTENCE_BREAK.split(sentence)[-1]):
            return Extraction(None, "another result is declared after it", (extraction.text, result["value"]))
    return extraction


def _find_contrary_number(rest: str, answer_value: Fraction | None) -> str:
    """Find another number that the rest of a sentence claims; "" if there is none."""
    sentence = _SENTENCE_BREAK.split(rest, maxsplit=1)[0]
    claim = _OTHER_NUMBER_CLAIM.search(sentence) if answer_value is not None and not _CONDITION_WORDS.search(sentence) else None
    return claim["value"] if claim is not None and parse_number(claim["value"]) not in (answer_value, None) else ""


def _find_replacement(rest: str, answer_value: Fraction | None) -> str:
    """Find what the rest of a text gives in place of the answer; "" if it returns to the answer."""
    last = _SENTENCE_BREAK.split(rest.strip())[-1]
    numbers = _DIGITS.findall(last) or _DIGITS.findall(rest)
    if _LATER_DENIAL.search(last) or (not _DIGITS.search(last) and _LATER_DENIAL.search(rest)):
        return last.strip()[:80]
    return numbers[-1] if numbers and answer_value is not None and _parse_fraction(numbers[-1].rstrip(",")) != answer_value else ""
