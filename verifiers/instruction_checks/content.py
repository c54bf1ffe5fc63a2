"""IFEval: keywords, language, lengths, letter case, punctuation, start and end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlvr.verifiers.instruction_checks.instruction import COMPARISONS, InstructionKind, is_relation_met
from rlvr.verifiers.instruction_checks.languages import LANGUAGES, detect_language, may_be_english
from rlvr.verifiers.instruction_checks.text_parsing import count_occurrences, split_sentences, split_words

Arguments = Mapping[str, Any]
COMMAS = ",，、،︐﹐﹑"
WHOLE_WORDS_NOTE = (
    "Whole words are counted, and the keyword is not a pattern: the published search finds `art` in `party` and reads `c++` as a regex."
)


def _has_keyword_frequency(text: str, a: Arguments) -> bool:
    return is_relation_met(count_occurrences(a["keyword"], text), a["relation"], a["frequency"])


def _has_letter_frequency(text: str, a: Arguments) -> bool:
    return is_relation_met(text.lower().count(a["letter"].lower()), a["let_relation"], a["let_frequency"])


def _has_divided_paragraphs(text: str, a: Arguments) -> bool:
    parts = re.split(r"\s?\*\*\*\s?", text)
    inner = parts[1 if not parts[0].strip() else 0 : -1 if not parts[-1].strip() else len(parts)]
    return len(inner) == a["num_paragraphs"] and all(part.strip() for part in inner)


def _has_nth_first_word(text: str, a: Arguments) -> bool:
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(parts) != a["num_paragraphs"] or not 1 <= a["nth_paragraph"] <= len(parts):
        return False
    first = split_words(parts[a["nth_paragraph"] - 1])
    return bool(first) and first[0].casefold() == a["first_word"].strip().casefold()


def _has_capital_word_count(text: str, a: Arguments) -> bool:
    return is_relation_met(sum(word.isupper() for word in split_words(text)), a["capital_relation"], a["capital_frequency"])


def _is_quoted(text: str, _: Arguments) -> bool:
    text = text.strip()
    return len(text) > 2 and (text[0], text[-1]) in (('"', '"'), ("“", "”"))


def _has_end_phrase(text: str, a: Arguments) -> bool:
    return text.strip().strip('"“”').strip().endswith(a["end_phrase"].strip().strip('"'))


ENGLISH_NOTE = "The language is told by common words, not by langdetect; a text without letters is not followed (published: followed)."
INSTRUCTIONS: tuple[InstructionKind, ...] = (
    InstructionKind(
        "keywords:existence", "Include the keywords.",
        lambda text, a: all(count_occurrences(word, text) for word in a["keywords"]),
        {"keywords": list}, {"keywords": ["art", "C++"]}, "Art and C++.", "A party in C+.", WHOLE_WORDS_NOTE,
    ),
    InstructionKind(
        "keywords:frequency", "The keyword appears at least, or less than, so many times.", _has_keyword_frequency,
        {"keyword": str, "frequency": int, "relation": COMPARISONS}, {"keyword": "art", "frequency": 2, "relation": "at least"},
        "Art is art.", "Art in a party.", WHOLE_WORDS_NOTE,
    ),
    InstructionKind(
        "keywords:forbidden_words", "Do not include the words.",
        lambda text, a: not any(count_occurrences(word, text) for word in a["forbidden_words"]),
        {"forbidden_words": list}, {"forbidden_words": ["art", "a.b"]}, "A party, axb.", "Fine ART.",
        "The words are not read as patterns.",
    ),
    InstructionKind(
        "keywords:letter_frequency", "The letter appears at least, or less than, so many times.", _has_letter_frequency,
        {"letter": str, "let_frequency": int, "let_relation": COMPARISONS},
        {"letter": "#", "let_frequency": 2, "let_relation": "at least"}, "# a\n# b", "# a",
        "A sign that is no letter is counted; the published checker draws a random letter instead.",
    ),
    InstructionKind(
        "language:response_language", "The whole response is in one language.", lambda text, a: detect_language(text) == a["language"],
        {"language": tuple(sorted(LANGUAGES))}, {"language": "de"}, "Ich lese gern Bücher in dem Garten.", "I read books in the garden.", ENGLISH_NOTE,
    ),
    InstructionKind(
        "length_constraints:number_sentences", "At least, or less than, so many sentences.",
        lambda text, a: is_relation_met(len(split_sentences(text)), a["relation"], a["num_sentences"]),
        {"num_sentences": int, "relation": COMPARISONS}, {"num_sentences": 2, "relation": "less than"}, "Dr. Lee came.", "He came. I left.",
        "Sentences are found by rules and not by NLTK's model.",
    ),
    InstructionKind(
        "length_constraints:number_paragraphs", "So many paragraphs, divided by ***.", _has_divided_paragraphs,
        {"num_paragraphs": int}, {"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo.",
    ),
    InstructionKind(
        "length_constraints:number_words", "At least, or less than, so many words.",
        lambda text, a: is_relation_met(len(split_words(text)), a["relation"], a["num_words"]),
        {"num_words": int, "relation": COMPARISONS}, {"num_words": 3, "relation": "less than"}, "Don't stop.", "Do not stop.",
        "`don't` and `well-known` are one word; the published count makes two of each.",
    ),
    InstructionKind(
        "length_constraints:nth_paragraph_first_word", "So many paragraphs between blank lines; the n-th starts with a word.", _has_nth_first_word,
        {"num_paragraphs": int, "nth_paragraph": int, "first_word": str},
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}, "First this.\n\n**Then** that.", "First then.\n\nThat.",
        "More than one blank line between paragraphs does not shift the count, and marks before the word are skipped.",
    ),
    InstructionKind(
        "change_case:capital_word_frequency", "At least, or less than, so many words in capital letters.", _has_capital_word_count,
        {"capital_frequency": int, "capital_relation": COMPARISONS}, {"capital_frequency": 2, "capital_relation": "at least"},
        "NASA and ESA.", "NASA and Esa.", "Words are found by a rule and not by NLTK.",
    ),
    InstructionKind(
        "change_case:english_capital", "In English and in capital letters only.",
        lambda text, _: text.isupper() and may_be_english(text.lower()), correct="THE SUN IS UP.", incorrect="The SUN is UP.", difference_note=ENGLISH_NOTE,
    ),
    InstructionKind(
        "change_case:english_lowercase", "In English and in lowercase letters only.",
        lambda text, _: text.islower() and may_be_english(text), correct="the sun is up.", incorrect="The sun is up.", difference_note=ENGLISH_NOTE,
    ),
    InstructionKind(
        "punctuation:no_comma", "No commas.", lambda text, _: not set(COMMAS) & set(text), correct="Yes and no.", incorrect="Yes， no.",
        difference_note="Commas of other scripts are commas too: the text says any commas.",
    ),
    InstructionKind(
        "startend:end_checker", "End with the exact phrase.", _has_end_phrase, {"end_phrase": str}, {"end_phrase": "Any questions?"},
        "Done. Any questions?", "Done. any questions??",
        "The case must be the phrase's: the text says exact. Double quotation marks at the end are allowed, as in the published checker.",
    ),
    InstructionKind(
        "startend:quotation", "The whole response in double quotation marks.", _is_quoted, correct='"All of it."', incorrect='"Some" of it.',
        difference_note="Curly double quotation marks count; two marks with nothing between them do not.",
    ),
)  # fmt: skip
