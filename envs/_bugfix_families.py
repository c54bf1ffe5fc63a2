"""Families of small Python modules for the environment `bugfix`: the correct source, possible bugs, and inputs of its functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

InputGenerator = Callable[[random.Random], list[Any]]


@dataclass(frozen=True)
class Bug:
    """A bug: a part of the correct source, and the wrong code that replaces it.

    >>> Bug("shorten", "<= width", "< width", "wrong operator").kind
    'wrong operator'
    """

    function: str
    """The function that returns wrong results."""
    correct_code: str
    buggy_code: str
    kind: str


@dataclass(frozen=True)
class ModuleFamily:
    """A module, its bugs, and a generator of arguments for each function.

    >>> sorted(FAMILIES["dates"].input_generators)
    ['day_of_year', 'days_in', 'is_leap']
    """

    source: str
    bugs: tuple[Bug, ...]
    input_generators: Mapping[str, InputGenerator]


WORDS = ("sun", "Moon", "star", "Sky", "rain", "cloud", "Wind", "snow")

TEXT = ModuleFamily(
    '''"""Work with text."""


def words(text):
    """The words of a text in lower case, without punctuation at their ends."""
    found = []
    for part in text.split():
        word = part.strip(".,!?").lower()
        if word:
            found.append(word)
    return found


def shorten(text, width):
    """The text, or its beginning and "..." where it has more than `width` characters: `width` in all."""
    if len(text) <= width:
        return text
    return text[: width - 3] + "..."


def ranking(text):
    """Each word with how often it occurs: the most frequent first, equally frequent ones by the alphabet."""
    counts = {}
    for word in words(text):
        counts[word] = counts.get(word, 0) + 1
    return [[word, counts[word]] for word in sorted(counts, key=lambda word: (-counts[word], word))]
''',
    (
        Bug("words", ".lower()", "", "missing step"),
        Bug("words", "        if word:\n            found.append(word)", "        found.append(word)", "missing case"),
        Bug("shorten", "<= width", "< width", "wrong operator"),
        Bug("shorten", "width - 3", "width - 2", "off by one"),
        Bug("ranking", "(-counts[word], word)", "(counts[word], word)", "wrong order"),
        Bug("ranking", "counts.get(word, 0) + 1", "counts.get(word, 1) + 1", "wrong default"),
    ),
    {
        "words": lambda rng: [" ".join(rng.choice(WORDS) + rng.choice(("", ",", "!", " ..")) for _ in range(rng.randint(1, 6)))],
        "shorten": lambda rng: [
            text := "".join(rng.choices("abcdef ", k=rng.randint(5, 14))),
            len(text) - rng.choice((0, 0, 1, 2, -1)),
        ],
        "ranking": lambda rng: [" ".join(rng.choices(WORDS, k=rng.randint(5, 12)))],
    },
)

UNIQUES_HEAD = '''seen=None):
    """The items in their order, without those that came before, and without those in `seen`."""
    seen = set() if seen is None else set(seen)
'''

LISTS = ModuleFamily(
    '''"""Work with lists."""


def chunks(items, size):
    """The items in lists of `size`; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def merged(left, right):
    """Two sorted lists as one sorted list."""
    found, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            found.append(left[i])
            i += 1
        else:
            found.append(right[j])
            j += 1
    return found + left[i:] + right[j:]


def uniques(items, seen=None):
    """The items in their order, without those that came before, and without those in `seen`."""
    seen = set() if seen is None else set(seen)
    found = []
    for item in items:
        if item not in seen:
            seen.add(item)
            found.append(item)
    return found


def rotated(items, count):
    """The items moved to the left by `count` places; what leaves on the left comes back on the right."""
    if not items:
        return []
    count %= len(items)
    return items[count:] + items[:count]
''',
    (
        Bug("chunks", "range(0, len(items), size)", "range(0, len(items) - size + 1, size)", "missing case"),
        Bug("chunks", "start : start + size", "start : start + size - 1", "off by one"),
        Bug("merged", " + right[j:]", "", "missing case"),
        Bug("merged", "left[i] <= right[j]", "left[i] >= right[j]", "wrong operator"),
        Bug("uniques", UNIQUES_HEAD, UNIQUES_HEAD.replace("None", "set()", 1).rpartition("    seen")[0], "mutable default"),
        Bug("uniques", "            seen.add(item)\n", "", "missing step"),
        Bug("rotated", "items[count:] + items[:count]", "items[:count] + items[count:]", "wrong order"),
        Bug("rotated", "    count %= len(items)\n", "", "missing case"),
    ),
    {
        "chunks": lambda rng: [rng.choices(range(9), k=rng.randint(3, 11)), rng.randint(2, 4)],
        "merged": lambda rng: [sorted(rng.choices(range(30), k=5)), sorted(rng.choices(range(30), k=rng.randint(3, 8)))],
        "uniques": lambda rng: [rng.choices(range(12), k=rng.randint(5, 12))],
        "rotated": lambda rng: [rng.sample(range(20), rng.randint(3, 6)), rng.randint(1, 17)],
    },
)

DATES = ModuleFamily(
    '''"""Work with dates."""

LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    """Whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(year, month):
    """How many days a month has; the months are counted from 1."""
    if month == 2 and is_leap(year):
        return 29
    return LENGTHS[month - 1]


def day_of_year(year, month, day):
    """The number of a day in its year, counted from 1."""
    return sum(days_in(year, before) for before in range(1, month)) + day
''',
    (
        Bug("is_leap", " and (year % 100 != 0 or year % 400 == 0)", "", "missing case"),
        Bug("is_leap", " or year % 400 == 0", "", "missing case"),
        Bug("days_in", "month == 2 and is_leap(year)", "month == 2", "missing condition"),
        Bug("days_in", "LENGTHS[month - 1]", "LENGTHS[month - 2]", "off by one"),
        Bug("day_of_year", "range(1, month)", "range(1, month + 1)", "off by one"),
        Bug("day_of_year", "range(1, month)", "range(2, month)", "off by one"),
    ),
    {
        "is_leap": lambda rng: [rng.choice((rng.randrange(1800, 2200), rng.randrange(10, 30) * 100, rng.randrange(3, 8) * 400))],
        "days_in": lambda rng: [rng.randrange(1990, 2030), rng.choice((2, 2, rng.randint(1, 12)))],
        "day_of_year": lambda rng: [rng.randrange(1990, 2030), rng.randint(2, 12), rng.randint(1, 28)],
    },
)

NUMBERS = ModuleFamily(
    '''"""Work with whole numbers."""


def gcd(a, b):
    """The greatest common divisor."""
    while b:
        a, b = b, a % b
    return abs(a)


def lcm(a, b):
    """The least common multiple; 0 if one of the numbers is 0."""
    if a == 0 or b == 0:
        return 0
    return abs(a * b) // gcd(a, b)


def primes(limit):
    """The primes up to `limit`, which may be one of them."""
    return [n for n in range(2, limit + 1) if all(n % d for d in range(2, int(n**0.5) + 1))]


def digits(number, base):
    """The digits of a number from 0 in a base, the highest first."""
    if number == 0:
        return [0]
    found = []
    while number:
        found.append(number % base)
        number //= base
    return found[::-1]
''',
    (
        Bug("gcd", "return abs(a)", "return a", "missing case"),
        Bug("lcm", "abs(a * b) // gcd(a, b)", "abs(a * b)", "missing step"),
        Bug("lcm", "        return 0", "        return 1", "wrong constant"),
        Bug("primes", "range(2, limit + 1)", "range(2, limit)", "off by one"),
        Bug("primes", "int(n**0.5) + 1", "int(n**0.5)", "off by one"),
        Bug("digits", "found[::-1]", "found", "wrong order"),
        Bug("digits", "    if number == 0:\n        return [0]\n", "", "missing case"),
    ),
    {
        "gcd": lambda rng: [rng.choice((1, -1)) * rng.randint(2, 60), rng.choice((1, -1)) * rng.randint(2, 60)],
        "lcm": lambda rng: [rng.choice((0, rng.randint(2, 40))), rng.choice((rng.randint(1, 9) * 2, rng.randint(2, 40)))],
        "primes": lambda rng: [rng.choice((rng.choice((5, 7, 11, 13, 17, 19, 23, 29, 31, 37)), rng.randint(4, 60)))],
        "digits": lambda rng: [rng.choice((0, rng.randint(1, 5000))), rng.randint(2, 16)],
    },
)

PARSING = ModuleFamily(
    '''"""Read short texts."""


def pairs(text):
    """What a text such as "a=1; b=x=2" says, by name; a part without "=" has the value ""."""
    found = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        name, _, value = part.partition("=")
        found[name.strip()] = value.strip()
    return found


def seconds(text):
    """How many seconds a duration such as "1h30m5s" has."""
    total, number = 0, ""
    for character in text:
        if character.isdigit():
            number += character
        else:
            total += int(number) * {"h": 3600, "m": 60, "s": 1}[character]
            number = ""
    return total


def numbers(text):
    """The numbers of a text such as "1-3,7": both ends of a range are in it."""
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found.extend(range(int(first), int(last) + 1) if dash else [int(first)])
    return found
''',
    (
        Bug("pairs", ".partition", ".rpartition", "wrong order"),
        Bug("pairs", "value.strip()", "value", "missing step"),
        Bug("pairs", "        if not part.strip():\n            continue\n", "", "missing case"),
        Bug("seconds", '            number = ""\n', "", "missing step"),
        Bug("seconds", '"h": 3600', '"h": 360', "wrong constant"),
        Bug("numbers", "int(last) + 1", "int(last)", "off by one"),
        Bug("numbers", "range(int(first), ", "range(int(first) + 1, ", "off by one"),
    ),
    {
        "pairs": lambda rng: [
            rng.choice(("; ", ";;")).join(
                f"{name}{rng.choice(('=', ' = '))}{rng.randrange(99)}{rng.choice(('', '=x'))}" for name in rng.sample("abcdefgh", 3)
            )
        ],
        "seconds": lambda rng: [f"{rng.randint(1, 9)}h{rng.randint(1, 59)}m{rng.randint(1, 59)}s"],
        "numbers": lambda rng: [f"{(a := rng.randint(1, 40))}-{a + rng.randint(1, 6)},{rng.randint(1, 99)}"],
    },
)

FAMILIES: Mapping[str, ModuleFamily] = {"text": TEXT, "lists": LISTS, "dates": DATES, "numbers": NUMBERS, "parsing": PARSING}
