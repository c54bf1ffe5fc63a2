# ruff: noqa: E501 -- rows of tables read better in lines
"""IFBench: which words a text uses, in which order, and how its sentences are built."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.verifiers.instruction_checks.instruction import InstructionKind
from rlvr.verifiers.instruction_checks.text_parsing import (
    count_occurrences,
    count_syllables,
    split_lower_words,
    split_nonblank_lines,
    split_sentences,
    split_words,
    split_words_with_letters,
)
from rlvr.verifiers.instruction_checks.word_lists import is_verb

Arguments = Mapping[str, Any]
CONSONANT_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
PRIMES = frozenset(n for n in range(2, 100) if all(n % k for k in range(2, n)))


def _is_alphabetical(text: str, _: Arguments) -> bool:
    firsts = [string.ascii_lowercase.find(word[0]) for word in split_words_with_letters(text)]
    return bool(firsts) and firsts[0] >= 0 and all(b == (a + 1) % 26 for a, b in itertools.pairwise(firsts))


def _has_three_vowels(text: str, _: Arguments) -> bool:
    return (
        len(split_nonblank_lines(text)) == 1
        and bool(split_words_with_letters(text))
        and len(set("aeiou") & set("".join(split_words_with_letters(text)))) <= 3
    )


def _has_consonant_clusters(text: str, _: Arguments) -> bool:
    said = [word for word in text.lower().split() if any(map(str.isalpha, word))]
    return bool(said) and all(map(CONSONANT_CLUSTER.search, said))


def _count_longest_alliteration(said: Sequence[str]) -> int:
    return max((len(list(group)) for _, group in itertools.groupby(word[0] for word in said)), default=0)


def _has_growing_alliteration(text: str, _: Arguments) -> bool:
    runs = [_count_longest_alliteration(split_words_with_letters(sentence)) for sentence in split_sentences(text)]
    return len(runs) > 1 and all(a < b for a, b in itertools.pairwise(runs))


def _has_ten_palindromes(text: str, _: Arguments) -> bool:
    return len({word for word in split_words_with_letters(text) if len(word) >= 5 and word.isalpha() and word == word[::-1]}) >= 10


def _has_prime_lengths(text: str, _: Arguments) -> bool:
    said = text.translate(str.maketrans("", "", string.punctuation + "“”‘’…–—")).split()
    return bool(said) and all(len(word) in PRIMES for word in said)


def _starts_with_verb(text: str, _: Arguments) -> bool:
    said = split_words(text)
    return bool(said) and is_verb(said[0])


def _has_alternating_syllables(text: str, _: Arguments) -> bool:
    parities = [count_syllables(word) % 2 for word in split_words_with_letters(text)]
    return len(parities) > 1 and all(a != b for a, b in itertools.pairwise(parities))


def _is_chained(text: str, _: Arguments) -> bool:
    said = [split_lower_words(sentence) for sentence in split_sentences(text)]
    return len(said) > 1 and all(said) and all(a[-1] == b[0] for a, b in itertools.pairwise(said))


def _is_framed(text: str, _: Arguments) -> bool:
    said = [split_lower_words(line) for line in split_nonblank_lines(text)]
    return bool(said) and all(len(row) > 1 and row[0] == row[-1] for row in said if row)


def _has_length_increments(text: str, a: Arguments) -> bool:
    sizes = [len(split_words(sentence)) for sentence in split_sentences(text)]
    return len(sizes) > 1 and all(two - one == a["small_n"] for one, two in itertools.pairwise(sizes))


def _has_keyword_at(text: str, a: Arguments) -> bool:
    said = split_sentences(text)
    if not 1 <= a["n"] <= len(said):
        return False
    row = split_lower_words(said[a["n"] - 1])
    return 1 <= a["m"] <= len(row) and row[a["m"] - 1] == a["keyword"].strip().casefold()


def _has_keyword_second(text: str, a: Arguments) -> bool:
    said = split_lower_words(text)
    return len(said) > 2 and said[1] == said[-2] == a["keyword"].strip().casefold()


def _has_equal_sentences(text: str, _: Arguments) -> bool:
    said = split_sentences(text)
    every = [word for sentence in said for word in split_lower_words(sentence)]
    return len(said) == 3 and len({len(sentence) for sentence in said}) == 1 and len(set(every)) == len(every)


def _has_keyword_in_sentence(text: str, a: Arguments) -> bool:
    said = split_sentences(text)
    return 1 <= a["N"] <= len(said) and count_occurrences(a["word"], said[a["N"] - 1]) > 0


EXAMPLE_PALINDROMES = "level radar civic refer rotor kayak madam stats tenet solos"
MIN_TWO_NOTE = "There must be at least two of them to compare; the published checker accepts one."
INSTRUCTIONS: tuple[InstructionKind, ...] = (
    InstructionKind("words:alphabet", "Each word starts with the next letter of the alphabet.", _is_alphabetical, correct="A big cat; 12 dogs", incorrect="A big dog",
         difference_note="Marks and numbers that stand alone are skipped."),
    InstructionKind("words:vowel", "A paragraph with at most three kinds of vowels.", _has_three_vowels, correct="Cats sit on it.", incorrect="Cats sit on the hut.",
         difference_note="There must be a word."),
    InstructionKind("words:consonants", "Each word has two consonants together.", _has_consonant_clusters, correct="This plant thrives!", incorrect="This plant is",
         difference_note="Marks and numbers that stand alone are skipped, and there must be a word."),
    InstructionKind("sentence:alliteration_increment", "Each sentence has a longer run of alliterative words than the one before.", _has_growing_alliteration,
         correct="I see cats. Big bears run. Six silly swans sang.", incorrect="Big bears run. I see.",
         difference_note="The longest run of each sentence is compared, as the text says; the published checker adds up all runs. " + MIN_TWO_NOTE),
    InstructionKind("words:palindrome", "Ten palindromes of five letters or more.", _has_ten_palindromes, correct=EXAMPLE_PALINDROMES, incorrect="level " * 10 + "11111",
         difference_note="Ten different words of letters: one palindrome ten times, or 11111, is accepted by the published checker."),
    InstructionKind("words:prime_lengths", "Only words whose length is prime.", _has_prime_lengths, correct="We see all.", incorrect="We like all.", difference_note="There must be a word."),
    InstructionKind("ratio:sentence_words", "Three sentences of the same length, of different words.", _has_equal_sentences, correct="We am. He is. Us go.",
         incorrect="We am. We is. Us go.", difference_note="The words must be different, as the text says; the published checker does not look at them."),
    InstructionKind("words:start_verb", "Start with a verb.", _starts_with_verb, correct="Running helps.", incorrect="The run helps.",
         difference_note="By a list of common verbs and their forms, and not by a tagger: rare verbs are refused."),
    InstructionKind("words:repeats", "No word more than so many times.",
         lambda text, a: max(Counter(split_lower_words(text)).values(), default=a["small_n"] + 1) <= a["small_n"], {"small_n": int}, {"small_n": 1},
         "one two", "One one", "Words are compared whole (`don't` is one word). There must be a word."),
    InstructionKind("sentence:keyword", "The keyword stands in the n-th sentence.", _has_keyword_in_sentence, {"word": str, "N": int}, {"word": "cat", "N": 2},
         "One dog. A cat!", "A cat. One dog.", "Sentences are found by rules and not by NLTK's model."),
    InstructionKind("words:odd_even_syllables", "Words with odd and even numbers of syllables take turns.", _has_alternating_syllables, correct="The table stands alone",
         incorrect="The cat sat", difference_note="Syllables are counted by rules and a short list, not by syllapy's dictionary. " + MIN_TWO_NOTE),
    InstructionKind("words:last_first", "The last word of a sentence is the first of the next.", _is_chained, correct="I see. See me.", incorrect="I see. You do.",
         difference_note=MIN_TWO_NOTE),
    InstructionKind("words:paragraph_last_first", "Each paragraph ends with the word it started with.", _is_framed, correct="Time is time.\nSo be it so!",
         incorrect="Time.\nSo be it.", difference_note="Marks around the first and last word do not matter; a paragraph of one word is none."),
    InstructionKind("sentence:increment", "Each sentence has exactly so many more words than the one before.", _has_length_increments, {"small_n": int}, {"small_n": 1},
         "I do. I do too.", "I do. You do.", MIN_TWO_NOTE),
    InstructionKind("words:no_consecutive", "No two neighbouring words share their first letter.",
         lambda text, _: bool(split_words_with_letters(text)) and all(a[0] != b[0] for a, b in itertools.pairwise(split_words_with_letters(text))),
         correct="One big cat", incorrect="One big bear", difference_note="There must be a word; marks and numbers that stand alone are skipped."),
    InstructionKind("words:keywords_specific_position", "The keyword is the m-th word of the n-th sentence.", _has_keyword_at, {"keyword": str, "n": int, "m": int},
         {"keyword": "cat", "n": 2, "m": 2}, "One dog. A cat!", "A cat. One dog.", "Sentences and words are found by rules and not by NLTK."),
    InstructionKind("words:words_position", "The second and the second to last word are the keyword.", _has_keyword_second, {"keyword": str}, {"keyword": "is"},
         "It is what it is now.", "It is what it was.", "Marks are not words; the published checker skips one mark at the end only."),
)  # fmt: skip
