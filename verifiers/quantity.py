"""Verify a physical quantity: a number with a unit, converted where units differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._markup import strip_markdown_and_latex
from rlvr.verifiers._units import Dimensions, parse_unit

LATEX_RULES: tuple[tuple[str, str, str], ...] = (
    (r"\^\s*\{\s*([+\-−]?\d{1,3})\s*\}", r"^\1", "s^{-2}"),
    (r"\\(?:text|mathrm|rm|mathit|operatorname|unit|si)\s*\{([^{}]*)\}", r" \1 ", r"\mathrm{kg}"),
    (r"\\[dt]?frac\s*\{([^{}0-9][^{}]*)\}\s*\{([^{}]*)\}", r" \1/(\2)", r"\frac{m}{s^2}"),
    (r"\s+(?=\^)", "", r"\text{s}^2"),
    (r"\\(?:[,;:! ]|quad|cdot|times(?!\s*10))|~", " ", r"10\,N"),
    (r"\\(?:mu|micro)(?![a-zA-Z])\s*", "µ", r"\mu m"),
    (r"\\(?:Omega|ohm)(?![a-zA-Z])", "Ω", r"\Omega"),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])|\\circ(?![a-zA-Z])", "°", r"25^\circ C"),
    (r"\\%", "%", r"5\%"),
    (r"\\?\$", "", "$5$ m"),
)
"""LaTeX markup that does not change a quantity: pattern, replacement, example."""
NUMBER = re.compile(
    r"(?P<sign>[+\-−]?)\s?(?P<whole>\d{1,3}(?:,\d{3})+|\d+)?(?:\.(?P<part>\d+))?"
    r"(?:[eE](?P<e>[+-]?\d{1,3})|\s*(?:\\times|×|x|\*|\\cdot|·)\s*10\s*\^?\s*\{?(?P<ten>[+\-−]?[\d⁻⁰¹²³⁴-⁹]{1,4})\}?)?(?![\d.,])",
    re.ASCII,
)
PART = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([^\W\d_]+)")
PARTS = re.compile(
    r"[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)\s*[^\W\d_]+(?:,?\s+(?:and\s+)?\d+(?:\.\d+)?\s*[^\W\d_]+){1,5}"
    r"|[-−]?(?:\d+(?:d|h|hr|min))+\d+(?:\.\d+)?(?:h|hr|min|s|sec)"
)
"""A quantity in parts: with spaces between them, or without for times alone (`1h30min`)."""
BARE_POWER_OF_TEN = re.compile(r"^([+\-−]?)10\s?\^\s?([+\-−]?\d{1,3})(?![\d.])")
QUANTITY_NAME = re.compile(r"\s*[A-Za-zα-ω](?:_?\{?\w{1,8}\}?)?\s*(?:=|≈|\\approx)\s*")
"""The name of the quantity before its value: `v = `."""
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--")
MAX_QUANTITY_CHARS, ROUNDING_TOLERANCE = 200, Fraction(1, 10**9)


class Quantity(Verifier):
    """The answer is one number with one unit, or in parts such as `2 h 30 min`, and equals the reference.

    The reference is a text such as `9.81 m/s^2`, or `{"value": 9.81, "unit": "m/s^2"}`. The unit is required, its case counts, and it may
    be any unit of the same kind (`72 km/h` is `20 m/s`) unless `convert` is false. An unknown unit gives no score in the
    reference and is wrong in the answer. A task's `meta["tolerance"]` overrides the setting.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("quantity").verify
    >>> verify(rlvr.Task(rlvr.make_user_prompt("?"), id="t", reference="10 N"), "10 kg m/s^2").score
    1.0
    """

    version = "4"  # 3: units in fractions of LaTeX; 4: quantities in parts, more spellings of units
    examples = (
        VerifierExample("72 km/h", correct=("72 km/h", "20 m/s"), incorrect=("72", "20 km/h", "72 km/h or 20 km/h", "20 s/m", "")),
        VerifierExample({"value": 5, "unit": "mW"}, correct=("5 mW", "0.005 W"), incorrect=("5 MW", "5")),
    )

    def __init__(self, *, extractor: str = "auto", tolerance: float = 0.0, convert: bool = True) -> None:
        """Set where the answer is declared and how it is compared.

        Args:
            extractor: where the answer is declared: auto, whole, boxed, tag, hash, final_line or fence.
            tolerance: the largest difference as a fraction of the reference's value in its own unit (2 % of 25 °C is 0.5 °C);
                0 allows only floating-point rounding (one part in 10^9).
            convert: whether another unit of the same kind is accepted.
        """
        extract_answer("", extractor)
        self.extractor, self.tolerance, self.convert = extractor, _parse_tolerance(tolerance), convert

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Compare the declared quantity with the reference."""
        try:
            tolerance = _parse_tolerance(task.meta.get("tolerance", self.tolerance))
            gold = _parse_reference(task.reference)
        except ConfigError as error:
            return Verdict(None, str(error), fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        said = _parse_quantity(found.text)
        if said is None:
            return Verdict(0.0, f"{found.text!r:.80} is not one number with one unit")
        if not said.has_same_unit_as(gold) and (not self.convert or said.dimensions != gold.dimensions):
            why = "not the unit of the reference" if said.dimensions == gold.dimensions else "of another kind than the reference"
            return Verdict(0.0, f"the unit of {found.text!r:.80} is {why}")
        mine, theirs = said.in_base_units, gold.in_base_units
        near = tolerance * abs(gold.value * gold.factor)  # of the value as it is written: 2 % of 25 °C is half a degree
        right = abs(mine - theirs) <= max(near, ROUNDING_TOLERANCE * abs(theirs))
        return Verdict(float(right), f"{found.text!r:.80} {'equals' if right else 'is not'} {task.reference!r:.80}")

    @property
    def explained_functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        """Return the functions whose results are steps of an explanation."""
        return (("parsed", _parse_quantity),)


class ParsedQuantity(NamedTuple):
    """A number with its unit: `value * factor + offset` in base units."""

    value: Fraction
    factor: Fraction
    offset: Fraction
    dimensions: Dimensions
    """The base units with their powers."""
    part_factors: tuple[Fraction, ...] = ()
    """The factors of the units of a quantity in parts."""

    @property
    def in_base_units(self) -> Fraction:
        """The number in base units."""
        return self.value * self.factor + self.offset

    def has_same_unit_as(self, other: ParsedQuantity) -> bool:
        """Whether both have the same unit, under whatever name."""
        return self[1:] == other[1:]


def _parse_quantity(text: str) -> ParsedQuantity | None:
    """Parse a number with its unit; None for any other text.

    >>> _parse_quantity("3 min").in_base_units, _parse_quantity("3")
    (Fraction(180, 1), None)
    """
    text = strip_markdown_and_latex(text)
    if len(text) > MAX_QUANTITY_CHARS:
        return None
    for pattern, becomes, _example in LATEX_RULES:
        text = re.sub(pattern, becomes, text)
    text = QUANTITY_NAME.sub("", text, count=1).strip().removesuffix(".")
    text = BARE_POWER_OF_TEN.sub(r"\g<1>1 × 10^\2", text)
    return _parse_parts(text) or _parse_number_with_unit(text)


def _parse_parts(text: str) -> ParsedQuantity | None:
    """Parse a quantity in parts of ever smaller units, such as `2 h 30 min`: each part but the first is less than one of the unit before.

    >>> _parse_parts("2 h 30 min").in_base_units, _parse_parts("2 h 90 min"), _parse_parts("5 m 6 m")
    (Fraction(9000, 1), None, None)
    """
    if PARTS.fullmatch(text) is None:
        return None
    parts = [_parse_number_with_unit(f"{part[1]} {part[2]}") for part in PART.finditer(text)]
    last, total = parts[-1], Fraction(0)
    for part, above in zip(parts, [None, *parts], strict=False):
        if part is None or last is None or part.dimensions != last.dimensions or part.offset:
            return None
        if above is not None and not max(part.value, Fraction(1)) * part.factor < above.factor:
            return None
        total += part.value * part.factor
    assert last is not None
    factors = tuple(part.factor for part in parts if part is not None)
    return last._replace(value=(-total if text[0] in "-−" else total) / last.factor, part_factors=factors)


def _parse_number_with_unit(text: str) -> ParsedQuantity | None:
    found = NUMBER.match(text)
    if found is None or not (found["whole"] or found["part"]):
        return None
    unit = text[found.end() :].strip()
    known = parse_unit(unit) if unit else None
    if known is None:
        return None
    digits = (found["whole"] or "0").replace(",", "") + (found["part"] or "")
    power = int((found["e"] or found["ten"] or "0").translate(SUPERSCRIPTS)) - len(found["part"] or "")
    value = Fraction(int(digits)) * Fraction(10) ** power
    return ParsedQuantity(-value if found["sign"] in ("-", "−") else value, *known)


def _parse_reference(reference: Any) -> ParsedQuantity:
    text = f"{reference.get('value')} {reference.get('unit')}" if isinstance(reference, Mapping) else reference
    gold = _parse_quantity(text) if isinstance(text, str) else None
    if gold is None:
        raise ConfigError(f"the reference {reference!r:.80} is not a number with a known unit, such as '9.81 m/s^2'")
    return gold


def _parse_tolerance(given: Any) -> Fraction:
    if isinstance(given, Fraction):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        raise ConfigError(f"tolerance is {given!r}; it must be a number from 0 to 1")
    return Fraction(given)


make = Quantity
