"""Units of measure: parse a unit label, and decide whether two labels may mean the same quantity.

A label is parsed into powers of base units and a factor: "cm^2" is ((("m", 2),), 1/10000). A word that is not in the table
is a counted thing ("18 eggs"): its own base unit, without a conversion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

Measure = tuple[tuple[tuple[str, int], ...], Fraction]

NUMBER_MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
NUMBER_MULTIPLES |= {"lakh": 10**5, "crore": 10**7, "quadrillion": 10**15}

# `NAME FACTOR: WORDS`: a unit of so many metres, by the words that name it; plurals with s need no word of their own.
# `BASE@ FACTOR: WORDS`: a unit of so many of another base unit. Rows stand on lines of their own or between bars.
_UNIT_TABLE = """
m 1: m meter metre | cm 1/100: cm centimeter centimetre | mm 1/1000: mm millimeter millimetre | km 1000: km kilometer kilometre
dm 1/10: dm decimeter decimetre
in 254/10000: in inch inche | ft 3048/10000: ft foot feet | yd 9144/10000: yd yard | mi 1609344/1000: mi mile
g@ 1: g gram | g@ 1000: kg kilogram kilo | g@ 1/1000: mg milligram
g@ 45359237/100000: lb lbs pound | g@ 45359237/1600000: oz ounce
g@ 1000000: ton tonne
s@ 1: s sec second | s@ 60: min minute | s@ 3600: h hr hour | s@ 86400: day | s@ 604800: week | s@ 1/1000: ms millisecond
month@ 1: month | month@ 12: year yr
money@ 1: dollar usd buck | money@ 1/100: cent penny pennies c | euro@ 1: euro eur | gbp@ 1: gbp quid
rupee@ 1: rupee inr | yen@ 1: yen jpy
angle@ 1: radian rad | angle@ pi: degree deg degrees
volume@ 1: l liter litre | volume@ 1/1000: ml milliliter millilitre | volume@ 3785411784/1000000000: gallon gal
volume@ 946352946/1000000000: quart
volume@ 473176473/1000000000: pint | volume@ 2365882365/10000000000: cup
n@ 1: n newton | j@ 1: j joule | j@ 1000: kj kilojoule | w@ 1: w watt | w@ 1000: kw kilowatt
hz@ 1: hz hertz | v@ 1: v volt | pa@ 1: pa pascal
coulomb@ 1: coulomb | kelvin@ 1: k kelvin | celsius@ 1: celsius | fahrenheit@ 1: fahrenheit | mol@ 1: mol mole | bit@ 1: bit | bit@ 8: byte
percent@ 1: percent percentage pct | unit@ 1: unit | unit@ 2: pair
"""

_DERIVED: Mapping[str, Measure] = {
    "n": ((("g", 1), ("m", 1), ("s", -2)), Fraction(1000)),
    "j": ((("g", 1), ("m", 2), ("s", -2)), Fraction(1000)),
    "w": ((("g", 1), ("m", 2), ("s", -3)), Fraction(1000)),
    "pa": ((("g", 1), ("m", -1), ("s", -2)), Fraction(1000)),
    "hz": ((("s", -1),), Fraction(1)),
    "volume": ((("m", 3),), Fraction(1, 1000)),
}
"""The base units of newtons, joules, watts, pascals, hertz and litres."""

_UNITS: dict[str, tuple[str, Fraction]] = {}
for _entry in re.split(r"[|\n]", _UNIT_TABLE.strip()):
    _head, _, _words = _entry.partition(":")
    _name, _factor = _head.split()
    _base = _name.rstrip("@") if _name.endswith("@") else ("m" if "/" not in _name and _name != "mph" else _name)
    for _word in _words.split():
        _UNITS[_word] = (_base, Fraction(1) if _factor == "pi" else Fraction(_factor))

_NON_UNIT_WORDS = (
    "or and wrong incorrect invalid factorial half halves thirds fourths tenths hundredths plus minus times divided choose not "
    "maybe either neither nor to than is are be was if then else but also approximately about probably answer the a an of in base "
    "mod no yes none all any both true false impossible undefined when where for such that with without from between only "
    "less fewer below above under beyond by out off short remainder point twice thrice too perhaps fails wait double triple "
    "tens hundredths thousandths millionths at most least let suppose assume"
)
NON_UNIT_WORDS = frozenset(_NON_UNIT_WORDS.split())
_VALUE_CHANGING_WORDS = "negative opposite reciprocal inverse double doubled twice triple tripled thrice neg lnot nexists"
_VALUE_CHANGING_WORDS += " converse contrary reverse negation contrapositive false wrong"
VALUE_CHANGING_WORDS = frozenset(_VALUE_CHANGING_WORDS.split())
"""Words that change the value of the word next to them."""
_DIGIT = "zero one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
CARDINALS = {word: number for number, word in enumerate(f"{_DIGIT} {_TEENS}".split())}
CARDINALS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
_STEMS = "four fif six seven eigh nin ten eleven twelf thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_STEMS += " twentie thirtie fortie fiftie sixtie seventie eightie ninetie hundred thousand million billion trillion n k"
_PARTS = re.compile(rf"(?:{'|'.join(_STEMS.split())})ths?|halfs?|halve[sd]?|thirds?|[1-9]\d*(?:st|nd|rd|th)s?")
_AMOUNT = "score gross grand nought naught nil nada aught umpteen couple few several many some more plenty tens ones"
_AMOUNT += " ish fold milliard myriad radical"
AMOUNT_WORDS = frozenset(_AMOUNT.split())
_FUNCTION_WORDS = "pi tau infinity infty oo sqrt root sin cos tan cot sec csc log ln exp lg arcsin arccos arctan sinh cosh tanh"
_FUNCTION_WORDS += " det gcd lcm max min abs floor ceil"
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


_TURNED = VALUE_CHANGING_WORDS | {"half", "plus", "minus", "times"}


def _is_changing_word(word: str) -> bool:
    """Whether a word beside a counted thing makes the text say something else than the count: a number, a denial, a conjunction."""
    return (word in NON_UNIT_WORDS and word not in ("the", "a", "an", "of", "in")) or is_number_word(word) or not word.isalpha()


def is_number_word(word: str) -> bool:
    """Whether a word is a number, a part of one, an amount or a function, and so never the name of a counted thing.

    >>> [is_number_word(word) for word in ("fifths", "eight", "zillion", "score", "sqrt", "apples", "months")]
    [True, True, True, True, True, False, False]
    """
    if _TURNED & set(word.lower().split("-")):  # half-hours
        return True
    word = word.lower().rstrip("s") if word.lower() not in AMOUNT_WORDS | FUNCTION_WORDS else word.lower()
    counted = word in CARDINALS or word in AMOUNT_WORDS or word in FUNCTION_WORDS or _PARTS.fullmatch(word) is not None
    return counted or re.fullmatch(r"(?:[a-z]*-)?(?:[a-z]*illion|[a-z]+ty-[a-z]+)|googol(?:plex)?", word) is not None


_VERDICT_WORD = re.compile(
    r".+[^e]ed|negative|opposite|reciprocal|inverse|(?:possib|probab|exact|near|rough|hard|bare|suppos\w*|on|real)ly"
)
"""Words that a counted thing cannot end with: `42 rejected`, `42 possibly`."""
_UNIT_WORDS = frozenset(word for word in _UNITS if len(word) >= 2) | frozenset(NUMBER_MULTIPLES) - {"in", "percent"}
_UNIT_LETTERS = frozenset("mgshLlNJWV")


def is_unit(word: str) -> bool:
    """Whether a word of two letters or more is a unit of the table, in singular or plural."""
    word = word.lower()
    return word in _UNIT_WORDS or (word.endswith("s") and word[:-1] in _UNIT_WORDS)


def describe_unit_reading(label: str) -> str:
    """Say how a label is read, and where that is decided.

    >>> describe_unit_reading("furlongs")
    'furlongs: not in _UNIT_TABLE (verifiers/math/parsing/units.py), read as the name of a counted thing'
    """
    words = [word.lower() for word in re.findall(r"[^\W\d_]+", label)]
    known = all(word in _UNITS or is_unit(word) or word in ("square", "cubic", "sq", "cu", "per") for word in words)
    table = "_UNIT_TABLE (verifiers/math/parsing/units.py)"
    if known or parse_unit_label(label) is None:
        return f"{label}: {'in' if known else 'no unit by'} {table}"
    return f"{label}: not in {table}, read as the name of a counted thing"


def is_letter_unit(letter: str) -> bool:
    """Whether a letter is the symbol of a unit, as in `5 m`."""
    return letter in _UNIT_LETTERS


@lru_cache(maxsize=4096)
def parse_unit_label(label: str) -> Measure | None:
    """Parse a unit label into powers of base units and a factor; None for words that count nothing ("or 43", "not").

    >>> parse_unit_label("square inches")
    ((('m', 2),), Fraction(16129, 25000000))
    """
    if re.fullmatch(r"[a-z](?:\.\s*[a-z])+\.?", label.strip().lower()):  # B.C.
        return None
    text = re.sub(r"\\cdot|[\\.]|\s+", " ", label.lower().replace("{", "").replace("}", ""))
    text = re.sub(r" +", " ", text).strip()
    text = re.sub(r"^deg(?:ree)?s? (?=celsius|fahrenheit|kelvin)", "", text)
    if re.match(r"(?:th|st|nd|rd) .", text):  # 5th root
        return None
    text = re.sub(r"\b(?:mph|k(?:m)?ph|kmh|mps)\b", lambda m: {"mph": "mile/hour", "mps": "m/s"}.get(m[0], "km/hour"), text)
    text = re.sub(r"^of (?:the|a|an) (?=\w+$)", "", text)
    if not text or len(text) > 60 or not re.fullmatch(r"[a-zà-ɏ0-9^/*() '-]+", text):
        return None
    over = re.split(r"\s*/\s*|\s+per\s+|^per\s+", text)
    powers: dict[str, int] = {}
    factor = Fraction(1)
    for place, part in enumerate(over):
        sign = 1 if place == 0 else -1
        read = _parse_product(part)
        if read is None:
            return None
        for base, power in read[0]:
            powers[base] = powers.get(base, 0) + sign * power
        factor *= read[1] ** sign
    for name, (parts, scale) in _DERIVED.items():
        times = powers.pop(name, 0)
        factor *= scale**times
        for base, power in parts:
            powers[base] = powers.get(base, 0) + power * times
    return tuple(sorted((base, power) for base, power in powers.items() if power and base != "unit")), factor


def _parse_product(text: str) -> Measure | None:
    words = text.replace("*", " ").replace("(", " ").replace(")", " ").split()
    powers: dict[str, int] = {}
    factor = Fraction(1)
    things: list[str] = []
    raised, start = 1, 0
    if words and words[0] in ("square", "sq", "cubic", "cu"):
        raised, start = (2 if words[0].startswith("s") else 3), 1
    if words[start : start + 1] == ["more"] and words[start + 1 :]:  # 15 more petals
        start += 1
    for place, word in enumerate(words[start:], start):
        name, _, power = word.partition("^")
        if name == "of" and (things or powers) and place + 1 < len(words) and not any(map(_is_changing_word, words[place + 1 :])):
            if things[-1:] == ["quarter"]:
                return None  # 3 quarters of a pie are no 3
            break  # bags of oats are bags
        if name in ("squared", "cubed"):
            raised = 2 if name == "squared" else 3
            continue
        if (name in NON_UNIT_WORDS and not (name == "in" and (power or raised > 1 or len(words) == 1))) or (
            power and not re.fullmatch(r"-?\d", power)
        ):
            return None
        if name in NUMBER_MULTIPLES:
            factor *= NUMBER_MULTIPLES[name]
            continue
        if name.endswith("s") and name[:-1] in NUMBER_MULTIPLES:
            factor *= NUMBER_MULTIPLES[name[:-1]]
            continue
        unit = _UNITS.get(name) or (_UNITS.get(name[:-1]) if name.endswith("s") else None)
        if unit and not things:
            exponent = int(power or 1)
            powers[unit[0]] = powers.get(unit[0], 0) + exponent
            factor *= unit[1] ** exponent
        elif re.fullmatch(r"[a-zà-ɏ](?:[a-zà-ɏ'-]*[a-zà-ɏ'])?", name) and not is_number_word(name):
            things.append(_to_singular(name) + (f"^{power}" if power else ""))
        else:
            return None
    if things:
        if _VERDICT_WORD.fullmatch(words[-1]) and len(words[-1]) > 4:
            return None
        powers[" ".join(things)] = 1
    if raised > 1 and not powers:
        return None
    return tuple((base, power * raised) for base, power in powers.items()), factor**raised


def _to_singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 and not word.endswith("ss") else word


def is_angle(measure: Measure | None) -> bool:
    """Whether the label is degrees or radians."""
    return measure is not None and measure[0] == (("angle", 1),)


def is_base_unit(name: str) -> bool:
    """Whether a name is one of the table's base units, and not a counted thing."""
    return any(base == name for base, _ in _UNITS.values())


def is_money(measure: Measure | None) -> bool:
    """Whether the label is a currency; amounts of money are not rounded."""
    return measure is not None and len(measure[0]) == 1 and measure[0][0][0] in ("money", "euro", "gbp", "rupee", "yen")


def is_degree(label: str) -> bool:
    """Whether the label means degrees, which differ from radians by an irrational factor."""
    return label.lower().strip(" .") in ("degree", "degrees", "deg", "degs")
