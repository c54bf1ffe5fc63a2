"""Check the language of a text by its script and its most frequent short words; formulas, code, numbers and tags are ignored."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from rlvr.verifiers.instruction_checks.languages import COMMON_WORDS, DISTINCTIVE_LETTERS

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
LANGUAGES: Mapping[str, tuple[str, str]] = {
    "en": ("latin", "the of and to in is that it for we so this with are be on as by from have not"),
    "de": ("latin", "der die das und ist nicht wir ein eine zu den von mit auf sich des dem es also für"),
    "fr": ("latin", "le la les et est des un une que du dans pour nous pas qui sur donc avec il ce"),
    "es": ("latin", "el la los las y es que de en un una por para con no se del lo como su"),
    "it": ("latin", "il la di che e è un una per non con del della sono le gli si quindi i nel"),
    "pt": ("latin", "o a os as e é que de em um uma para com não do da por se no então"),
    "nl": ("latin", "de het een en van is dat in op te we niet met voor zijn dus er aan die"),
    "pl": ("latin", "i w na jest nie to że się z do jak dla co więc po od tak"),
    "tr": ("latin", "ve bir bu için ile de da olarak değil olan çok daha ise o"),
    "ru": ("cyrillic", ""),
    "el": ("greek", ""),
    "ar": ("arabic", ""),
    "he": ("hebrew", ""),
    "hi": ("devanagari", ""),
    "th": ("thai", ""),
    "ko": ("hangul", ""),
    "ja": ("kana", ""),
    "zh": ("han", ""),
}
"""For each language its script, and frequent words that distinguish languages of one script."""
EXTRA_SCRIPTS = {"ja": ("kana", "han")}
"""Languages that are written in several scripts."""
MIN_SCRIPT_FRACTION = 0.9
"""Minimum fraction of the letters that must be in the language's script."""
MIN_FREQUENT_WORDS = 5
"""From this many frequent words of another language on, a text is in that language if it has more of them than of the wanted one's."""
MIN_WORDS = 5
"""From this many words on, a text without any frequent word of the language must not have one of another language."""
CONSONANT_ENDINGS = ("en", "de", "nl")
"""Languages whose words rarely end in a, i, o or u, as most words of Italian, Spanish and Portuguese do."""
MAX_OPEN_ENDED = 0.6
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
    script, words = LANGUAGES[language]
    counts = {name: len(pattern.findall(plain)) for name, pattern in SCRIPT_PATTERNS.items()}
    if foreign := set(plain.casefold()) & set(FOREIGN_LETTERS.get(language, "")):
        return f"the letter {min(foreign)} is not in {language}"
    own = sum(counts[name] for name in EXTRA_SCRIPTS.get(language, (script,)))
    total = sum(counts.values())
    if total and own < MIN_SCRIPT_FRACTION * total:
        return f"{own / total:.0%} of its letters are in the script of {language}"
    if total and language == "ja" and not counts["kana"]:
        return "it has no kana, so it is not ja"
    if not words:
        return ""
    said = [word.casefold() for word in WORD.findall(plain)]
    seen = {name: sum(word in frequent for word in said) for name, frequent in _frequent_words(script).items()}
    for name in seen:
        seen[name] += sum(plain.casefold().count(letter) for letter in DISTINCTIVE_LETTERS.get(name, ""))
    likely = max(seen, key=lambda name: (seen[name], name == language))
    short = len(said) >= MIN_WORDS and not seen[language] and seen[likely] > 0
    if likely != language and (seen[likely] >= MIN_FREQUENT_WORDS or short):
        return f"it reads like {likely}, not {language}"
    if language in CONSONANT_ENDINGS and len(said) >= MIN_WORDS and not any(seen.values()):
        open_ended = sum(word[-1] in "aiou" for word in said)
        return f"its words do not end like those of {language}" if open_ended > MAX_OPEN_ENDED * len(said) else ""
    return ""


@functools.lru_cache(maxsize=8)
def _frequent_words(script: str) -> dict[str, frozenset[str]]:
    return {
        name: frozenset(f"{words} {COMMON_WORDS.get(name, '')}".split())
        for name, (written, words) in LANGUAGES.items()
        if written == script and words
    }
