"""Compare one value with one value: numbers, expressions, quantities with units, percentages, and the form a value must have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from rlvr.verifiers._scientific import is_scientific_notation
from rlvr.verifiers._units import parse_prefixed_unit
from rlvr.verifiers.math.conventions import MathConventions
from rlvr.verifiers.math.parsing.tree import (
    LimitExceeded,
    Tree,
    describe_tree,
    format_integer,
    format_tree,
    get_free_symbols,
    get_infinity_sign,
    has_op,
    iter_children,
    list_nodes,
    sort_terms,
    substitute,
)
from rlvr.verifiers.math.parsing.units import (
    Measure,
    is_angle,
    is_base_unit,
    is_degree,
    is_letter_unit,
    is_money,
    is_unit,
    parse_unit_label,
)
from rlvr.verifiers.math.values.normal_form import is_equal_normal_form
from rlvr.verifiers.math.values.numeric import differs_at_sample_points, evaluate_real, get_thread_mp_context
from rlvr.verifiers.math.values.rational import NotFinite, to_rational

SHORT_EXPANSION_STEPS = 2_000
"""Budget of the first, short attempt at expansion."""

PIECEWISE_FUNCTIONS = frozenset(("abs", "floor", "ceil", "max", "min", "sgn", "arg"))
"""Functions for which agreement at sample points is no evidence: they need a proof."""

INTEGRATION_VARIABLES = frozenset(("x", "y", "z", "t", "u", "v", "w", "s", "r", "n", "theta"))
"""Letters of integration: together with one of them an added C is a constant, elsewhere it is a letter."""

POWER_WORDS = frozenset(("square", "squared", "sq", "cubic", "cubed", "cu"))

PERCENT_WORDS = frozenset(("percent", "percentage", "pct"))

TEN: Tree = ("num", 10, 1)

DOUBLE_DIGITS = 18
"""Maximum significant digits that a computer prints for a double."""

Algebra = Callable[[Tree, Tree], bool | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison, and the reason in words.

    >>> Comparison(False, "1 is not 2").is_equal
    False
    """

    is_equal: bool
    reason: str


@dataclass(slots=True)
class CompareContext:
    """The context of a comparison: the policy, the algebra system for hard cases, and the remaining steps.

    >>> CompareContext(MathConventions()).conventions.percent
    'lenient'
    """

    conventions: MathConventions
    algebra: Algebra | None = None
    steps_left: int = 400

    def is_same_value(self, a: Tree, b: Tree) -> bool:
        """Whether two expressions have the same value: exactly, by normal form, by sample points, then by algebra."""
        if a == b:
            return True
        left, right = to_rational(a), to_rational(b)
        if left is not None and right is not None:
            return left == right
        if get_free_symbols(a) != get_free_symbols(b) and not (
            get_free_symbols(a) <= get_free_symbols(b) or get_free_symbols(b) <= get_free_symbols(a)
        ):
            return False
        if get_infinity_sign(a) or get_infinity_sign(b):
            return get_infinity_sign(a) == get_infinity_sign(b)
        try:
            formed = is_equal_normal_form(a, b, SHORT_EXPANSION_STEPS)
        except LimitExceeded:
            if sort_terms(a) == sort_terms(b):
                return True
            if _is_distinguishable(a, b):
                return False
            formed = is_equal_normal_form(a, b)
        if formed is not None:
            return formed
        apart = differs_at_sample_points(a, b)
        if apart is True:
            return False
        if apart is False and not any(node[0] == "fun" and node[1] in PIECEWISE_FUNCTIONS for tree in (a, b) for node in list_nodes(tree)):
            return True  # equal to sixty digits and more, at unpredictable points
        return self.algebra is not None and self.algebra(a, b) is True


def _is_distinguishable(a: Tree, b: Tree) -> bool:
    """Whether sample points distinguish two expressions, which is faster than a long expansion."""
    try:
        return differs_at_sample_points(a, b) is True
    except (LimitExceeded, NotFinite):
        return False


def explain_invalid_value(tree: Tree) -> str:
    """Explain why a tree is no valid answer for any gold (division by zero, arithmetic with infinity); "" if it is valid."""
    for node in list_nodes(tree):
        if node[0] == "div" and compute_exact_value(node[2]) == 0:
            return "it divides by zero"
        if node[0] in ("add", "mul", "div", "pow", "fun", "root", "pm") and ("const", "oo") in [
            arg[1] if isinstance(arg, tuple) and arg[0] == "neg" else arg for arg in node[1:]
        ]:
            return "it calculates with infinity"
    return ""


def compute_exact_value(tree: Tree) -> Fraction | None:
    """Return the exact value, or None if there is none or it is not finite."""
    try:
        return to_rational(tree)
    except NotFinite:
        return None


def compare_integers(gold: Tree, answer: Tree) -> Comparison:
    """Compare one integer with one integer, the most common case.

    >>> compare_integers(("num", 12, 1), ("num", 13, 1)).reason
    '13 is not 12'
    """
    right = gold == answer
    return Comparison(right, f"{format_integer(answer[1])} {'equals' if right else 'is not'} {format_integer(gold[1])}")


def compare_scalars(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare one value with one value, units and percent first."""
    gold, answer = _drop_label_of_percentage(gold, answer), _drop_label_of_percentage(answer, gold)
    if gold[0] == "percent" or answer[0] == "percent":
        return _compare_percentages(gold, answer, context)
    gold_value, gold_unit = split_unit(gold)
    value, unit = split_unit(answer)
    if not get_free_symbols(gold) and not unit:
        value, unit = _split_letter_unit(answer)
        answer = ("unit", value, unit) if unit else answer
    elif unit and not gold_unit and not get_free_symbols(answer):
        gold_value, gold_unit = _split_letter_unit(gold)
    if unit and not gold_unit and (split := split_unit_symbol(gold, unit)) is not None:
        gold_value, gold_unit = split
        gold = ("unit", *split)
    elif gold_unit and not unit and (split := split_unit_symbol(answer, gold_unit)) is not None:
        value, unit = split
        answer = ("unit", *split)
    if not gold_unit and not unit:
        return compare_unitless_values(gold, answer, context)
    if any(is_money(parse_unit_label(label)) for label in (gold_unit, unit) if label):  # a price is not rounded
        context = replace(context, conventions=replace(context.conventions, tolerance=0, min_answer_digits=100))
    if get_free_symbols(answer) | get_free_symbols(gold):  # in a formula, ml^2 is m times l^2
        known = get_free_symbols(answer) | get_free_symbols(gold)
        spelled = (
            _split_units_into_letters(gold, ALL_LETTERS if gold[0] != "unit" else known),
            _split_units_into_letters(answer, ALL_LETTERS if answer[0] != "unit" else known),
        )
        if spelled != (gold, answer):
            return compare_scalars(*spelled, context)
    if gold_unit and unit:
        return _compare_with_units(gold_value, gold_unit, value, unit, context)
    if gold_unit:
        if is_degree(gold_unit) and has_op(value, "const"):
            return compare_unitless_values(gold_value, ("div", ("mul", value, ("num", 180, 1)), ("const", "pi")), context)
        if context.conventions.units == "required":
            return Comparison(False, f"the unit is missing; the gold is {describe_tree(gold)}")
        return compare_unitless_values(gold_value, value, context)
    if parse_unit_label(unit) is None:
        return Comparison(False, f"{unit!r} is not a known unit")
    if unit.lower() in PERCENT_WORDS:
        return _compare_percentages(gold, ("percent", value), context)
    if is_degree(unit) and has_op(gold, "const", "fun"):
        return compare_unitless_values(gold, ("div", ("mul", value, ("const", "pi")), ("num", 180, 1)), context)
    return compare_unitless_values(gold, value, context)


def split_unit_symbol(tree: Tree, name: str) -> tuple[Tree, str] | None:
    """Split a quantity whose last factor is the symbol of a unit: 3 A beside the word amperes; None for anything else."""
    named = parse_prefixed_unit(name)
    if named is None or tree[0] != "mul" or tree[-1] not in (("sym", named[0]), ("sym", {"Ω": "Omega"}.get(named[0], ""))):
        return None
    return (tree[1] if len(tree) == 3 else tree[:-1]), named[0]


def _compare_with_units(gold: Tree, gold_unit: str, value: Tree, unit: str, context: CompareContext) -> Comparison:
    if gold_unit.lower() == unit.lower() and not (len(unit) < 4 and {gold_unit[0], unit[0]} == {"m", "M"}):  # mW is not MW
        return compare_unitless_values(gold, value, context)
    if gold_unit.lower() == unit.lower():
        return Comparison(False, f"the units conflict: {unit}, but the gold has {gold_unit}")
    si_wanted, si_given = parse_prefixed_unit(gold_unit), parse_prefixed_unit(unit)
    wanted, given = parse_unit_label(gold_unit), parse_unit_label(unit)
    if si_wanted is not None and si_given is not None and si_wanted[0] == si_given[0] and (wanted and wanted[0]) != (given and given[0]):
        wanted, given = (((si_wanted[0], 1),), si_wanted[1]), (((si_given[0], 1),), si_given[1])  # a symbol and a name of one unit
    if wanted is None or given is None:
        return Comparison(False, f"{(gold_unit if wanted is None else unit)!r} is not a known unit")
    if is_angle(wanted) and is_angle(given):
        if is_degree(gold_unit) != is_degree(unit):
            over = (("num", 180, 1), ("const", "pi")) if is_degree(gold_unit) else (("const", "pi"), ("num", 180, 1))
            value = ("div", ("mul", value, over[0]), over[1])
        return compare_unitless_values(gold, value, context)
    if wanted[0] and given[0] and wanted[0] != given[0]:
        if not _is_same_counted_thing(gold_unit, unit) and not _is_rate_of_thing(wanted, given):
            return Comparison(False, f"the units conflict: {unit}, but the gold has {gold_unit}")
        return compare_unitless_values(gold, value, context)
    ratio = given[1] / wanted[1]
    scaled = value if ratio == 1 or not (wanted[0] and given[0]) else ("mul", value, ("num", ratio.numerator, ratio.denominator))
    judged = compare_unitless_values(gold, scaled, context)
    return (
        judged
        if ratio == 1 or judged.is_equal
        else Comparison(False, f"{format_tree(value)} {unit} is not {format_tree(gold)} {gold_unit}")
    )


def _is_rate_of_thing(wanted: Measure, given: Measure) -> bool:
    """Whether one label is the other per counted thing: `5.4 cents per orange` and `5.4 cents`."""
    apart = set(wanted[0]) ^ set(given[0])
    return wanted[1] == given[1] and bool(apart) and all(power == -1 and not is_base_unit(base) for base, power in apart)


def _is_same_counted_thing(thing: str, other_thing: str) -> bool:
    """Whether two counted things may be the same: the words of one must be among the words of the other."""
    a, b = ({word.rstrip("s") for word in label.lower().split()} for label in (thing, other_thing))
    if (a ^ b) & POWER_WORDS or "per" in a ^ b or "/" in thing + other_thing or any(is_unit(word) for word in a ^ b):
        return False
    return a <= b or b <= a


def _drop_label_of_percentage(tree: Tree, other: Tree) -> Tree:
    """Drop the label of a percentage (`30% increase` is 30%), if the other side has no label."""
    labelled = tree[0] == "unit" and tree[1][0] == "percent" and not any(map(is_unit, tree[2].split()))
    return tree[1] if labelled and other[0] != "unit" else tree


def _compare_percentages(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    lenient = context.conventions.percent == "lenient"
    label = next((unit for _, unit in (split_unit(gold), split_unit(answer)) if unit and unit.lower() not in PERCENT_WORDS), "")
    if label:
        return Comparison(False, f"the units conflict: percent and {label}")
    gold_marked, marked = _get_percent_value(gold), _get_percent_value(answer)
    other = split_unit(answer if marked is None else gold)[1] if gold_marked is None or marked is None else ""
    if other and not other.lower().startswith("percent"):
        return Comparison(False, f"the units conflict: percent and {other}")
    if gold_marked is not None and marked is not None:
        return compare_unitless_values(gold_marked, marked, context)
    if gold_marked is not None:
        value = split_unit(answer)[0]
        part = ("div", gold_marked, ("num", 100, 1))
        if compare_unitless_values(part, value, context).is_equal or (
            lenient and compare_unitless_values(gold_marked, value, context).is_equal
        ):
            return Comparison(True, f"{format_tree(answer)} is {format_tree(gold)}")
        return Comparison(
            False, f"{describe_tree(answer)} is not {describe_tree(gold)}" + ("" if lenient else ": the percent sign is missing")
        )
    assert marked is not None
    gold_value = split_unit(gold)[0]
    plain = compute_exact_value(gold_value)  # 50% for the gold 50, but not 0.5% for the gold 0.5
    facing = lenient and (plain is None or abs(plain) > 1) and compare_unitless_values(gold_value, marked, context).is_equal
    if facing or compare_unitless_values(gold_value, ("div", marked, ("num", 100, 1)), context).is_equal:
        return Comparison(True, f"{format_tree(answer)} is {format_tree(gold)}")
    return Comparison(False, f"{describe_tree(answer)} is not {describe_tree(gold)}")


def _get_percent_value(tree: Tree) -> Tree | None:
    """Return the value before a percent sign or the word percent; None without one."""
    if tree[0] == "percent":
        return split_unit(tree[1])[0]
    if tree[0] == "neg":
        inner = _get_percent_value(tree[1])
        return None if inner is None else ("neg", inner)
    marked: Tree | None = tree[1] if tree[0] == "unit" and tree[2].lower() in PERCENT_WORDS else None
    return marked


def compare_unitless_values(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare two values without units: by value, by the rounding that the conventions allow, and by the required form."""
    if has_op(answer, "unit", "percent") and not has_op(gold, "unit", "percent") and not has_op(answer, "fun"):
        return Comparison(False, f"{describe_tree(answer)} mixes units")
    extra = get_free_symbols(answer) - get_free_symbols(gold)
    if extra == {"I"} and ("const", "i") in list_nodes(gold):  # as computer algebra systems write the imaginary unit
        answer, extra = substitute(answer, {"I": ("const", "i")}), frozenset()
    if extra and not _find_integration_constant(gold, answer):
        return Comparison(False, f"it contains {', '.join(sorted(extra))[:60]}, but the gold {describe_tree(gold)} does not")
    if has_op(gold, "fun") and has_op(answer, "fun"):
        gold, answer = _write_maximum_as_formula(gold, answer), _write_maximum_as_formula(answer, gold)
    if context.is_same_value(gold, answer):
        wrong = _find_form_violation(answer, context.conventions.form, gold)
        return (
            Comparison(False, f"it has the right value, but {wrong}")
            if wrong
            else Comparison(True, f"{describe_tree(answer)} equals {format_tree(gold)}")
        )
    if not get_free_symbols(gold) and not get_free_symbols(answer):
        why = _explain_rounding(gold, answer, context.conventions)
        if why:
            return Comparison(True, why)
    if _find_integration_constant(gold, answer) and _differs_only_by_number(gold, answer, context):
        return Comparison(True, f"{describe_tree(answer)} equals {format_tree(gold)} up to a constant")
    return Comparison(False, f"{describe_tree(answer)} is not {format_tree(gold)}")


def _write_maximum_as_formula(tree: Tree, other: Tree) -> Tree:
    """Write the maximum or minimum of two values with an absolute value, if the other side has one: max(a, b) is (a + b + |a - b|)/2."""
    calls = [node for node in list_nodes(tree) if node[0] == "fun" and node[1] in ("max", "min") and len(node) == 4]
    if not calls or not any(node[:2] == ("fun", "abs") for node in list_nodes(other)):
        return tree
    return _replace_maximum(tree)


def _replace_maximum(tree: Tree) -> Tree:
    parts = tuple(_replace_maximum(arg) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg for arg in tree)
    if parts[0] != "fun" or parts[1] not in ("max", "min") or len(parts) != 4:
        return parts
    gap: Tree = ("fun", "abs", ("add", parts[2], ("neg", parts[3])))
    return ("div", ("add", parts[2], parts[3], gap if parts[1] == "max" else ("neg", gap)), ("num", 2, 1))


class WrittenDigits(NamedTuple):
    """The digits of a decimal as it is written: how many are significant, and the places after the point (below 0: before it).

    >>> WrittenDigits(significant_digits=3, decimal_places=2).decimal_places
    2
    """

    significant_digits: int
    decimal_places: int


def _count_written_digits(tree: Tree) -> WrittenDigits | None:
    """Count the significant digits of a decimal as written, and its places after the point; None for anything else.

    >>> _count_written_digits(("mul", ("dec", 602, 2), ("pow", ("num", 10, 1), ("num", 23, 1))))
    WrittenDigits(significant_digits=3, decimal_places=-21)
    """
    if tree[0] == "neg":
        return _count_written_digits(tree[1])
    if tree[0] == "dec":
        return WrittenDigits(len(str(abs(tree[1]))) if tree[1].bit_length() < 4000 else 1000, tree[2])
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "dec" and tree[2][0] == "pow" and tree[2][1] == ("num", 10, 1):
        power = compute_exact_value(tree[2][2])
        if power is not None and power.denominator == 1:
            return WrittenDigits(len(str(tree[1][1])), tree[1][2] - int(power))
    return None


def _explain_rounding(gold: Tree, answer: Tree, conventions: MathConventions) -> str:
    """Explain why an unequal value is accepted as a rounding of the gold; "" if it is not accepted."""
    of_gold, of_answer = _count_written_digits(gold), _count_written_digits(answer)
    if of_gold is None and of_answer is None:
        return ""
    x, y = _to_exact_or_rounded_rational(gold), _to_exact_or_rounded_rational(answer)
    if x is None or y is None:
        return ""
    gap = abs(x - y)
    close = of_gold is not None and gap <= min(_place_value(of_gold.decimal_places) / 2, Fraction(conventions.tolerance) * abs(y))
    if (
        close and of_gold is not None and of_gold.significant_digits >= conventions.min_gold_digits and of_answer is None
    ):  # not another decimal: 1.25 is not 1.2499
        return f"{format_tree(answer)} rounds to {format_tree(gold)}"
    whole = compute_exact_value(gold)
    computed = whole is not None or (
        of_answer is not None and of_answer.significant_digits <= DOUBLE_DIGITS
    )  # more digits of a root claim another value
    if (
        of_answer is not None
        and of_answer.significant_digits >= conventions.min_answer_digits
        and computed
        and not (whole is not None and whole.denominator == 1)
    ):
        unit = _place_value(of_answer.decimal_places)
        noise = 15 <= of_answer.significant_digits <= DOUBLE_DIGITS and gap <= abs(x) / 10**15  # a double, printed in full
        if gap <= unit / 2 or (gap < unit and abs(y) < abs(x)) or noise:
            return f"{format_tree(answer)} is {format_tree(gold)} to {of_answer.significant_digits} significant digits"
    return ""


def _place_value(places: int) -> Any:
    return Fraction(1, 10**places) if places >= 0 else Fraction(10**-places)


def _to_exact_or_rounded_rational(tree: Tree) -> Any:
    """Convert the value to a rational, exact or to sixty digits; None if it is not real."""
    value = compute_exact_value(tree)
    if value is not None:
        return value
    approximate = evaluate_real(tree)
    if approximate is None or abs(get_thread_mp_context().mag(approximate)) > 4000:
        return None
    sign, mantissa, exponent, _ = approximate._mpf_
    scaled = Fraction(int(mantissa)) * (Fraction(2) ** exponent)
    return -scaled if sign else scaled


def _find_integration_constant(gold: Tree, answer: Tree) -> str:
    """Find the letter of an added constant in the gold, if the answer has one too: families `... + C`."""
    if gold[0] == "add" and ("sym", "C") in gold[1:] and get_free_symbols(gold) & INTEGRATION_VARIABLES and answer[0] == "add":
        extra = [arg for arg in answer[1:] if arg[0] == "sym" and arg[1][0] in "CcKk"]
        return "C" if len(extra) == 1 and len(get_free_symbols(answer)) > 1 else ""
    return ""


def _differs_only_by_number(gold: Tree, answer: Tree, context: CompareContext) -> bool:
    """Whether the rest without the added constants differs by a number only."""
    rest = []
    for tree in (gold, answer):
        args = [arg for arg in tree[1:] if not (arg[0] == "sym" and arg[1][0] in "CcKk")]
        rest.append(("add", *args, ("num", 0, 1)))
    gap: Tree = ("add", rest[0], ("neg", rest[1]))
    names = get_free_symbols(gap)
    if any(name[0] in "CcKk" for name in names) or get_free_symbols(rest[1]) - get_free_symbols(rest[0]):
        return False
    moved = substitute(gap, {name: ("num", 3 + 2 * place, 7) for place, name in enumerate(sorted(names))})
    return context.is_same_value(gap, moved)


# The required form of an answer whose value is right: reduced, factored, expanded, a numeral


def _find_form_violation(tree: Tree, form: str, gold: Tree) -> str:
    """Describe how a tree violates the required form; "" if it does not.

    >>> _find_form_violation(("div", ("num", 2, 1), ("num", 4, 1)), "reduced", ("num", 1, 2))
    'a fraction in it is not in lowest terms'
    """
    if form == "factored" and _count_factors(tree) < _count_factors(gold):
        return "it has fewer factors than the gold"
    return FORM_RULES[form](tree) if form else ""


def _count_factors(tree: Tree) -> int:
    """Count the factors with letters in a product, with powers as repeated factors."""
    if tree[0] in ("neg", "div"):
        return _count_factors(tree[1])
    if tree[0] == "mul":
        return sum(_count_factors(arg) for arg in tree[1:])
    if tree[0] == "pow":
        times = to_rational(tree[2])
        return _count_factors(tree[1]) * int(times) if times is not None and 1 <= times <= 64 else 1
    return int(has_op(tree, "sym"))


def _check_reduced(tree: Tree) -> str:
    for node in list_nodes(tree):
        if node[0] == "num" and math.gcd(node[1], node[2]) != 1 and node[1]:
            return "a mixed number in it is not in lowest terms"
        if node[0] == "div":
            top, low = to_rational(node[1]), to_rational(node[2])
            if (
                top is not None
                and low is not None
                and (low.denominator != 1 or top.denominator != 1 or math.gcd(int(top), int(low)) != 1 or low == 1)
            ):
                return "a fraction in it is not in lowest terms"
    arithmetic = tree[0] in ("add", "mul", "pow", "fact", "binom")
    return "it is arithmetic that was not carried out" if arithmetic and to_rational(tree) is not None else ""


def _check_factored(tree: Tree) -> str:
    while tree[0] == "neg":
        tree = tree[1]
    if tree[0] == "add" and any(node[0] == "sym" for node in list_nodes(tree)):
        return "it is a sum, but a product is required"
    return ""


def _check_expanded(tree: Tree) -> str:
    for node in list_nodes(tree):
        if (node[0] == "mul" and any(has_op(arg, "add") for arg in node[1:])) or (node[0] == "pow" and has_op(node[1], "add")):
            return "it contains a product of sums, but an expanded form is required"
    return ""


def _check_numeral(tree: Tree) -> str:
    return "" if is_numeral(tree) else "it is arithmetic, but a numeral is required"


FORM_RULES = {"reduced": _check_reduced, "factored": _check_factored, "expanded": _check_expanded, "numeral": _check_numeral}


def is_numeral(tree: Tree) -> bool:
    """Whether a tree is one number as written, with or without a sign, a unit, a percent sign or a power of ten.

    Examples: 12, 1.5, 3/4, 2 1/3, 6.02 * 10^23, 50%, 18 dollars.

    >>> is_numeral(("div", ("num", 3, 1), ("num", 4, 1))), is_numeral(("div", ("num", 48, 1), ("num", 2, 1)))
    (True, False)
    """
    op = tree[0]
    if op in ("num", "dec", "text", "choice", "time", "base"):
        return True
    if op == "neg":
        return tree[1][0] != "neg" and is_numeral(tree[1])
    if op == "add":
        return len(tree) == 3 and _is_sum_for_mixed_number(*tree[1:])
    if op == "pow":
        return tree[1] == TEN and _is_integer(tree[2])
    if op == "unit":
        return is_numeral(tree[1]) or _is_compound_amount(tree[1])
    if op in ("mul", "div"):
        value, label = split_unit(tree)
        value, label = _split_letter_unit(value) if not label else (value, label)
        if label:
            return is_numeral(value)
        if op == "div":
            return _is_fraction_of_numerals(tree[1], tree[2])
        return len(tree) == 3 and _is_plain_number(tree[1]) and tree[2][0] == "pow" and is_numeral(tree[2]) and _is_scientific(tree)
    return op in ("percent", "ratio", "mod") and all(map(is_numeral, iter_children(tree)))


def _is_integer(tree: Tree) -> bool:
    tree = tree[1] if tree[0] == "neg" else tree
    return (tree[0] == "num" and tree[2] == 1) or (tree[0] == "dec" and 0 < tree[2] < 50 and tree[1] % 10 ** tree[2] == 0)


def _is_scientific(tree: Tree) -> bool:
    """Whether a number times a power of ten is in scientific notation; one that is too large to compute is."""
    try:
        mantissa, exponent = to_rational(tree[1]), to_rational(tree[2][2])
    except (LimitExceeded, NotFinite):
        return True
    return mantissa is None or exponent is None or is_scientific_notation(mantissa, int(exponent))


def _is_plain_number(tree: Tree) -> bool:
    tree = tree[1] if tree[0] == "neg" else tree
    return tree[0] in ("num", "dec")


def _is_sum_for_mixed_number(whole: Tree, part: Tree) -> bool:
    """Whether a sum is a mixed number with its sign: `2 + 1/3`, but not 15000 + 15000/3."""
    if whole[0] == part[0] == "neg":
        whole, part = whole[1], part[1]
    whole, part = (part, whole) if whole[0] == "div" else (whole, part)
    if whole[0] != "num" or part[0] != "div" or not part[1][0] == part[2][0] == "num":
        return False
    return whole[1] > 0 and whole[2] == part[1][2] == part[2][2] == 1 and 0 < part[1][1] < part[2][1]


def _is_fraction_of_numerals(top: Tree, low: Tree) -> bool:
    """Whether a fraction is a numeral: of whole numbers or powers of ten, and not a division that comes out even."""
    if not all(_is_integer(part) or (part[0] == "pow" and is_numeral(part)) for part in (top, low)):
        return False
    try:
        value = to_rational(("div", top, low))
    except (LimitExceeded, NotFinite):
        return False
    return value is not None and (value.denominator != 1 or value == 0)


def _is_compound_amount(tree: Tree) -> bool:
    """Whether a value before a unit is as the parser makes it of `2 hours 30 minutes` and of degrees with minutes."""
    if tree[0] != "add" or not (_is_plain_number(tree[1]) or _is_compound_amount(tree[1])):
        return False
    return all(
        part[0] in ("mul", "div") and _is_plain_number(part[1]) and part[2][0] == "num" and (part[2][2] != 1 or part[2][1] in (60, 3600))
        for part in tree[2:]
    )


# Values and unit labels: whether letters are a unit or a product

ALL_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""All letters: inside a formula each may be a single letter of it."""


def split_unit(tree: Tree) -> tuple[Tree, str]:
    """Split a tree into a value and a unit label ("" without one); the unit may be under a sign or inside a product or quotient."""
    op = tree[0]
    if op == "unit":
        return tree[1], tree[2]
    if op == "neg":
        value, label = split_unit(tree[1])
        return ("neg", value), label
    if op in ("mul", "div", "add"):
        parts = [split_unit(arg) for arg in tree[1:]]
        labels = [label for _, label in parts if label]
        if len(labels) == 1 and op != "add":
            return (op, *(value for value, _ in parts)), labels[0]
        if len(labels) == len(parts) and len(set(labels)) == 1 and op == "add":
            return (op, *(value for value, _ in parts)), labels[0]
    return tree, ""


def _split_units_into_letters(tree: Tree, known_letters: frozenset[str]) -> Tree:
    """Replace each unit whose letters are all known letters by a product: `ml^2` if m and l are known."""
    if tree[0] == "unit" and (spelled := re.fullmatch(r"([a-zA-Z]{1,3})(?:\^(\d))?", tree[2])) and known_letters.issuperset(spelled[1]):
        *first, last = (("sym", letter) for letter in spelled[1])
        return (
            "mul",
            _split_units_into_letters(tree[1], known_letters),
            *first,
            ("pow", last, ("num", int(spelled[2]), 1)) if spelled[2] else last,
        )
    return tuple(
        _split_units_into_letters(arg, known_letters) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg for arg in tree
    )


def _split_letter_unit(tree: Tree) -> tuple[Tree, str]:
    """Split a number times one letter that may be a unit: `5m`, `12m^2`; the label is "" for anything else."""
    if tree[0] == "mul" and len(tree) == 3 and not get_free_symbols(tree[1]):
        letter, power = (tree[2][1], tree[2][2]) if tree[2][0] == "pow" else (tree[2], ("num", 1, 1))
        if letter[0] == "sym" and is_letter_unit(letter[1]) and power in (("num", 1, 1), ("num", 2, 1), ("num", 3, 1)):
            return tree[1], letter[1] + ("" if power[1] == 1 else f"^{power[1]}")
    return tree, ""
