"""Add a point to a rubric that an answer certainly meets or certainly lacks: used by the canary check of the LLM judge."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence

from rlvr.verifiers._decoys import DECOY_WORDS
from rlvr.verifiers._unicode import normalize_unicode

SIGN_NAMES = {"?": "a question mark", "!": "an exclamation mark", ",": "a comma", ";": "a semicolon", ":": "a colon",
         "(": "an opening round bracket", "%": "a percent sign", "+": "a plus sign", "=": "an equals sign"}  # fmt: skip
LIST_ITEM = re.compile(r"(\s*)(?:([-*\u2022])|(\d+)([.)]))\s+")
"""The beginning of a line of a list: its indentation, its bullet, or its number and what follows it."""
WORD = re.compile(r"(?<![\w'\u2019\\@/.<&-])[a-zA-Z]{4,}(?![\w'\u2019@/\\-]|\.\w)")
"""A separate word: not a part of `doesn't`, of a name such as `max_length`, of a LaTeX command or of an address."""
NUMBER = re.compile(r"(?<![\w.,])[1-9][0-9]{1,3}(?![\w.,])")
MAX_SPELLED_NUMBER = 20
"""Largest number that an answer may spell out as a word."""

RubricPoint = tuple[Sequence[str], str, str]
"""Wordings (the first says that something is so, the second that it is not), and what makes the first true and false."""


def make_met_and_lacking_rubrics(rubric: str, question: str, answer: str, seed: str) -> tuple[str, str]:
    """Return the rubric with one more point that the answer meets, and with a point in the same words that it lacks.

    Kind, wording and position are drawn from the seed and are equal in both, so the two can only be distinguished by reading the answer.

    >>> met, lacking = make_met_and_lacking_rubrics("It is polite.", "Who?", "Yes, please.", "seed")
    >>> met.startswith("It is polite. The ") or met.endswith(" It is polite."), met != lacking
    (True, True)
    """
    rng = random.Random(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest())
    kinds = list(POINT_MAKERS)
    rng.shuffle(kinds)
    wordings, true, false = next(found for kind in kinds if (found := kind(question, answer, rng)) is not None)
    place, negated = rng.random(), rng.random() < 0.5
    met, lacking = (false, true) if negated else (true, false)
    wording = wordings[negated]
    return _insert_point(rubric, wording.format(met), place), _insert_point(rubric, wording.format(lacking), place)


def _insert_point(rubric: str, point: str, position_fraction: float) -> str:
    """Insert a point into a rubric: as an item if the rubric is a list, else as a sentence before or after it."""
    lines = rubric.splitlines()
    found = [(at, item) for at, line in enumerate(lines) if (item := LIST_ITEM.match(line)) is not None]
    top = [(at, item) for at, item in found if item[1] == found[0][1][1]]  # the outer items
    if len(top) < 2:
        return f"{rubric.strip()} {point}" if position_fraction < 0.5 else f"{point} {rubric.strip()}"
    before, like = top[int(position_fraction * len(top))]
    lines.insert(before, like[0] + point)
    number = int(like[3] or 0) and int(top[0][1][3] or 1)
    for at, line in enumerate(lines if number else ()):
        item = LIST_ITEM.match(line)
        if item is not None and item[3] and item[1] == like[1]:
            lines[at] = line[: item.start(3)] + str(number) + line[item.end(3) :]
            number += 1
    return "\n".join(lines)


def _word_point(question: str, answer: str, rng: random.Random) -> RubricPoint | None:
    there = sorted({word.casefold() for word in WORD.findall(answer)})
    others = sorted({word.casefold() for word in WORD.findall(question)}) + rng.sample(DECOY_WORDS.split(), 6)
    absent = [word for word in others if word[:4] not in answer.casefold()]  # nor another form of the word
    if not there or not absent:
        return None
    wordings = ('The answer contains the word "{}".', 'The answer does not contain the word "{}".')
    return wordings, rng.choice(there), rng.choice(absent)


def _number_point(question: str, answer: str, rng: random.Random) -> RubricPoint | None:
    there = [int(number) for number in NUMBER.findall(answer) if int(number) > MAX_SPELLED_NUMBER]
    if not there:
        return None
    near = rng.choice(there)
    absent = [str(n) for n in range(max(MAX_SPELLED_NUMBER + 1, near // 2), 2 * near + 30) if str(n) not in answer]
    wordings = ("The answer contains the number {}.", "The answer does not contain the number {}.")
    return (wordings, str(near), rng.choice(absent)) if absent else None


def _sign_point(question: str, answer: str, rng: random.Random) -> RubricPoint | None:
    wide = normalize_unicode("NFKC", answer)
    there, absent = (
        [name for sign, name in SIGN_NAMES.items() if sign in answer],
        [name for sign, name in SIGN_NAMES.items() if sign not in wide],
    )
    if not there or not absent:
        return None
    return ("The answer contains {}.", "The answer does not contain {}."), rng.choice(there), rng.choice(absent)


def _first_letter_point(question: str, answer: str, rng: random.Random) -> RubricPoint | None:
    letter = answer.strip()[:1].upper()
    if not letter.isascii() or not letter.isalpha():
        return None
    others = [other for other in "ABCDEFGHILMNOPRSTUW" if other != letter]
    return ("The answer begins with the letter {}.", "The answer does not begin with the letter {}."), letter, rng.choice(others)


def _min_length_point(question: str, answer: str, rng: random.Random) -> RubricPoint:
    """Make a point about the minimum length; possible for every answer."""
    size = len(answer.strip())
    few, many = max(size // 3, min(size, 2)), 2 * size + 20
    low = max(few // 2, min(few, 2))
    return (
        ("The answer has at least {} characters.", "The answer has fewer than {} characters."),
        str(rng.randint(low, few)),
        str(rng.randint(many, 2 * many)),
    )


def _max_words_point(question: str, answer: str, rng: random.Random) -> RubricPoint | None:
    """Make a point about the maximum number of words: the met bound counts words generously, the other one strictly."""
    few = len(answer.split()) // 3
    many = 2 * (len(re.findall(r"[^\W_]+|[^\w\s]", answer)) + sum(letter > "\u0e00" for letter in answer)) + 20
    if few < 3:
        return None
    wordings = ("The answer has at most {} words.", "The answer has more than {} words.")
    return wordings, str(rng.randint(many, 2 * many)), str(rng.randint(2, few))


POINT_MAKERS: tuple[Callable[[str, str, random.Random], RubricPoint | None], ...] = (
    _word_point,
    _number_point,
    _sign_point,
    _first_letter_point,
    _min_length_point,
    _max_words_point,
)
"""The first two ask about content, the others about form, because rubrics have points of both sorts."""
