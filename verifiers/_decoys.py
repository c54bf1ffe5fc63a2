"""Decoy references that look like real ones but that no honest answer meets: used by the canary check of the LLM judge."""

from __future__ import annotations

import hashlib
import re

DECOY_WORDS = """
    granite lisbon pelican saturn mozart oxygen walnut danube copper sahara violin newton coral ankara basalt heron
    neptune vivaldi helium almond mekong cobalt gobi trumpet kepler sponge manila marble falcon mercury brahms nitrogen
    cherry volga nickel atacama cello darwin lobster nairobi slate osprey uranus schubert argon hazel zambezi cadmium
    kalahari bassoon galileo urchin bogota flint condor venus
"""
"""Words that may be the answer to a question."""
OPPOSITE_PAIRS = (("yes", "no"), ("true", "false"), ("correct", "incorrect"), ("right", "wrong"), ("valid", "invalid"), ("even", "odd"))
OPPOSITES = dict(OPPOSITE_PAIRS) | {second: first for first, second in OPPOSITE_PAIRS}
WORD = re.compile(r"(?<!\\)(?<![^\W\d_])[^\W\d_]{3,}")
"""A word; a LaTeX command such as \\frac is not one."""
MAX_DECOY_WORDS, MAX_TRIES = 4, 8


def make_decoy_reference(reference: str, seed: str, answer: str = "") -> str:
    """Make a different reference of the same kind, if possible one that does not occur in the answer.

    >>> make_decoy_reference("True", "seed"), make_decoy_reference("42", "seed") != "42"
    ('False', True)
    """
    opposite = OPPOSITES.get(reference.strip().strip(".").casefold())
    if opposite is not None:
        return opposite.capitalize() if reference.strip()[:1].isupper() else opposite
    found = ""
    for turn in range(MAX_TRIES):
        dice = hashlib.sha256(f"{seed}\0{turn}".encode("utf-8", "surrogatepass")).digest()
        found = _make_candidate(reference, dice)
        if found.casefold() not in answer.casefold() and found != reference:
            break
    return found


def _make_candidate(reference: str, random_bytes: bytes) -> str:
    """Make one candidate: other words for words, other digits for numbers, another letter for a letter."""
    named = WORD.search(reference)
    letters = "".join(letter for letter in re.sub(r"\\[a-zA-Z]+", "", reference) if letter.isalpha())
    if not named and re.search(r"[0-9]", reference):
        return "".join(_replace_digit(reference, at, random_bytes[at % len(random_bytes)]) for at in range(len(reference)))
    if not named and letters.isascii() and letters:
        return re.sub(
            r"\\[a-zA-Z]+|[a-zA-Z]", lambda found: _replace_letter(found[0], random_bytes[found.start() % len(random_bytes)]), reference
        )
    count, words = min(max(len(reference.split()), 1), MAX_DECOY_WORDS), DECOY_WORDS.split()
    chosen = [words[random_bytes[at] % len(words)] for at in range(count)]
    return " ".join(word.capitalize() if not at or reference.istitle() else word for at, word in enumerate(chosen))


def _replace_digit(text: str, at: int, random_byte: int) -> str:
    if text[at] not in "0123456789":
        return text[at]
    others = [digit for digit in "123456789" if digit != text[at]]
    return others[random_byte % len(others)]


def _replace_letter(matched: str, random_byte: int) -> str:
    if len(matched) > 1:
        return matched
    others = [letter for letter in "abcd" if letter != matched.lower()]
    chosen = others[random_byte % len(others)]
    return chosen.upper() if matched.isupper() else chosen
