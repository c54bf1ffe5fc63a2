r"""The phrases that declare an answer, in the languages that models answer in.

Each row is one language: nouns that may be a heading (`**Answer**`, `### 答案`), the whole phrase before the value, and examples with
the value that each declares. A test runs every example.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LanguagePhrases:
    """How one language declares an answer.

    >>> LANGUAGES[1].name, LANGUAGES[1].examples[0]
    ('Spanish', ('La respuesta es 18.', '18'))
    """

    name: str
    hints: tuple[str, ...]
    """Prefilter: every phrase contains one of these substrings (lower case)."""
    heading_pattern: str
    """A pattern for a heading of the answer: alone on its line, or before a colon."""
    verb_pattern: str
    """A pattern for the words between the noun and the value, besides a colon."""
    examples: tuple[tuple[str, str], ...]
    full_phrase_pattern: str = ""
    """A pattern for whole phrases that need neither verb nor colon."""


_RECIPIENT = r"(?:\s+(?:to|for)(?:\s+[a-z']+){1,6}?)?"
_ENGLISH_VERB = (
    rf"(?:{_RECIPIENT}[*_\s]{{0,12}}(?:is|are|should\s+be|would\s+be|must\s+be|will\s+be|equals|becomes|comes\s+(?:out\s+)?to(?:\s+be)?|turns\s+out\s+to\s+be)\b\s*:?"
    r"|(?=\s[$\\]))"
)

LANGUAGES = (
    LanguagePhrases(
        "English",
        ("answer", "correct", "ans"),
        r"(?:\b(?:final|correct|best|right)\s+answer|\banswers?(?:\s+(?:choice|option))?"
        r"|\bcorrect\s+(?:option|choice)|(?<![^\n*#_ ])(?<![a-z]\s)ans\b\.?)"
        r"\b(?:[*_\s]{0,6}\(?final\)?)?",
        _ENGLISH_VERB,
        (
            ("The answer is 18.", "18"),
            ("Therefore, the correct answer is **18**.", "18"),
            ("The answer should be 18.", "18"),
            ("So, the final answer would be 18.", "18"),
            ("Thus the answer equals 18.", "18"),
            ("The answer to the problem is 18.", "18"),
            ("The correct option is C.", "C"),
            ("Ans: 18", "18"),
            ("### Answer\n18", "18"),
            ("**Answer**\n\n18", "18"),
            ("ANSWER = 18", "18"),
        ),
        full_phrase_pattern=r"\bI\s+answer\b",
    ),
    LanguagePhrases(
        "Spanish",
        ("respuesta",),
        r"\brespuesta(?:\s+(?:final|correcta))?",
        r"(?:es|será|sería|debe\s+ser|es\s+igual\s+a)\b\s*:?",
        (("La respuesta es 18.", "18"), ("La respuesta correcta es **18**.", "18"), ("Respuesta final: 18", "18")),
    ),
    LanguagePhrases(
        "German",
        ("antwort", "endergebnis", "lösung"),
        r"\b(?:antwort|endergebnis)",
        r"(?:ist|lautet|wäre|beträgt)\b\s*:?",
        (
            ("Die Antwort ist 18.", "18"),
            ("Die endgültige Antwort lautet **18**.", "18"),
            ("Antwort: 18", "18"),
            ("Also ist die Antwort 18.", "18"),
            ("Lösung: $x=18$", "$x=18$"),
            ("Die Lösung lautet **18**.", "18"),
        ),
        # "Lösung:" is also the title of a worked solution: only at the end of the text, with one value
        full_phrase_pattern=r"\bist\s+(?:die|das)\s+(?:\w+\s+)?(?:antwort|endergebnis)\b(?=\s*[:\d$*\\])"
        r"|(?:(?<![^\n*#_ ])lösung[*_]{0,3}\s?[:=]|\blösung\s(?:lautet|ist)\b\s?:?)[*_]{0,3}"
        r"(?=\s{0,3}[*_]{0,3}(?:\$[^$\n]{1,200}\$|-?\d[\d.,/]{0,30})[.*_\s]{0,8}\Z)",
    ),
    LanguagePhrases(
        "French",
        ("réponse", "reponse"),
        r"\br[ée]ponse(?:\s+(?:finale|correcte|exacte))?",
        r"(?:est|serait|vaut)\b(?:\s+donc)?\s*:?",
        (("La réponse est 18.", "18"), ("La réponse finale est donc : 18.", "18"), ("Réponse : **18**", "18")),
    ),
    LanguagePhrases(
        "Italian",
        ("risposta",),
        r"\brisposta(?:\s+(?:finale|corretta|esatta))?",
        r"(?:è|sarà|sarebbe)\b(?:\s+quindi)?\s*:?",
        (("La risposta è 18.", "18"), ("Risposta finale: 18", "18")),
    ),
    LanguagePhrases(
        "Portuguese",
        ("resposta",),
        r"\bresposta(?:\s+(?:final|correta|certa))?",
        r"(?:é|será|seria)\b(?:\s+portanto)?\s*:?",
        (("A resposta é 18.", "18"), ("Resposta final: 18", "18")),
    ),
    LanguagePhrases(
        "Dutch", ("antwoord",), r"\bantwoord", r"(?:is|luidt|zou)\b\s*:?", (("Het antwoord is 18.", "18"), ("Antwoord: 18", "18"))
    ),
    LanguagePhrases(
        "Polish", ("odpowiedź",), r"\bodpowiedź", r"(?:to|brzmi)\b\s*:?", (("Odpowiedź: 18", "18"), ("Odpowiedź to 18.", "18"))
    ),
    LanguagePhrases("Turkish", ("cevap", "yanıt"), r"\b(?:cevap|yanıt)", "", (("Cevap: 18", "18"),)),
    LanguagePhrases(
        "Indonesian",
        ("jawaban",),
        r"\bjawaban(?:nya)?(?:\s+akhir)?",
        r"adalah\b\s*:?",
        (("Jawabannya adalah 18.", "18"), ("Jawaban: 18", "18")),
    ),
    LanguagePhrases(
        "Vietnamese", ("đáp án", "đáp số"), r"\bđáp\s+(?:án|số)", r"là\b\s*:?", (("Đáp án là 18.", "18"), ("Đáp số: 18", "18"))
    ),
    LanguagePhrases(
        "Russian",
        ("ответ",),
        r"\bответ(?:ом)?",
        r"(?:равен|является|—|–|-)\s*:?",
        (("Ответ: 18", "18"), ("Ответ — 18.", "18"), ("Окончательный ответ: **18**", "18")),
    ),
    LanguagePhrases("Ukrainian", ("відповідь",), r"\bвідповідь", r"(?:дорівнює|—|–|-)\s*:?", (("Відповідь: 18", "18"),)),
    LanguagePhrases(
        "Chinese",
        ("答",),
        r"(?:(?:最终|最終|正确|正確|最后|最後)的?)?(?:答案|答)",
        r"(?:就|應該|应该|應|应)?(?:是|为|為|等于|等於)\s*[:：]?",
        (("答案是 18。", "18"), ("所以答案是：$18$", "$18$"), ("最终答案：**18**", "18"), ("### 答案\n\n18", "18"), ("答：18", "18")),
    ),
    LanguagePhrases(
        "Chinese choices",
        ("选", "選"),
        r"正[确確][选選][项項]",
        r"(?:是|为|為)\s*[:：]?",
        (("故选：C", "C"), ("故选C。", "C"), ("因此，应该选择 C。", "C"), ("正确选项是 C。", "C")),
        full_phrase_pattern=r"(?:(?:故|应|應|应该|應該|因此|所以|本题|本題)[选選](?:择|擇)?)\s*[:：]?",
    ),
    LanguagePhrases(
        "Japanese",
        ("答え", "解答", "正解"),
        r"(?:答え|解答|正解)",
        r"は\s*[:：、]?",
        (("答えは 18 です。", "18"), ("答え：18", "18"), ("最終的な答えは**18**である。", "18")),
    ),
    LanguagePhrases(
        "Korean",
        ("답",),
        r"(?:최종\s*)?(?:정답|답변|답)",
        r"은\s*[:：]?",
        (("정답은 18입니다.", "18"), ("정답: 18", "18"), ("따라서 답은 18이다.", "18")),
    ),
    LanguagePhrases(
        "Arabic",
        ("إجابة", "الاجابة", "جواب"),
        r"(?:ال[إا]جابة|الجواب)(?:\s+(?:النهائية|الصحيحة|النهائي|الصحيح))?",
        r"(?:هي|هو)\s*:?",
        (("الإجابة هي 18.", "18"), ("الجواب النهائي: 18", "18")),
    ),
    LanguagePhrases("Hindi", ("उत्तर",), r"उत्तर", r"(?:है)\s*:?", (("उत्तर: 18", "18"),)),
)
"""One row for each language."""

ENDING_PATTERNS = (
    ("です", r"(?:です|である|となります|になります|だ)", "答えは18です。"),
    ("입니다", r"(?:입니다|이다|이에요|예요)", "정답은 18입니다."),
    ("as wanted", r",?\s+as\s+(?:wanted|required|desired|requested|expected|claimed|needed|stated)", "The answer is 18, as wanted."),
    (
        "and not another number",
        r",\s*(?:and\s+)?not\s+(?:\$-?[\d.,/]+\$|-?\d[\d.,/]*)(?:\s+[a-z]+)?\.?",
        "The answer is 18, not 19.",
    ),
    ("QED", r"\s*\$?\\(?:blacksquare|square|qed)\$?", r"The answer is 18. $\blacksquare$"),
)
"""Text that may follow the value and is not part of it: (name, pattern, example that declares 18)."""

DENIAL_PATTERNS = (
    (r"^(?:not|never|cannot|unknown|undetermined)\b|^n't\b", "The answer is not 18."),
    (r"^(?:nicht|niet)\b", "Die Antwort ist nicht 18."),
    (r"^не\b", "Ответ — не 18."),
    (r"^不", "答案是不等于18。"),
    (r"では(?:ない|ありません)|じゃない", "答えは18ではありません。"),
    (r"아니|아닙", "정답은 18이 아닙니다."),
    (r"^ليس", "الإجابة هي ليست 18."),
)
"""Denials, such as "the answer is not 18": (pattern, example that declares nothing)."""

DENIAL = re.compile("|".join(pattern for pattern, _ in DENIAL_PATTERNS), re.IGNORECASE)
ENDING = re.compile(f"(?:{'|'.join(pattern for _, pattern, _ in ENDING_PATTERNS)})$", re.IGNORECASE)


_HINTS = tuple((hint, at) for at, row in enumerate(LANGUAGES) for hint in row.hints)
_ASCII_HINTS = tuple((hint, at) for hint, at in _HINTS if hint.isascii())
_NEVER_MATCHES = re.compile(r"(?!)")


@functools.lru_cache(maxsize=64)
def _compile_patterns(languages: tuple[int, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    said, rows = [], [LANGUAGES[at] for at in dict.fromkeys(languages)]
    for row in rows:
        verb = f"(?:{row.verb_pattern}|[:：=])" if row.verb_pattern else "[:：=]"
        said += [
            rf"(?:{row.heading_pattern})[*_\s]{{0,12}}{verb}[*_]*",
            *([f"(?:{row.full_phrase_pattern})[*_]*"] if row.full_phrase_pattern else []),
        ]
    nouns = "|".join(row.heading_pattern for row in rows)
    heading = rf"^(?:[#*_>]|[^\S\n])*(?:{nouns})[*_#.:：\s]*$"
    bare = rf"[\s#*_]*(?:{nouns})[*_\s:：=]*"
    return re.compile("|".join([*said, heading]), re.IGNORECASE | re.MULTILINE), re.compile(bare, re.IGNORECASE)


def get_declaration_patterns(text: str) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """Return two patterns for the languages that a text may be in, and the position to search from.

    The first pattern is for a declaration of an answer, the second for a noun without a verb. No declaration begins before the position.

    >>> pattern, _, start = get_declaration_patterns("So: 9 + 9 = 18. Respuesta: 18")
    >>> pattern.search("So: 9 + 9 = 18. Respuesta: 18", start)[0]
    'Respuesta:'
    """
    low = text.lower()
    hints = [(position, at) for hint, at in (_ASCII_HINTS if low.isascii() else _HINTS) if (position := low.find(hint)) >= 0]
    if not hints:
        return _NEVER_MATCHES, _NEVER_MATCHES, 0
    start = _find_search_start(text, min(hints)[0]) if len(low) == len(text) else 0
    return *_compile_patterns(tuple(at for _, at in hints)), start


def _find_search_start(text: str, hint: int) -> int:
    """Return the start of the line of a phrase's hint, or of the fourth word before it: no phrase has more words before its hint."""
    window = max(0, hint - 400)
    words = text[window:hint].rsplit(None, 4)
    return min(text.rfind("\n", 0, hint) + 1, window + len(words[0])) if len(words) == 5 else 0
