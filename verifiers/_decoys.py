"""Decoy references that look like real ones but that no honest answer meets: used by the canary check of the LLM judge."""

from __future__ import annotations

import hashlib
import re

WORDS = """
    granite lisbon pelican saturn mozart oxygen walnut danube copper sahara violin newton coral ankara basalt heron
    neptune vivaldi helium almond mekong cobalt gobi trumpet kepler sponge manila marble falcon mercury brahms nitrogen
    cherry volga nickel atacama cello darwin lobster nairobi slate osprey uranus schubert argon hazel zambezi cadmium
    kalahari bassoon galileo urchin bogota flint condor venus
"""
"""Words that may be the answer to a question."""
PAIRS = (("yes", "no"), ("true", "false"), ("correct", "incorrect"), ("right", "wrong"), ("valid", "invalid"), ("even", "odd"))
OPPOSITES = dict(PAIRS) | {second: first for first, second in PAIRS}
WORD = re.compile(r"(?<!\\)(?<![^\W\d_])[^\W\d_]{3,}")
"""A word; a LaTeX command such as \\frac is not one."""
MOST_WORDS, TRIES = 4, 8


def decoy(reference: str, seed: str, answer: str = "") -> str:
    """Make a different reference of the same kind, if possible one that does not occur in the answer.

    >>> decoy("True", "seed"), decoy("42", "seed") != "42"
    ('False', True)
    """
    opposite = OPPOSITES.get(reference.strip().strip(".").casefold())
    if opposite is not None:
        return opposite.capitalize() if reference.strip()[:1].isupper() else opposite
    found = ""
    for turn in range(TRIES):
        dice = hashlib.sha256(f"{seed}\0{turn}".encode("utf-8", "surrogatepass")).digest()
        found = _other(reference, dice)
        if found.casefold() not in answer.casefold() and found != reference:
            break
    return found


def _other(reference: str, dice: bytes) -> str:
    """Make one candidate: other words for words, other digits for numbers, another letter for a letter."""
    named = WORD.search(reference)
    letters = "".join(letter for letter in re.sub(r"\\[a-zA-Z]+", "", reference) if letter.isalpha())
    if not named and re.search(r"[0-9]", reference):
        return "".join(_digit(reference, at, dice[at % len(dice)]) for at in range(len(reference)))
    if not named and letters.isascii() and letters:
        return re.sub(r"\\[a-zA-Z]+|[a-zA-Z]", lambda found: _letter(found[0], dice[found.start() % len(dice)]), reference)
    count, words = min(max(len(reference.split()), 1), MOST_WORDS), WORDS.split()
    chosen = [words[dice[at] % len(words)] for at in range(count)]
    return " ".join(word.capitalize() if not at or reference.istitle() else word for at, word in enumerate(chosen))


def _digit(text: str, at: int, dice: int) -> str:
    if text[at] not in "0123456789":
        return text[at]
    others = [digit for digit in "123456789" if digit != text[at]]
    return others[dice % len(others)]


def _letter(found: str, dice: int) -> str:
    if len(found) > 1:
        return found
    others = [letter for letter in "abcd" if letter != found.lower()]
    chosen = others[dice % len(others)]
    return chosen.upper() if found.isupper() else chosen
