"""Parse physical units: a unit is a factor and powers of base units; case matters (mW is not MW).

A unit is written as symbols or names with powers, joined by a space, a dot, `*` or `/`: `kg m/s^2`, `N·m`, `J/(kg K)`,
`metres per second`. A slash divides by the one unit or bracket after it, and by what adjoins it: `J/kg K` is (J/kg)·K, `W/m²K` is W/(m² K).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

Dimensions = tuple[tuple[str, int], ...]
PI = Fraction(3141592653589793238462643383279502884197, 10**39)

SI_UNITS = """
m: m = meter metre meters metres | g: 1/1000 kg = gram grams | s: s = second seconds sec secs
A: A = ampere amperes amp amps | K: K = kelvin kelvins | mol: mol = mole moles | cd: cd = candela candelas | Hz: s^-1 = hertz
N: kg m s^-2 = newton newtons | Pa: kg m^-1 s^-2 = pascal pascals | J: kg m^2 s^-2 = joule joules
W: kg m^2 s^-3 = watt watts | C: A s = coulomb coulombs | V: kg m^2 s^-3 A^-1 = volt volts
F: kg^-1 m^-2 s^4 A^2 = farad farads | Ω: kg m^2 s^-3 A^-2 = ohm ohms Ohm Ohms | S: kg^-1 m^-2 s^3 A^2 = siemens
Wb: kg m^2 s^-2 A^-1 = weber webers | T: kg s^-2 A^-1 = tesla teslas | H: kg m^2 s^-2 A^-2 = henry henrys henries
lm: cd = lumen lumens | lx: cd m^-2 = lux | Bq: s^-1 = becquerel becquerels | Gy: m^2 s^-2 = gray grays
Sv: m^2 s^-2 = sievert sieverts | L: 1/1000 m^3 = l liter litre liters litres
eV: 1602176634/10000000000000000000000000000 kg m^2 s^-2 = electronvolt electronvolts | bar: 100000 kg m^-1 s^-2 = bars
cal: 4184/1000 kg m^2 s^-2 = calorie calories | t: 1000 kg = tonne tonnes | Wh: 3600 kg m^2 s^-2 = | bit: bit = bits
M: 1000 mol m^-3 = molar | B: 8 bit = byte bytes | pc: 30856775814913673 m = parsec parsecs
"""
"""Units that take SI prefixes. Symbol: factor and base units = other names."""
OTHER_UNITS = """
min: 60 s = minute minutes mins | h: 3600 s = hr hrs hour hours | d: 86400 s = day days | week: 604800 s = weeks
ft: 3048/10000 m = foot feet | in: 254/10000 m = inch inches | yd: 9144/10000 m = yard yards
mi: 1609344/1000 m = mile miles | lb: 45359237/100000000 kg = lbs pound pounds
oz: 45359237/1600000000 kg = ounce ounces | lbf: 8896443230521/2000000000000 kg m s^-2 =
psi: 6894757293168/1000000000 kg m^-1 s^-2 = | atm: 101325 kg m^-1 s^-2 = atmosphere atmospheres
mmHg: 133322387415/1000000000 kg m^-1 s^-2 = | torr: 101325/760 kg m^-1 s^-2 = Torr
hp: 7456998715822702/10000000000000 kg m^2 s^-3 = horsepower
u: 166053906660/100000000000000000000000000000000000000 kg = Da dalton | Å: 1/10000000000 m = angstrom ångström
au: 149597870700 m = AU | ly: 9460730472580800 m = | ha: 10000 m^2 = hectare hectares
gal: 3785411784/1000000000000 m^3 = gallon gallons | rad: rad = radian radians | sr: sr =
mph: 1609344/3600000 m s^-1 = | kph: 1000/3600 m s^-1 = kmh | rpm: PI2/60 rad s^-1 =
deg: PI/180 rad = ° degree degrees | percent: 1/100 = %
"""
PREFIXES = {
    "Q": 30, "R": 27, "Y": 24, "Z": 21, "E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "da": 1,
    "d": -1, "c": -2, "m": -3, "µ": -6, "u": -6, "n": -9, "p": -12, "f": -15, "a": -18, "z": -21, "y": -24, "r": -27, "q": -30,
}  # fmt: skip
LONG_PREFIXES = {
    "tera": 12, "giga": 9, "mega": 6, "kilo": 3, "hecto": 2, "deci": -1, "centi": -2, "milli": -3,
    "micro": -6, "nano": -9, "pico": -12, "femto": -15,
}  # fmt: skip
TEMPERATURE_SCALES: dict[str, tuple[Fraction, Fraction]] = {
    "°C": (Fraction(1), Fraction(27315, 100)),
    "°F": (Fraction(5, 9), Fraction(45967, 180)),
}
"""Temperature scales whose zero is not absolute: kelvins = value * factor + offset. Not allowed in products."""
UNIT_SPELLINGS = {
    "℃": "°C", "℉": "°F", "degC": "°C", "degF": "°F", "celsius": "°C", "Celsius": "°C", "fahrenheit": "°F", "Fahrenheit": "°F",
    "Ω": "Ω", "μ": "µ", "Å": "Å", "−": "-", "·": " ", "⋅": " ", "×": " ", "*": " ", "⁻": "-",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
UNIT_FACTOR = re.compile(r"([^\W\d_]+|°[CF]?|%|Å|Ω)(?:\^?\{?\(?([-+]?\d{1,2})\)?\}?)?")
NO_SMALL_PREFIX = ("bit", "B")
"""Units that take no prefixes below kilo: dB is not a tenth of a byte."""
MAX_UNIT_CHARS, MAX_POWER = 100, 12


@lru_cache(maxsize=4096)
def parse_unit(text: str) -> tuple[Fraction, Fraction, Dimensions] | None:
    """Parse a unit into factor, offset and base units; None if it is not a unit.

    >>> parse_unit("km/h") == parse_unit("kph"), parse_unit("mW") == parse_unit("MW"), parse_unit("bananas")
    (True, False, None)
    """
    text = _normalize_spelling(text)
    if not text or len(text) > MAX_UNIT_CHARS:
        return None
    if text in TEMPERATURE_SCALES:
        factor, offset = TEMPERATURE_SCALES[text]
        return factor, offset, (("K", 1),)
    read = _parse_product(text)
    return None if read is None else (read[0], Fraction(0), read[1])


def parse_prefixed_unit(label: str) -> tuple[str, Fraction] | None:
    """Parse one SI unit, by symbol or by name and with a prefix, into its symbol and the prefix's factor; None for anything else.

    >>> parse_prefixed_unit("milliamperes") == parse_prefixed_unit("mA"), parse_prefixed_unit("Tesla"), parse_prefixed_unit("apples")
    (True, ('T', Fraction(1, 1)), None)
    """
    for name in dict.fromkeys((label.strip(), label.strip().lower()) if len(label.strip()) > 3 else (label.strip(),)):
        name = UNIT_SPELLINGS.get(name, name)
        if name in SYMBOLS_BY_NAME:
            return SYMBOLS_BY_NAME[name], Fraction(1)
        for prefixes, is_long in ((PREFIXES, False), (LONG_PREFIXES, True)):
            for prefix, power in prefixes.items():
                symbol = SYMBOLS_BY_NAME.get(name[len(prefix) :]) if name.startswith(prefix) else None
                if symbol is not None and (name[len(prefix) :] != symbol) == is_long:
                    return symbol, Fraction(10) ** power
    return None


def _normalize_spelling(text: str) -> str:
    text = text.strip()
    for sign, becomes in UNIT_SPELLINGS.items():
        text = text.replace(sign, becomes)
    text = re.sub(r"([⁰¹²³⁴-⁹-]*[⁰¹²³⁴-⁹]+)", lambda found: "^" + found[1].translate(SUPERSCRIPTS), text)
    text = re.sub(r"°\s+(?=[CF]\b)", "°", text)
    text = re.sub(r"\bmm\s+Hg\b", "mmHg", text)
    text = re.sub(r"\s+", " ", text).replace("/ ", "/")
    text = re.sub(r"\bdegrees? °(?=[CF])", "°", text)
    text = re.sub(r"\s+per\s+", "/", text)
    text = re.sub(r"\b(square|sq|cubic|cu)\s+([^\W\d_]+)", lambda m: f"{m[2]}^{2 if m[1].startswith('s') else 3}", text)
    return re.sub(r"([^\W\d_]+)\s+(squared|cubed)\b", lambda m: f"{m[1]}^{2 if m[2] == 'squared' else 3}", text)


def _parse_product(text: str) -> tuple[Fraction, Dimensions] | None:
    """Parse a product and quotient of factors; a bracket may follow a slash."""
    factor, powers = Fraction(1), dict[str, int]()
    sign, at = 1, 0
    text = text.strip()
    while at < len(text):
        if text[at] == "/":
            sign, at = -1, at + 1
            continue
        if text[at].isspace():
            sign, at = 1, at + 1
            continue
        if text[at] == "(":
            end = text.find(")", at)
            inner = text[at + 1 : end]
            read = _parse_product(inner) if end > 0 and "(" not in inner and "/" not in inner else None
            power, at = 1, end + 1
        else:
            found = UNIT_FACTOR.match(text, at)
            read = _lookup_unit(found[1]) if found else None
            power, at = int(found[2] or 1) if found else 1, found.end() if found else at
        if read is None or not 0 < abs(power) <= MAX_POWER:
            return None
        factor *= read[0] ** (sign * power)
        for base, count in read[1]:
            powers[base] = powers.get(base, 0) + sign * power * count
    return factor, tuple(sorted((base, count) for base, count in powers.items() if count))


def _lookup_unit(name: str) -> tuple[Fraction, Dimensions] | None:
    if name in ALL_UNITS:
        return ALL_UNITS[name]
    for prefixes, units in ((PREFIXES, SYMBOL_UNITS), (LONG_PREFIXES, NAMED_UNITS)):
        for prefix, power in prefixes.items():
            if name.startswith(prefix) and name[len(prefix) :] in units and not (power < 3 and name[len(prefix) :] in NO_SMALL_PREFIX):
                factor, base = units[name[len(prefix) :]]
                return factor * Fraction(10) ** power, base
    pair = re.fullmatch(r"(N|A|W|V)(m|s|h)", name)  # Nm, As, Vs: products written without a sign
    if pair is None or pair[1] not in ALL_UNITS or pair[2] not in ALL_UNITS:
        return None
    one, two = ALL_UNITS[pair[1]], ALL_UNITS[pair[2]]
    powers = dict(one[1])
    for unit, count in two[1]:
        powers[unit] = powers.get(unit, 0) + count
    return one[0] * two[0], tuple(sorted((unit, count) for unit, count in powers.items() if count))


def _parse_table(table: str) -> dict[str, tuple[tuple[Fraction, Dimensions], list[str]]]:
    rows = {}
    for entry in re.split(r"[|\n]", table.strip()):
        symbol, _, rest = entry.partition(":")
        value, _, names = rest.partition("=")
        factor, powers = Fraction(1), {}
        for word in value.split():
            base, _, power = word.partition("^")
            if base[0].isdigit():
                factor = Fraction(base)
            elif base.startswith("PI"):
                head, _, below = base.partition("/")
                factor = PI * int(head[2:] or 1) / int(below)
            else:
                powers[base] = int(power or 1)
        rows[symbol.strip()] = ((factor, tuple(sorted(powers.items()))), names.split())
    return rows


def _build_tables() -> tuple[dict[str, tuple[Fraction, Dimensions]], ...]:
    short, long, every = {}, {}, {}
    for symbol, (value, names) in _parse_table(SI_UNITS).items():
        short[symbol] = every[symbol] = value
        for name in names:
            every[name] = value
            if len(name) > 1:
                long[name] = value
    short["l"] = every["l"]
    short["ohm"] = short["Ohm"] = short["ohms"] = short["Ohms"] = every["ohm"]
    for symbol, (value, names) in _parse_table(OTHER_UNITS).items():
        for name in (symbol, *names):
            every[name] = value
    every["kcal"] = (short["cal"][0] * 1000, short["cal"][1])
    every["kgs"] = (short["g"][0] * 1000, short["g"][1])
    return short, long, every


SYMBOLS_BY_NAME = {name: symbol for symbol, (_, names) in _parse_table(SI_UNITS).items() if symbol != "M" for name in (symbol, *names)}
"""The symbol of each SI unit, by its symbol and by its names; without M for molar, which is a letter in a formula."""
SYMBOL_UNITS, NAMED_UNITS, ALL_UNITS = _build_tables()
"""Symbols that take a short prefix, names that take a long one, and every unit without a prefix."""
