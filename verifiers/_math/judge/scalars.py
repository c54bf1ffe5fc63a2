"""Compare one value with one value: numbers, expressions, quantities with units, percentages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from rlvr.verifiers._math.judge.forms import wrong_form
from rlvr.verifiers._math.judge.labels import ANY, lettered, quantity, spelled_out
from rlvr.verifiers._math.policy import Policy
from rlvr.verifiers._math.read.tree import TooBig, Tree, has, infinite, ordered, say, short, show, substitute, symbols, walk
from rlvr.verifiers._math.read.units import Measure, is_angle, is_base, is_degree, is_money, is_unit, measure
from rlvr.verifiers._math.value.exact import NotFinite, exact
from rlvr.verifiers._math.value.normal import compare
from rlvr.verifiers._math.value.points import context, differ, real

SHORT = 2_000
"""Budget of the first, short attempt at expansion."""
PIECEWISE = frozenset(("abs", "floor", "ceil", "max", "min", "sgn", "arg"))
"""Functions for which agreement at sample points is no evidence: they need a proof."""
VARIABLES = frozenset(("x", "y", "z", "t", "u", "v", "w", "s", "r", "n", "theta"))
"""Letters of integration: together with one of them an added C is a constant, elsewhere it is a letter."""
RAISED = frozenset(("square", "squared", "sq", "cubic", "cubed", "cu"))
PERCENTS = frozenset(("percent", "percentage", "pct"))
DOUBLE = 18
"""Maximum significant digits that a computer prints for a double."""
Algebra = Callable[[Tree, Tree], bool | None]


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a comparison, and the reason in words.

    >>> Judged(False, "1 is not 2").right
    False
    """

    right: bool
    reason: str


Judge = Callable[[Tree, Tree, "Bench"], Judged]


@dataclass(slots=True)
class Bench:
    """The context of a comparison: the policy, the algebra system for hard cases, and the remaining steps.

    >>> Bench(Policy()).policy.percent
    'lenient'
    """

    policy: Policy
    algebra: Algebra = field(default=lambda a, b: None)
    judge: Judge = field(default=lambda gold, answer, bench: Judged(bench.same(gold, answer), ""))
    """Compares the sides of a chain or of a relation like whole answers; injected to avoid an import cycle."""
    match: Judge = field(default=lambda gold, answer, bench: Judged(bench.same(gold, answer), ""))
    """Compares the members of a list, which are already normalized."""
    steps: int = 400

    def same(self, a: Tree, b: Tree) -> bool:
        """Whether two expressions have the same value: exactly, by normal form, by sample points, then by algebra."""
        if a == b:
            return True
        left, right = exact(a), exact(b)
        if left is not None and right is not None:
            return left == right
        if symbols(a) != symbols(b) and not (symbols(a) <= symbols(b) or symbols(b) <= symbols(a)):
            return False
        if infinite(a) or infinite(b):
            return infinite(a) == infinite(b)
        try:
            formed = compare(a, b, SHORT)
        except TooBig:
            if ordered(a) == ordered(b):
                return True
            if _apart(a, b):
                return False
            formed = compare(a, b)
        if formed is not None:
            return formed
        apart = differ(a, b)
        if apart is True:
            return False
        if apart is False and not any(node[0] == "fun" and node[1] in PIECEWISE for tree in (a, b) for node in walk(tree)):
            return True  # equal to sixty digits and more, at unpredictable points
        decided = self.algebra(a, b)
        return decided is True


def _apart(a: Tree, b: Tree) -> bool:
    """Whether sample points distinguish two expressions, which is faster than a long expansion."""
    try:
        return differ(a, b) is True
    except (TooBig, NotFinite):
        return False


def finite(tree: Tree) -> str:
    """Explain why a tree is no valid answer for any gold (division by zero, arithmetic with infinity); "" if it is valid."""
    for node in walk(tree):
        if node[0] == "div" and exact_or_none(node[2]) == 0:
            return "it divides by zero"
        if node[0] in ("add", "mul", "div", "pow", "fun", "root", "pm") and ("const", "oo") in [
            arg[1] if isinstance(arg, tuple) and arg[0] == "neg" else arg for arg in node[1:]
        ]:
            return "it calculates with infinity"
    return ""


def exact_or_none(tree: Tree) -> Fraction | None:
    """Return the exact value, or None if there is none or it is not finite."""
    try:
        return exact(tree)
    except NotFinite:
        return None


def whole(gold: Tree, answer: Tree) -> Judged:
    """Compare one integer with one integer, the most common case.

    >>> whole(("num", 12, 1), ("num", 13, 1)).reason
    '13 is not 12'
    """
    right = gold == answer
    return Judged(right, f"{short(answer[1])} {'equals' if right else 'is not'} {short(gold[1])}")


def judge_scalar(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare one value with one value, units and percent first."""
    gold, answer = _percentage(gold, answer), _percentage(answer, gold)
    if gold[0] == "percent" or answer[0] == "percent":
        return _percent(gold, answer, bench)
    gold_value, gold_unit = quantity(gold)
    value, unit = quantity(answer)
    if not symbols(gold) and not unit:
        value, unit = lettered(answer)
        answer = ("unit", value, unit) if unit else answer
    elif unit and not gold_unit and not symbols(answer):
        gold_value, gold_unit = lettered(gold)
    if not gold_unit and not unit:
        return number(gold, answer, bench)
    if any(is_money(measure(label)) for label in (gold_unit, unit) if label):  # a price is not rounded
        bench = replace(bench, policy=replace(bench.policy, tolerance=0, rounded=100))
    if symbols(answer) | symbols(gold):  # in a formula, ml^2 is m times l^2
        known = symbols(answer) | symbols(gold)
        spelled = spelled_out(gold, ANY if gold[0] != "unit" else known), spelled_out(answer, ANY if answer[0] != "unit" else known)
        if spelled != (gold, answer):
            return judge_scalar(*spelled, bench)
    if gold_unit and unit:
        return _units(gold_value, gold_unit, value, unit, bench)
    if gold_unit:
        if is_degree(gold_unit) and has(value, "const"):
            return number(gold_value, ("div", ("mul", value, ("num", 180, 1)), ("const", "pi")), bench)
        if bench.policy.units == "required":
            return Judged(False, f"the unit is missing; the gold is {say(gold)}")
        return number(gold_value, value, bench)
    if measure(unit) is None:
        return Judged(False, f"{unit!r} is not a known unit")
    if unit.lower() in PERCENTS:
        return _percent(gold, ("percent", value), bench)
    if is_degree(unit) and has(gold, "const", "fun"):
        return number(gold, ("div", ("mul", value, ("const", "pi")), ("num", 180, 1)), bench)
    return number(gold, value, bench)


def _units(gold: Tree, gold_unit: str, value: Tree, unit: str, bench: Bench) -> Judged:
    if gold_unit.lower() == unit.lower() and not (len(unit) < 4 and {gold_unit[0], unit[0]} == {"m", "M"}):  # mW is not MW
        return number(gold, value, bench)
    if gold_unit.lower() == unit.lower():
        return Judged(False, f"the units conflict: {unit}, but the gold has {gold_unit}")
    wanted, given = measure(gold_unit), measure(unit)
    if wanted is None or given is None:
        return Judged(False, f"{(gold_unit if wanted is None else unit)!r} is not a known unit")
    if is_angle(wanted) and is_angle(given):
        if is_degree(gold_unit) != is_degree(unit):
            over = (("num", 180, 1), ("const", "pi")) if is_degree(gold_unit) else (("const", "pi"), ("num", 180, 1))
            value = ("div", ("mul", value, over[0]), over[1])
        return number(gold, value, bench)
    if wanted[0] and given[0] and wanted[0] != given[0]:
        if not _same_thing(gold_unit, unit) and not _rate_of_a_thing(wanted, given):
            return Judged(False, f"the units conflict: {unit}, but the gold has {gold_unit}")
        return number(gold, value, bench)
    ratio = given[1] / wanted[1]
    scaled = value if ratio == 1 or not (wanted[0] and given[0]) else ("mul", value, ("num", ratio.numerator, ratio.denominator))
    judged = number(gold, scaled, bench)
    return judged if ratio == 1 or judged.right else Judged(False, f"{show(value)} {unit} is not {show(gold)} {gold_unit}")


def _rate_of_a_thing(wanted: Measure, given: Measure) -> bool:
    """Whether one label is the other per counted thing: `5.4 cents per orange` and `5.4 cents`."""
    apart = set(wanted[0]) ^ set(given[0])
    return wanted[1] == given[1] and bool(apart) and all(power == -1 and not is_base(base) for base, power in apart)


def _same_thing(one: str, other: str) -> bool:
    """Whether two counted things may be the same: the words of one must be among the words of the other."""
    a, b = ({word.rstrip("s") for word in label.lower().split()} for label in (one, other))
    if (a ^ b) & RAISED or "per" in a ^ b or "/" in one + other or any(is_unit(word) for word in a ^ b):
        return False
    return a <= b or b <= a


def _percentage(tree: Tree, other: Tree) -> Tree:
    """Drop the label of a percentage (`30% increase` is 30%), if the other side has no label."""
    labelled = tree[0] == "unit" and tree[1][0] == "percent" and not any(map(is_unit, tree[2].split()))
    return tree[1] if labelled and other[0] != "unit" else tree


def _percent(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    lenient = bench.policy.percent == "lenient"
    label = next((unit for _, unit in (quantity(gold), quantity(answer)) if unit and unit.lower() not in PERCENTS), "")
    if label:
        return Judged(False, f"the units conflict: percent and {label}")
    gold_marked, marked = _unmarked(gold), _unmarked(answer)
    other = quantity(answer if marked is None else gold)[1] if gold_marked is None or marked is None else ""
    if other and not other.lower().startswith("percent"):
        return Judged(False, f"the units conflict: percent and {other}")
    if gold_marked is not None and marked is not None:
        return number(gold_marked, marked, bench)
    if gold_marked is not None:
        value = quantity(answer)[0]
        part = ("div", gold_marked, ("num", 100, 1))
        if number(part, value, bench).right or (lenient and number(gold_marked, value, bench).right):
            return Judged(True, f"{show(answer)} is {show(gold)}")
        return Judged(False, f"{say(answer)} is not {say(gold)}" + ("" if lenient else ": the percent sign is missing"))
    assert marked is not None
    gold_value = quantity(gold)[0]
    plain = exact_or_none(gold_value)  # 50% for the gold 50, but not 0.5% for the gold 0.5
    facing = lenient and (plain is None or abs(plain) > 1) and number(gold_value, marked, bench).right
    if facing or number(gold_value, ("div", marked, ("num", 100, 1)), bench).right:
        return Judged(True, f"{show(answer)} is {show(gold)}")
    return Judged(False, f"{say(answer)} is not {say(gold)}")


def _unmarked(tree: Tree) -> Tree | None:
    """Return the value before a percent sign or the word percent; None without one."""
    if tree[0] == "percent":
        return quantity(tree[1])[0]
    if tree[0] == "neg":
        inner = _unmarked(tree[1])
        return None if inner is None else ("neg", inner)
    marked: Tree | None = tree[1] if tree[0] == "unit" and tree[2].lower() in PERCENTS else None
    return marked


def number(gold: Tree, answer: Tree, bench: Bench) -> Judged:
    """Compare two values without units: equal, or a decimal that rounds as the policy allows; then the required form."""
    if has(answer, "unit", "percent") and not has(gold, "unit", "percent") and not has(answer, "fun"):
        return Judged(False, f"{say(answer)} mixes units")
    extra = symbols(answer) - symbols(gold)
    if extra == {"I"} and ("const", "i") in walk(gold):  # as computer algebra systems write the imaginary unit
        answer, extra = substitute(answer, {"I": ("const", "i")}), frozenset()
    if extra and not _constants(gold, answer):
        return Judged(False, f"it contains {', '.join(sorted(extra))[:60]}, but the gold {say(gold)} does not")
    if bench.same(gold, answer):
        wrong = wrong_form(answer, bench.policy.form, gold)
        return Judged(False, f"it has the right value, but {wrong}") if wrong else Judged(True, f"{say(answer)} equals {show(gold)}")
    if not symbols(gold) and not symbols(answer):
        why = _rounds(gold, answer, bench.policy)
        if why:
            return Judged(True, why)
    if _constants(gold, answer) and _differ_by_constant(gold, answer, bench):
        return Judged(True, f"{say(answer)} equals {show(gold)} up to a constant")
    return Judged(False, f"{say(answer)} is not {show(gold)}")


def written(tree: Tree) -> tuple[int, int] | None:
    """Count the significant digits of a decimal as written, and its places after the point; None for anything else.

    >>> written(("mul", ("dec", 602, 2), ("pow", ("num", 10, 1), ("num", 23, 1))))
    (3, -21)
    """
    if tree[0] == "neg":
        return written(tree[1])
    if tree[0] == "dec":
        return len(str(abs(tree[1]))) if tree[1].bit_length() < 4000 else 1000, tree[2]
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "dec" and tree[2][0] == "pow" and tree[2][1] == ("num", 10, 1):
        power = exact_or_none(tree[2][2])
        if power is not None and power.denominator == 1:
            return len(str(tree[1][1])), tree[1][2] - int(power)
    return None


def _rounds(gold: Tree, answer: Tree, policy: Policy) -> str:
    """Explain why an unequal value is accepted as a rounding of the gold; "" if it is not accepted."""
    of_gold, of_answer = written(gold), written(answer)
    if of_gold is None and of_answer is None:
        return ""
    x, y = _value(gold), _value(answer)
    if x is None or y is None:
        return ""
    gap = abs(x - y)
    close = of_gold is not None and gap <= min(_place(of_gold[1]) / 2, Fraction(policy.tolerance) * abs(y))
    if close and of_gold is not None and of_gold[0] >= policy.places and of_answer is None:  # not another decimal: 1.25 is not 1.2499
        return f"{show(answer)} rounds to {show(gold)}"
    whole = exact_or_none(gold)
    computed = whole is not None or (of_answer is not None and of_answer[0] <= DOUBLE)  # more digits of a root claim another value
    if of_answer is not None and of_answer[0] >= policy.rounded and computed and not (whole is not None and whole.denominator == 1):
        unit = _place(of_answer[1])
        noise = 15 <= of_answer[0] <= DOUBLE and gap <= abs(x) / 10**15  # a double, printed in full
        if gap <= unit / 2 or (gap < unit and abs(y) < abs(x)) or noise:
            return f"{show(answer)} is {show(gold)} to {of_answer[0]} significant digits"
    return ""


def _place(places: int) -> Any:
    return Fraction(1, 10**places) if places >= 0 else Fraction(10**-places)


def _value(tree: Tree) -> Any:
    """Convert the value to a rational, exact or to sixty digits; None if it is not real."""
    value = exact_or_none(tree)
    if value is not None:
        return value
    approximate = real(tree)
    if approximate is None or abs(context().mag(approximate)) > 4000:
        return None
    sign, mantissa, exponent, _ = approximate._mpf_
    scaled = Fraction(int(mantissa)) * (Fraction(2) ** exponent)
    return -scaled if sign else scaled


def _constants(gold: Tree, answer: Tree) -> str:
    """Find the letter of an added constant in the gold, if the answer has one too: families `... + C`."""
    if gold[0] == "add" and ("sym", "C") in gold[1:] and symbols(gold) & VARIABLES and answer[0] == "add":
        extra = [arg for arg in answer[1:] if arg[0] == "sym" and arg[1][0] in "CcKk"]
        return "C" if len(extra) == 1 and len(symbols(answer)) > 1 else ""
    return ""


def _differ_by_constant(gold: Tree, answer: Tree, bench: Bench) -> bool:
    """Whether the rest without the added constants differs by a number only."""
    rest = []
    for tree in (gold, answer):
        args = [arg for arg in tree[1:] if not (arg[0] == "sym" and arg[1][0] in "CcKk")]
        rest.append(("add", *args, ("num", 0, 1)))
    gap: Tree = ("add", rest[0], ("neg", rest[1]))
    names = symbols(gap)
    if any(name[0] in "CcKk" for name in names) or symbols(rest[1]) - symbols(rest[0]):
        return False
    moved = substitute(gap, {name: ("num", 3 + 2 * place, 7) for place, name in enumerate(sorted(names))})
    return bench.same(gap, moved)
