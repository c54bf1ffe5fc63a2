# ruff: noqa: E501 -- rows of tables read better in lines
"""IFBench: which words a text uses, in which order, and how its sentences are built."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.verifiers._instructions.kind import Kind
from rlvr.verifiers._instructions.lists import is_verb
from rlvr.verifiers._instructions.reading import lettered, lines, low_words, occurrences, sentences, syllables, words

Arguments = Mapping[str, Any]
CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
PRIMES = frozenset(n for n in range(2, 100) if all(n % k for k in range(2, n)))


def _alphabet(text: str, _: Arguments) -> bool:
    firsts = [string.ascii_lowercase.find(word[0]) for word in lettered(text)]
    return bool(firsts) and firsts[0] >= 0 and all(b == (a + 1) % 26 for a, b in itertools.pairwise(firsts))


def _vowels(text: str, _: Arguments) -> bool:
    return len(lines(text)) == 1 and bool(lettered(text)) and len(set("aeiou") & set("".join(lettered(text)))) <= 3


def _clusters(text: str, _: Arguments) -> bool:
    said = [word for word in text.lower().split() if any(map(str.isalpha, word))]
    return bool(said) and all(map(CLUSTER.search, said))


def _longest_run(said: Sequence[str]) -> int:
    return max((len(list(group)) for _, group in itertools.groupby(word[0] for word in said)), default=0)


def _alliterates(text: str, _: Arguments) -> bool:
    runs = [_longest_run(lettered(sentence)) for sentence in sentences(text)]
    return len(runs) > 1 and all(a < b for a, b in itertools.pairwise(runs))


def _palindromes(text: str, _: Arguments) -> bool:
    return len({word for word in lettered(text) if len(word) >= 5 and word.isalpha() and word == word[::-1]}) >= 10


def _prime(text: str, _: Arguments) -> bool:
    said = text.translate(str.maketrans("", "", string.punctuation + "“”‘’…–—")).split()
    return bool(said) and all(len(word) in PRIMES for word in said)


def _starts_with_verb(text: str, _: Arguments) -> bool:
    said = words(text)
    return bool(said) and is_verb(said[0])


def _alternates(text: str, _: Arguments) -> bool:
    parities = [syllables(word) % 2 for word in lettered(text)]
    return len(parities) > 1 and all(a != b for a, b in itertools.pairwise(parities))


def _chained(text: str, _: Arguments) -> bool:
    said = [low_words(sentence) for sentence in sentences(text)]
    return len(said) > 1 and all(said) and all(a[-1] == b[0] for a, b in itertools.pairwise(said))


def _framed(text: str, _: Arguments) -> bool:
    said = [low_words(line) for line in lines(text)]
    return bool(said) and all(len(row) > 1 and row[0] == row[-1] for row in said if row)


def _increments(text: str, a: Arguments) -> bool:
    sizes = [len(words(sentence)) for sentence in sentences(text)]
    return len(sizes) > 1 and all(two - one == a["small_n"] for one, two in itertools.pairwise(sizes))


def _keyword_at(text: str, a: Arguments) -> bool:
    said = sentences(text)
    if not 1 <= a["n"] <= len(said):
        return False
    row = low_words(said[a["n"] - 1])
    return 1 <= a["m"] <= len(row) and row[a["m"] - 1] == a["keyword"].strip().casefold()


def _second_words(text: str, a: Arguments) -> bool:
    said = low_words(text)
    return len(said) > 2 and said[1] == said[-2] == a["keyword"].strip().casefold()


def _same_length(text: str, _: Arguments) -> bool:
    said = sentences(text)
    every = [word for sentence in said for word in low_words(sentence)]
    return len(said) == 3 and len({len(sentence) for sentence in said}) == 1 and len(set(every)) == len(every)


def _keyword_in(text: str, a: Arguments) -> bool:
    said = sentences(text)
    return 1 <= a["N"] <= len(said) and occurrences(a["word"], said[a["N"] - 1]) > 0


LEVELS = "level radar civic refer rotor kayak madam stats tenet solos"
TWO = "There must be at least two of them to compare; the published checker accepts one."
KINDS: tuple[Kind, ...] = (
    Kind("words:alphabet", "Each word starts with the next letter of the alphabet.", _alphabet, right="A big cat; 12 dogs", wrong="A big dog",
         differs="Marks and numbers that stand alone are skipped."),
    Kind("words:vowel", "A paragraph with at most three kinds of vowels.", _vowels, right="Cats sit on it.", wrong="Cats sit on the hut.",
         differs="There must be a word."),
    Kind("words:consonants", "Each word has two consonants together.", _clusters, right="This plant thrives!", wrong="This plant is",
         differs="Marks and numbers that stand alone are skipped, and there must be a word."),
    Kind("sentence:alliteration_increment", "Each sentence has a longer run of alliterative words than the one before.", _alliterates,
         right="I see cats. Big bears run. Six silly swans sang.", wrong="Big bears run. I see.",
         differs="The longest run of each sentence is compared, as the text says; the published checker adds up all runs. " + TWO),
    Kind("words:palindrome", "Ten palindromes of five letters or more.", _palindromes, right=LEVELS, wrong="level " * 10 + "11111",
         differs="Ten different words of letters: one palindrome ten times, or 11111, is accepted by the published checker."),
    Kind("words:prime_lengths", "Only words whose length is prime.", _prime, right="We see all.", wrong="We like all.", differs="There must be a word."),
    Kind("ratio:sentence_words", "Three sentences of the same length, of different words.", _same_length, right="We am. He is. Us go.",
         wrong="We am. We is. Us go.", differs="The words must be different, as the text says; the published checker does not look at them."),
    Kind("words:start_verb", "Start with a verb.", _starts_with_verb, right="Running helps.", wrong="The run helps.",
         differs="By a list of common verbs and their forms, and not by a tagger: rare verbs are refused."),
    Kind("words:repeats", "No word more than so many times.",
         lambda text, a: max(Counter(low_words(text)).values(), default=a["small_n"] + 1) <= a["small_n"], {"small_n": int}, {"small_n": 1},
         "one two", "One one", "Words are compared whole (`don't` is one word). There must be a word."),
    Kind("sentence:keyword", "The keyword stands in the n-th sentence.", _keyword_in, {"word": str, "N": int}, {"word": "cat", "N": 2},
         "One dog. A cat!", "A cat. One dog.", "Sentences are found by rules and not by NLTK's model."),
    Kind("words:odd_even_syllables", "Words with odd and even numbers of syllables take turns.", _alternates, right="The table stands alone",
         wrong="The cat sat", differs="Syllables are counted by rules and a short list, not by syllapy's dictionary. " + TWO),
    Kind("words:last_first", "The last word of a sentence is the first of the next.", _chained, right="I see. See me.", wrong="I see. You do.",
         differs=TWO),
    Kind("words:paragraph_last_first", "Each paragraph ends with the word it started with.", _framed, right="Time is time.\nSo be it so!",
         wrong="Time.\nSo be it.", differs="Marks around the first and last word do not matter; a paragraph of one word is none."),
    Kind("sentence:increment", "Each sentence has exactly so many more words than the one before.", _increments, {"small_n": int}, {"small_n": 1},
         "I do. I do too.", "I do. You do.", TWO),
    Kind("words:no_consecutive", "No two neighbouring words share their first letter.",
         lambda text, _: bool(lettered(text)) and all(a[0] != b[0] for a, b in itertools.pairwise(lettered(text))),
         right="One big cat", wrong="One big bear", differs="There must be a word; marks and numbers that stand alone are skipped."),
    Kind("words:keywords_specific_position", "The keyword is the m-th word of the n-th sentence.", _keyword_at, {"keyword": str, "n": int, "m": int},
         {"keyword": "cat", "n": 2, "m": 2}, "One dog. A cat!", "A cat. One dog.", "Sentences and words are found by rules and not by NLTK."),
    Kind("words:words_position", "The second and the second to last word are the keyword.", _second_words, {"keyword": str}, {"keyword": "is"},
         "It is what it is now.", "It is what it was.", "Marks are not words; the published checker skips one mark at the end only."),
)  # fmt: skip
