"""One more point for a rubric, that an answer surely meets or surely lacks: the canary of `judge` asks with both."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence

from rlvr.verifiers._decoys import WORDS

SIGNS = {"?": "a question mark", "!": "an exclamation mark", ",": "a comma", ";": "a semicolon", ":": "a colon", "(": "a round bracket",
         "%": "a percent sign", "+": "a plus sign", "=": "an equals sign", '"': "a double quotation mark"}  # fmt: skip
ALIKE = {
    "?": "\uff1f\u061f\u037e\u00bf\u2047\u2048\u2049",
    "!": "\uff01\u00a1\u203c\u2048\u2049",
    ",": "\uff0c\u060c\u3001\u201a",
    ";": "\uff1b\u061b\u037e",
    ":": "\uff1a\u2236",
    "(": ")\uff08\uff09\u207d\u207e",
    "%": "\uff05\u066a\u2030",
    "+": "\uff0b\u207a\u00b1",
    "=": "\uff1d\u2260\u2261\u2264\u2265",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02\u2033\u300c\u300d\u300e\u300f",
}
"""What a reader may take for the sign. An answer that has one of these is not asked about the sign as one that it lacks."""
DOUBLED = ("''", "``", "&quot;")
SPELLED = re.compile(
    r"\b(one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(thir|four|fif|six|seven|eigh|nine)teen|"
    r"(twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|dozen|half)s?\b",
    re.IGNORECASE,
)
"""Numbers in words. An answer that has one is not asked for a number, because it may have the one that was drawn as lacking."""
ITEM = re.compile(r"(\s*)(?:([-*\u2022])|(\d+)([.)]))\s+")
"""The beginning of a line of a list: its indentation, its bullet, or its number and what follows it."""
WORD = re.compile(r"(?<![\w'\u2019\\@/.<&-])[a-zA-Z]{4,}(?![\w'\u2019@/\\-]|\.\w)")
"""A word by itself: not a part of `doesn't`, of a name such as `max_length`, of a command of LaTeX, of an address."""
NUMBER = re.compile(r"(?<![\w.,])[0-9]{1,4}(?![\w.,])")

Kind = tuple[Sequence[str], str, str]
"""Wordings (the first says that something is so, the second that it is not), and what makes the first true and false."""


def more(rubric: str, question: str, answer: str, seed: str) -> tuple[str, str]:
    """The rubric with one more point that the answer meets, and with one in the same words that it lacks.

    Kind, wording and place are drawn by the seed. They are the same in both, so that only who reads the answer can tell the two apart.

    >>> met, lacking = more("It is polite.", "Who?", "Yes, please.", "seed")
    >>> met.startswith("It is polite. The ") or met.endswith(" It is polite."), met != lacking
    (True, True)
    """
    dice = random.Random(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest())
    kinds = list(KINDS)
    dice.shuffle(kinds)
    wordings, true, false = next(found for kind in kinds if (found := kind(question, answer, dice)) is not None)
    place, negated = dice.random(), dice.random() < 0.5
    met, lacking = (false, true) if negated else (true, false)
    wording = wordings[negated]
    return _added(rubric, wording.format(met), place), _added(rubric, wording.format(lacking), place)


def _added(rubric: str, point: str, place: float) -> str:
    """The rubric with a point in it: as an item, if it is a list, else as a sentence before or after it."""
    lines = rubric.splitlines()
    found = [(at, item) for at, line in enumerate(lines) if (item := ITEM.match(line)) is not None]
    top = [(at, item) for at, item in found if item[1] == found[0][1][1]]  # the outer items
    if len(top) < 2:
        return f"{rubric.strip()} {point}" if place < 0.5 else f"{point} {rubric.strip()}"
    before, like = top[int(place * len(top))]
    lines.insert(before, like[0] + point)
    number = int(like[3] or 0) and int(top[0][1][3] or 1)
    for at, line in enumerate(lines if number else ()):
        item = ITEM.match(line)
        if item is not None and item[3] and item[1] == like[1]:
            lines[at] = line[: item.start(3)] + str(number) + line[item.end(3) :]
            number += 1
    return "\n".join(lines)


def _word(question: str, answer: str, dice: random.Random) -> Kind | None:
    there = sorted({word.casefold() for word in WORD.findall(answer)})
    others = sorted({word.casefold() for word in WORD.findall(question)}) + dice.sample(WORDS.split(), 6)
    absent = [word for word in others if word not in answer.casefold()]
    if not there or not absent:
        return None
    return (
        ('The answer contains the word "{}".', 'The answer does not contain the word "{}".'),
        dice.choice(there),
        dice.choice(absent),
    )


def _number(question: str, answer: str, dice: random.Random) -> Kind | None:
    there = NUMBER.findall(answer)
    if not there or SPELLED.search(answer) or any(sign.isnumeric() and not sign.isascii() for sign in answer):
        return None
    near, joined = int(dice.choice(there)), re.sub(r"(?<=\d)[\s,._'](?=\d)", "", answer)  # 1,000 is the number 1000
    absent = [str(n) for n in range(max(2, near // 2), 2 * near + 30) if str(n) not in answer and str(n) not in joined]
    wordings = ("The answer contains the number {}.", "The answer does not contain the number {}.")
    return (wordings, str(near), dice.choice(absent)) if absent and str(near) in there else None


def _sign(question: str, answer: str, dice: random.Random) -> Kind | None:
    there = [name for sign, name in SIGNS.items() if sign in answer]
    absent = [name for sign, name in SIGNS.items() if not _like(sign, answer)]
    if not there or not absent:
        return None
    return ("The answer contains {}.", "The answer does not contain {}."), dice.choice(there), dice.choice(absent)


def _like(sign: str, answer: str) -> bool:
    """Whether an answer has a sign, or one that looks like it."""
    return any(one in answer for one in (sign, *ALIKE[sign], *(DOUBLED if sign == '"' else ())))


def _first(question: str, answer: str, dice: random.Random) -> Kind | None:
    letter = answer.strip()[:1]
    if not letter.isascii() or not letter.isalpha():
        return None
    letter = letter.upper()
    others = [other for other in "ABCDEFGHILMNOPRSTUW" if other != letter]
    return ("The answer begins with the letter {}.", "The answer does not begin with the letter {}."), letter, dice.choice(others)


def _least(question: str, answer: str, dice: random.Random) -> Kind:
    """It can be asked of every answer."""
    few, many = _counts(answer)
    few = max(1, few)
    wordings = ("The answer has at least {} words.", "The answer has fewer than {} words.")
    return wordings, str(dice.randint(max(1, few // 2), few)), str(dice.randint(many, 2 * many))


def _most(question: str, answer: str, dice: random.Random) -> Kind | None:
    few, many = _counts(answer)
    if few < 3:
        return None
    wordings = ("The answer has at most {} words.", "The answer has more than {} words.")
    return wordings, str(dice.randint(many, 2 * many)), str(dice.randint(2, few))


def _counts(answer: str) -> tuple[int, int]:
    """Fewer and more words than the answer has, however words are counted."""
    least, most = len(answer.split()), len(re.findall(r"[^\W_]+|[^\w\s]", answer)) + sum(letter > "\u0e00" for letter in answer)
    return least // 3, 2 * most + 20


KINDS: tuple[Callable[[str, str, random.Random], Kind | None], ...] = (_word, _number, _sign, _first, _least, _most)
"""Word and number ask for content, the others for form: rubrics have points of both sorts."""
