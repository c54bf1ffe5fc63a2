r"""Compare the unit of an answer with the unit that the question asks for, where the gold is a bare number.

A question may also ask for a count of dozens or thousands: then `7 dozen` is the 7 of the gold.

A bare gold fits any unit, but a question may name its own: "How many centimeters ...?" is not answered by `8 meters`. Only clear conflicts
count: another unit of the same quantity, or a percentage where the question names none.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rlvr.verifiers.math.parsing.parser import parse_answer
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError, Tree
from rlvr.verifiers.math.parsing.units import NUMBER_MULTIPLES, Measure, is_base_unit, parse_unit_label

_UNIT_WORDS = r"(?:(?:square|cubic)\s+)?[a-z]+(?:\s+per\s+[a-z]+)?"
_ASKED_UNIT = re.compile(
    rf"\bhow\s+(?:many|much)\s+(?:(?:more|fewer|less|total|additional|extra|whole|full)\s+)*({_UNIT_WORDS})"
    rf"|\b(?:number|amount|total)\s+of\s+({_UNIT_WORDS})|\bin\s+({_UNIT_WORDS})\s*[?.,]|\b(?:as|of)\s+(?:a\s+)?(percent(?:age)?)\b",
    re.IGNORECASE,
)
_ASKED_DIFFERENCE = re.compile(r"\bhow\s+(?:many|much)\b[^.?!]{0,200}?\b(more|fewer|less)\b", re.IGNORECASE)
_GIVEN_DIFFERENCE = re.compile(r"([$]?\d[\d,.]*(?:\s+[a-z]+){0,2})\s+(more|fewer|less)", re.IGNORECASE)
_STATED_UNIT = re.compile(r"\d\s+([a-z]+)", re.IGNORECASE)
_MULTIPLES = "|".join((*NUMBER_MULTIPLES, "time"))
_ASKED_MULTIPLE = re.compile(
    rf"\bhow\s+many\s+(?:(?:more|fewer|less|total|additional|extra|whole|full)\s+)*({_MULTIPLES})s?\b|\b(?:in|number\s+of)\s+({_MULTIPLES})s\b",
    re.IGNORECASE,
)
_GIVEN_MULTIPLE = re.compile(
    rf"(\d\}}?\s*+\$?(?:\s|\\[,;: ]|~)*+(?:\\(?:text|mathrm|textbf)\s*+\{{\s*+)?)({_MULTIPLES})s?\b(?:\s+of\b(?=\s+[a-z]))?", re.IGNORECASE
)
_EMPTY_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\s*\{\s*\}")
_PERCENTAGE_OF = re.compile(r"\d\s*(?:\\?%|\s+percent)\s*\$?\s+of\b")
"""`20% of 150` in a question is a part of the data, and asks for no percentage."""
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+|\n+")
_REQUEST_VERB = re.compile(r"\s*(?:express|find|compute|give|round|determine|calculate|write|answer)\b", re.IGNORECASE)
_PERCENT_WORD = re.compile(r"%|\bper\s?cent|\bpercentage|\bprobability|\bchance|\brate\b|\bfraction\b", re.IGNORECASE)


def explain_unit_conflict(gold: str, answer: str, prompt: str) -> str:
    """Explain why the unit of an answer is not that of the question; "" if there is no conflict.

    >>> explain_unit_conflict("8", "8 meters", "How many centimeters is it?")
    'its unit is meters, and the question asks for centimeters'
    >>> explain_unit_conflict("8", "8 liters", "The tank has 5 gallons, then 3 more. What is in the tank?")
    'its unit is liters, and the question has gallons'
    >>> explain_unit_conflict("8", "8 apples", "How many are left?")
    ''
    """
    if answer == gold or not prompt:
        return ""
    wanted, given = _parse(gold), _parse(answer)
    if wanted is None or given is None or wanted[0] == "unit":
        return ""
    if given[0] == "percent":
        is_whole = wanted[0] == "num" and wanted[2] == 1
        requests = _list_requests(prompt) if is_whole else []
        asks_percent = not requests or any(_PERCENT_WORD.search(_PERCENTAGE_OF.sub(" of", request)) for request in requests)
        return "" if asks_percent else "it is a percentage, and the question asks for none"
    mine = parse_unit_label(given[-1]) if given[0] == "unit" else None
    if mine is None or not _is_known(mine):
        return ""
    asked = {
        word.lower(): measure
        for request in _list_requests(prompt)
        for match in _ASKED_UNIT.finditer(request)
        for word in match.groups()
        if word and (measure := parse_unit_label(word.lower())) is not None and _is_known(measure)
    }
    if mine in asked.values():
        return ""
    other = next((word for word, measure in asked.items() if measure[0] == mine[0]), None)
    if other is not None:
        return f"its unit is {given[-1]}, and the question asks for {other}"
    stated = {word.lower(): measure for word in _STATED_UNIT.findall(prompt) if (measure := parse_unit_label(word.lower())) is not None}
    same = [word for word, measure in stated.items() if measure[0] == mine[0]]
    if not same or mine in stated.values() or mine[0][0][0] not in ("m", "g"):  # hours for minutes, dollars for cents may be meant
        return ""
    return f"its unit is {given[-1]}, and the question has {same[0]}"


def drop_requested_multiplier_word(gold: str, answer: str, prompt: str) -> str:
    """Drop the word dozen, thousand, times, ... behind the number of an answer, if the question asks for a count of them; "" if it does not.

    >>> drop_requested_multiplier_word("7", "7 dozen eggs", "How many dozens of eggs are there?")
    '7 eggs'
    >>> drop_requested_multiplier_word("7", "7 dozen eggs", "How many eggs are there?")
    ''
    """
    given = _GIVEN_MULTIPLE.search(answer)
    wanted = _parse(gold) if given is not None else None
    if given is None or wanted is None or wanted[0] not in ("num", "dec", "div"):
        return ""
    asked = {word.lower() for request in _list_requests(prompt) for words in _ASKED_MULTIPLE.findall(request) for word in words if word}
    if given[2].lower() not in asked:
        return ""
    return _EMPTY_TEXT.sub("", " ".join((answer[: given.end(1)] + answer[given.end() :].lstrip()).split())).strip()


def drop_requested_comparison_word(answer: str, prompt: str) -> str:
    """Drop the word more, fewer or less at the end of an answer, if the question asks for it; "" if it does not.

    >>> drop_requested_comparison_word("$2 more", "How much more is the red one?"), drop_requested_comparison_word("$2 more", "How much is it?")
    ('$2', '')
    """
    given = _GIVEN_DIFFERENCE.fullmatch(answer.strip())
    if given is None:
        return ""
    asked = {match[1].lower() for request in _list_requests(prompt) for match in _ASKED_DIFFERENCE.finditer(request)}
    return given[1] if given[2].lower() in asked else ""


def _list_requests(prompt: str) -> list[str]:
    """List the sentences of a prompt that ask for something."""
    return [sentence for sentence in _SENTENCE_END.split(prompt) if sentence.endswith("?") or _REQUEST_VERB.match(sentence)]


def _is_known(measure: Measure) -> bool:
    return bool(measure[0]) and all(is_base_unit(name) for name, _ in measure[0])


@lru_cache(maxsize=4096)
def _parse(text: str) -> Tree | None:
    try:
        return parse_answer(text)
    except (ParseError, LimitExceeded):
        return None
