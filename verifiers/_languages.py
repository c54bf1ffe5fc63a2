"""Check the language of a text by its script and its sequences of three letters; formulas, code, numbers and tags are ignored."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping

from rlvr.verifiers._letter_trigrams import LETTER_TRIGRAMS

SCRIPTS: Mapping[str, str] = {
    "latin": "A-Za-zÀ-ɏ",
    "cyrillic": "Ѐ-ӿ",
    "greek": "Ͱ-Ͽ",
    "arabic": "؀-ۿ",
    "hebrew": "֐-׿",
    "devanagari": "ऀ-ॿ",
    "thai": "฀-๿",
    "hangul": "가-힯",
    "kana": "぀-ヿ",
    "han": "一-鿿",
}
LANGUAGES: Mapping[str, str] = {
    **dict.fromkeys(("en", "de", "fr", "es", "it", "pt", "nl", "pl", "tr"), "latin"),
    "ru": "cyrillic",
    "el": "greek",
    "ar": "arabic",
    "he": "hebrew",
    "hi": "devanagari",
    "th": "thai",
    "ko": "hangul",
    "ja": "kana",
    "zh": "han",
}
"""For each language its script. Those in Latin script are told from each other, and from their neighbours, by sequences of letters."""
EXTRA_SCRIPTS = {"ja": ("kana", "han")}
"""Languages that are written in several scripts."""
MIN_SCRIPT_FRACTION = 0.9
"""Minimum fraction of the letters that must be in the language's script."""
MIN_WORDS = 5
"""From this many words on, the sequences of letters of a text are evidence for a language; fewer words are accepted in any of a script."""
MIN_EVIDENCE = 8.0
"""How much more likely (in natural logarithms) another language must be than the wanted one: below, a text is accepted in both."""
MIN_KNOWN_FRACTION, MIN_TRIGRAMS = 0.25, 25
"""Minimum fraction of the sequences of letters of a text that are frequent in its language, if it has so many: in junk they are not."""
RANK_OFFSET, RARE_FACTOR = 8, 6
"""The frequency of a sequence is taken as 1 / (rank + offset), and that of a rare one as 1 / (number of ranks * factor)."""
FOREIGN_LETTERS: Mapping[str, str] = {"ru": "іїєґўђјљњћџ"}
"""Letters of other languages of the same script, which the language does not have."""
NON_PROSE = re.compile(r"```.*?```|`[^`\n]*`|\$[^$\n]*\$|\\[a-zA-Z]+|</?[A-Za-z][\w-]*>|\d+", re.DOTALL)
SCRIPT_PATTERNS = {name: re.compile(f"[{letters}]") for name, letters in SCRIPTS.items()}
WORD = re.compile(r"[^\W\d_]+")


def find_language_mismatch(text: str, language: str) -> str:
    """Explain why a text is not in a language; "" if it is, or if it has no words.

    >>> find_language_mismatch("The sum of 3 and 4 is 7, so the answer to this is 7.", "en"), find_language_mismatch("Die Summe ist 7.", "zh")
    ('', '0% of its letters are in the script of zh')
    >>> find_language_mismatch("Der Wert ist nicht der, den wir von der Summe und dem Rest haben.", "en")
    'it reads like de, not en'
    """
    plain = NON_PROSE.sub(" ", text)
    script = LANGUAGES[language]
    counts = {name: len(pattern.findall(plain)) for name, pattern in SCRIPT_PATTERNS.items()}
    if foreign := set(plain.casefold()) & set(FOREIGN_LETTERS.get(language, "")):
        return f"the letter {min(foreign)} is not in {language}"
    own = sum(counts[name] for name in EXTRA_SCRIPTS.get(language, (script,)))
    total = sum(counts.values())
    if total and own < MIN_SCRIPT_FRACTION * total:
        return f"{own / total:.0%} of its letters are in the script of {language}"
    if total and language == "ja" and not counts["kana"]:
        return "it has no kana, so it is not ja"
    words = WORD.findall(plain.casefold())
    if script != "latin" or len(words) < MIN_WORDS:
        return ""
    trigrams = [f" {word} "[at : at + 3] for word in words for at in range(len(word))]
    evidence = {name: sum(known.get(trigram, RARE) for trigram in trigrams) for name, known in _load_trigrams().items()}
    likely = max(evidence, key=lambda name: evidence[name])
    if evidence[likely] - evidence[language] > MIN_EVIDENCE:
        return f"it reads like {likely}, not {language}"
    known = sum(trigram in _load_trigrams()[language] for trigram in trigrams)
    if len(trigrams) >= MIN_TRIGRAMS and known < MIN_KNOWN_FRACTION * len(trigrams):
        return f"its words are not {language}"
    return ""


RARE = -math.log(RARE_FACTOR * len(LETTER_TRIGRAMS["en"]) // 3)


@functools.lru_cache(maxsize=1)
def _load_trigrams() -> dict[str, dict[str, float]]:
    """For each language the logarithm of the frequency of each frequent sequence of three letters."""
    return {
        name: {text[at : at + 3]: -math.log(at // 3 + RANK_OFFSET) for at in range(0, len(text), 3)}
        for name, text in LETTER_TRIGRAMS.items()
    }
