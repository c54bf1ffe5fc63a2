# ruff: noqa: E501 -- rows of tables read better in lines
"""IFBench: counts and ratios of words, names, numbers, sentences and n-grams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlvr.verifiers.instruction_checks.instruction import InstructionKind
from rlvr.verifiers.instruction_checks.text_parsing import count_occurrences, split_lower_words, split_sentences, split_words
from rlvr.verifiers.instruction_checks.word_lists import CONJUNCTIONS, PERSON_NAMES, PRONOUNS, STOP_WORDS

Arguments = Mapping[str, Any]
NUMERAL = re.compile(r"\d+(?:[.,:]\d+)*")
JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff々]")
INTERROBANGS = ("?!", "!?", "‽", "⁈", "⁉")
KEYWORD_COUNTS = (1, 2, 3, 5, 7)


def _has_few_stop_words(text: str, a: Arguments) -> bool:
    tokens = re.findall(r"\w+", text.lower())
    return bool(tokens) and 100 * sum(token in STOP_WORDS for token in tokens) <= a["percentage"] * len(tokens)


def _count_sentences_by_end_mark(text: str) -> tuple[int, int, int]:
    """Count the sentences that end with a full stop, a question mark and an exclamation mark."""
    ends = [sentence.rstrip("\"'”’»)]*_ ")[-1:] for sentence in split_sentences(text)]
    return ends.count(".") + ends.count("…") + ends.count("。"), ends.count("?") + ends.count("？"), ends.count("!") + ends.count("！")


def _has_two_to_one_sentences(text: str, _: Arguments) -> bool:
    stated, asked, _exclaimed = _count_sentences_by_end_mark(text)
    return asked > 0 and stated == 2 * asked


def _has_balanced_sentences(text: str, _: Arguments) -> bool:
    stated, asked, exclaimed = _count_sentences_by_end_mark(text)
    return asked > 0 and stated == asked == exclaimed


def _has_trigram_overlap(text: str, a: Arguments) -> bool:
    mine, theirs = ({value[at : at + 3] for at in range(len(value) - 2)} for value in (text, a["reference_text"]))
    return bool(mine) and abs(100 * len(mine & theirs) / len(mine) - a["percentage"]) <= 2


def _has_all_punctuation(text: str, _: Arguments) -> bool:
    found = next((mark for mark in INTERROBANGS if mark in text), None)
    return found is not None and set(".,!?;:") <= set(text.replace(found, "", 1))


def _has_japanese_words(text: str, a: Arguments) -> bool:
    said = [token for token in text.split() if any(map(str.isalnum, token))]
    every = said[a["N"] - 1 :: a["N"]] if a["N"] else []
    return bool(every) and all(map(JAPANESE.search, every))


def _has_keyword_counts(text: str, a: Arguments) -> bool:
    return all(count_occurrences(a[f"keyword{n}"], text) == times for n, times in enumerate(KEYWORD_COUNTS, 1))


INSTRUCTIONS: tuple[InstructionKind, ...] = (
    InstructionKind("count:word_count_range", "Between so many and so many words.", lambda text, a: a["min_words"] <= len(split_words(text)) <= a["max_words"],
         {"min_words": int, "max_words": int}, {"min_words": 2, "max_words": 3}, "Don't stop now.", "Stop.",
         "`don't` and `well-known` are one word; the published count makes two of each."),
    InstructionKind("count:unique_word_count", "At least so many different words.", lambda text, a: len(set(split_lower_words(text))) >= a["N"],
         {"N": int}, {"N": 3}, "One two three.", "One one — two ***",
         "Marks that stand alone are no word; the published set counts them as one."),
    InstructionKind("ratio:stop_words", "Stop words are at most so many per cent of all words.", _has_few_stop_words, {"percentage": int}, {"percentage": 50},
         "Cats chase the mice", "It is in the house", "The list of stop words is our own and close to NLTK's."),
    InstructionKind("ratio:sentence_type", "Two declarative sentences for each question.", _has_two_to_one_sentences, correct="I came. I saw. Why?", incorrect="I came. I saw.",
         difference_note="There must be a question: the published checker accepts 0 to 0. A closing quotation mark after the end is skipped."),
    InstructionKind("ratio:sentence_balance", "As many declarative as interrogative and exclamatory sentences.", _has_balanced_sentences, correct="I came. Why? Ah!",
         incorrect="no sentence at all", difference_note="There must be one of each: the published checker accepts 0 = 0 = 0."),
    InstructionKind("count:conjunctions", "At least so many different coordinating conjunctions.",
         lambda text, a: len(CONJUNCTIONS & set(split_lower_words(text))) >= a["small_n"], {"small_n": int}, {"small_n": 2}, "You and I, but no more.",
         "And you, and I, and, so-so.", "`And`, `and` and `and,` are one conjunction; the published set counts three."),
    InstructionKind("count:person_names", "At least so many names of the list.",
         lambda text, a: sum(bool(re.search(rf"\b{name}\b", text)) for name in PERSON_NAMES) >= a["N"], {"N": int}, {"N": 2},
         "Emma met Liam.", "Emma met Emma and liam."),
    InstructionKind("ratio:overlap", "Trigrams shared with a text: so many per cent, two more or less.", _has_trigram_overlap, {"reference_text": str, "percentage": int},
         {"reference_text": "the cat sat", "percentage": 100}, "the cat sat", "a dog ran",
         "Of characters, as published; the text leaves open which trigrams."),
    InstructionKind("count:numbers", "Exactly so many numbers.", lambda text, a: len(NUMERAL.findall(text)) == a["N"], {"N": int}, {"N": 2},
         "From 10-20.5 km.", "Only 3.14.", "`10-20` is two numbers and `3.5` is one; the published checker deletes the marks first."),
    InstructionKind("count:punctuation", "Every punctuation mark, and an interrobang.", _has_all_punctuation, correct="Oh, no: stop; go. Now! Why? What?!", incorrect="Oh, no: stop; go. What?!"),
    InstructionKind("count:words_japanese", "Every n-th word is Japanese.", _has_japanese_words, {"N": int}, {"N": 2}, "I 猫 like 犬", "I cat 12 34",
         "There must be an n-th word, and a number is not Japanese; the published checker lets both pass."),
    InstructionKind("count:pronouns", "At least so many pronouns.",
         lambda text, a: sum(word.split("'")[0] in PRONOUNS for word in split_lower_words(text.replace("/", " "))) >= a["N"], {"N": int}, {"N": 2},
         "I saw them.", "Ann saw Bob.", "Words are found by a rule and not by NLTK."),
    InstructionKind("count:keywords_multiple", "Five keywords, 1, 2, 3, 5 and 7 times.", _has_keyword_counts, {f"keyword{n}": str for n in range(1, 6)},
         {f"keyword{n}": word for n, word in enumerate("abcde", 1)}, "a b b c c c d d d d d e e e e e e e", "ab b c c c d d d d d e e e e e e e",
         "Whole words are counted, not parts of words."),
)  # fmt: skip
