r"""Decide whether an answer of the right value was worked out, or is a calculation that is left to the reader.

`list_remaining_steps` finds what is left to do in a tree: sums, products, powers, roots and functions of numbers that have a simpler form, and
operations that change nothing (`x + 0`, `1 \cdot x`, `\sqrt{x^2}`). A gold that is a numeral wants a numeral. Any other gold wants an
answer without a kind of step that the gold itself has done; what the gold leaves open (`2^{100} - 1`) the answer may leave open too.

It works on trees, not on text: a calculation is found in every disguise that parses to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from rlvr.verifiers.math.compare.compare import (
    convert_mod_to_residue,
    describe_unevaluated_operation,
    find_assigned_name,
    is_constant_used_as_unknown,
    split_assignment,
)
from rlvr.verifiers.math.compare.scalars import is_numeral, split_unit, split_unit_symbol
from rlvr.verifiers.math.parsing.tree import (
    LEAVES,
    LimitExceeded,
    Tree,
    describe_tree,
    get_free_symbols,
    has_op,
    iter_children,
    list_nodes,
    sort_terms,
)
from rlvr.verifiers.math.parsing.units import is_degree
from rlvr.verifiers.math.values.rational import NotFinite, compute_root, evaluate_operation, to_rational

STEP_NAMES = {
    "sum": "the sum",
    "product": "the product",
    "division": "the division",
    "power": "the power",
    "root": "the root",
    "factorial": "the factorial",
    "binomial": "the binomial coefficient",
    "trigonometry": "the function",
    "logarithm": "the function",
    "root of a power": "the root of a power",
    "no change": "an operation that changes nothing,",
    "like terms": "the like terms",
    "unreduced fraction": "the fraction",
    "square factor": "the root",
    "fraction": "the fraction",
    "fraction of letters": "the fraction",
    "nested fraction": "the fraction in a fraction",
    "product of sums": "the product of sums",
    "sum of terms": "the sum, which is not factored,",
    "polar form": "the polar form",
}
FORM_STEPS = frozenset(
    (
        "fraction",
        "unreduced fraction",
        "square factor",
        "fraction of letters",
        "nested fraction",
        "product of sums",
        "sum of terms",
        "polar form",
    )
)
"""Steps from one usual form to another: 4/6 is 2/3, 3/4 is 0.75, sqrt(8) is 2 sqrt(2). They are open only where the question asks for that
step."""
IMPLIED_STEPS = {
    "power": {"product"},
    "product": {"power"},
    "factorial": {"binomial", "product", "division", "power"},
    "binomial": {"factorial", "product", "division"},
    "polar form": {"trigonometry", "power"},
}
"""Steps that may be left open next to one that the gold leaves open: 9 * 3^18 for the gold 3^20, 5!/(2! 3!) for a binomial."""
_KIND_OF_OP = {"add": "sum", "mul": "product", "div": "division", "pow": "power", "root": "root", "fact": "factorial", "binom": "binomial"}
_TRIGONOMETRIC = "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch"
_TRIGONOMETRY = frozenset(_TRIGONOMETRIC.split())
_LOGARITHMS = frozenset(("ln", "asinh", "acosh", "atanh"))
_WITHOUT_STEPS = frozenset(("text", "choice", "time", "base"))
_MAX_EXPONENT = 64


class UnfinishedOperation(NamedTuple):
    """Something that is left to do: its kind, and the part of the tree."""

    kind: str
    part: Tree


def explain_open_step(gold: Tree, answer: Tree) -> str:
    """Explain what an answer of the right value leaves to do although the gold has done it; "" if it is worked out.

    >>> seven, eight = ("num", 7, 1), ("num", 8, 1)
    >>> explain_open_step(("num", 56, 1), ("mul", seven, eight)), explain_open_step(("num", 56, 1), ("num", 56, 1))
    ('the product 7*8 is left to do', '')
    """
    if answer[0] in ("num", "dec"):
        return ""
    gold = split_assignment(gold)[1]
    if gold == answer or gold[0] in _WITHOUT_STEPS or describe_unevaluated_operation(gold):
        return ""
    if gold[0] == "mod":
        answer = convert_mod_to_residue(answer)
    if gold[0] == "matrix" and answer[0] == "binom":
        answer = ("tuple", *answer[1:])  # a column, as written in some countries
    if (split := split_unit_symbol(answer, split_unit(gold)[1])) is not None:
        answer = split[0]  # 5 C beside 5 coulombs
    radians = is_degree(split_unit(gold)[1]) and has_op(answer, "const")
    if answer[0] == "list" and gold[0] not in ("list", "set", "tuple", "matrix", "text", "choice"):  # one value in several forms
        return next((why for part in answer[1:] if (why := explain_open_step(gold, part))), "")
    if gold[0] != "mod" and is_numeral(gold) and not radians:
        return _explain_missing_numeral(gold, answer)
    allowed = _list_allowed_kinds(gold)
    whys = [_describe_open_step(part, allowed) for part in _list_asserted_parts(answer, get_free_symbols(gold))]
    return "" if "" in whys else whys[0]


def _list_allowed_kinds(gold: Tree) -> frozenset[str]:
    """List the kinds of steps that an answer may leave open: those that the gold leaves open, and those beside them."""
    kinds = {step.kind for step in list_remaining_steps(gold)}
    kinds |= {_classify_function(node[1]) for node in list_nodes(gold) if node[0] == "fun"}
    if gold[0] == "rel" and gold[2] == "=" and len(get_free_symbols(gold)) > 1:
        kinds.add("power")  # x^2 + y^2 = 5^2 is the usual form of an equation
    if any(node[:2] == ("fun", "abs") for node in list_nodes(gold)):
        kinds.add("root of a power")
    return FORM_STEPS.union(kinds, *(IMPLIED_STEPS.get(kind, ()) for kind in kinds))


def _list_asserted_parts(answer: Tree, known_letters: frozenset[str]) -> list[Tree]:
    """List the parts of an answer of which one has to be worked out: the sides of `x = 2 + 3 = 5`, or the answer itself."""
    if answer[0] != "rel" or any(sign not in ("=", "~") for sign in answer[2::2]):
        return [answer]
    first = 3 if is_constant_used_as_unknown(answer[1], ("list", *answer[3::2])) else 1
    sides = [side for side in answer[first::2] if not find_assigned_name(side)]
    values = [side for side in sides if get_free_symbols(side) <= known_letters]
    named = len(sides) < len(answer) // 2 or any(not get_free_symbols(side) for side in sides)
    return values if values and (named or len(sides) > 2) and not (known_letters and len(answer) == 4 and len(sides) == 2) else [answer]


def _describe_open_step(tree: Tree, allowed: frozenset[str]) -> str:
    steps = [step for step in list_remaining_steps(tree) if step.kind not in allowed]
    return f"{STEP_NAMES.get(steps[-1].kind, 'the function')} {describe_tree(steps[-1].part)} is left to do" if steps else ""


# A gold that is a numeral


def _explain_missing_numeral(gold: Tree, answer: Tree) -> str:
    parts = [part for side in _list_asserted_parts(answer, frozenset()) for part in _list_alternatives(side)]
    if not has_op(gold, "ratio"):  # 460:2 is the division 460/2
        parts = [("div", *part[1:]) if part[0] == "ratio" and len(part) == 3 else part for part in parts]
    if any(is_numeral(part) for part in parts):
        return ""
    if has_op(gold, "dec") and any(not _describe_open_step(part, FORM_STEPS | {"logarithm"}) for part in parts):
        return ""  # a decimal may be the rounding of the answer's exact value: sqrt(2) for 1.41
    why = _describe_open_step(parts[0], FORM_STEPS)
    return why or f"a numeral is wanted, and {describe_tree(parts[0])} is not one"


def _list_alternatives(tree: Tree) -> tuple[Tree, ...]:
    """List the forms of one value that an answer gives, `1/2, 0.5`."""
    return tree[1:] if tree[0] in ("list", "either", "set", "tuple") and len(tree) > 1 else (tree,)


# What is left to do in a tree


def list_remaining_steps(tree: Tree) -> list[UnfinishedOperation]:
    """List what is left to do in a tree, inner steps first.

    >>> [step.kind for step in list_remaining_steps(("mul", ("sym", "x"), ("num", 3, 1), ("num", 4, 1)))]
    ['product']
    """
    finder = _StepFinder()
    finder.visit(tree)
    top = tree[1] if tree[0] == "neg" else tree
    if top[0] == "add" and get_free_symbols(top):
        finder.add("sum of terms", top)
    return finder.steps


class _StepFinder:
    """Visits a tree once, bottom up, and keeps the rational values of its parts."""

    def __init__(self) -> None:
        self.steps: list[UnfinishedOperation] = []
        self.values: dict[int, Fraction | None] = {}
        """By the identity of the node; the tree keeps its nodes alive."""

    def add(self, kind: str, part: Tree) -> None:
        self.steps.append(UnfinishedOperation(kind, part))

    def get_value(self, tree: Tree) -> Fraction | None:
        return self.values.get(id(tree))

    def visit(self, tree: Tree) -> None:
        op = tree[0]
        if op in ("num", "dec") or is_numeral(tree):
            self.values[id(tree)] = _compute_value(tree)
            if op == "div":
                self.add("fraction", tree)
            if op == "div" and math.gcd(*(abs(part[1]) for part in map(_strip_sign, tree[1:]) if part[0] == "num")) != 1:
                self.add("unreduced fraction", tree)
            return
        if op in LEAVES:
            return
        if op == "rel" and len(parts := _list_asserted_parts(tree, get_free_symbols(tree))) > 1:
            self.visit(min(parts, key=lambda part: len(list_remaining_steps(part))))
            return
        children = list(iter_children(tree))
        for child in children:
            self.visit(child)
        values = [self.get_value(child) for child in children]
        if op == "neg":
            self.values[id(tree)] = None if values[0] is None else -values[0]
            if children[0][0] == "neg":
                self.add("no change", tree)
        elif op in _KIND_OF_OP and all(value is not None for value in values) and self.is_rational_operation(tree, values):
            self.add(_KIND_OF_OP[op], tree)
        else:
            rule = getattr(self, f"visit_{op}", None)
            if rule is not None:
                rule(tree)

    def is_rational_operation(self, tree: Tree, values: list[Fraction | None]) -> bool:
        """Whether an operation on rational numbers has a rational value, which is kept; an operation that is too large counts too."""
        try:
            self.values[id(tree)] = value = evaluate_operation(tree[0], [value for value in values if value is not None])
        except (LimitExceeded, NotFinite):
            return True
        return value is not None

    def visit_add(self, tree: Tree) -> None:
        """Several numbers in a sum, a zero, or two terms that differ only by a number or are both imaginary."""
        terms = list(_flatten(tree, "add"))
        if _is_polar(tree):  # a form of a complex number: the sine and the cosine in it are not open steps
            self.steps = [step for step in self.steps if step.part not in (tree[1], *tree[2][1:])]
            self.add("polar form", tree)
        numbers = [value for term in terms if (value := self.get_term_value(term)) is not None]
        if len(numbers) > 1:
            self.add("sum", tree)
        elif 0 in numbers:
            self.add("no change", tree)
        if sum(_is_multiple_of_matrix(term) for term in terms) > 1 or (sum(map(_is_complex_number, terms)) > 1):
            self.add("sum", tree)
        rest = [sort_terms(self.split_coefficient(term)[1]) for term in terms if self.get_term_value(term) is None]
        if len(set(rest)) < len(rest):
            self.add("like terms", tree)

    def get_term_value(self, term: Tree) -> Fraction | None:
        value = self.get_value(term)
        return -inner if value is None and term[0] == "neg" and (inner := self.get_value(term[1])) is not None else value

    def visit_pm(self, tree: Tree) -> None:
        if None not in (self.get_value(tree[1]), self.get_value(tree[2])) and tree[1] != ("num", 0, 1):
            self.add("sum", tree)

    def visit_mul(self, tree: Tree) -> None:
        """Several numbers in a product, a one, a power of i, or roots of numbers that belong together."""
        factors = list(_flatten(tree, "mul"))
        numbers = [value for factor in factors if (value := self.get_value(factor)) is not None]
        rest = [factor for factor in factors if self.get_value(factor) is None]
        sums = [factor for factor in rest if factor[0] == "add"]
        if len(numbers) > 1 or sum(not get_free_symbols(factor) for factor in sums) > 1:
            self.add("product", tree)
        elif (1 in numbers or -1 in numbers or 0 in numbers) and not (0 not in numbers and rest and all(map(_is_atom, rest))):
            self.add("no change", tree)
        imaginary = ("const", "i")
        if sum(map(_is_complex_number, rest)) > 1 or (imaginary in rest and any(contains_tree(factor, imaginary) for factor in sums)):
            self.add("power", tree)
        denominators = [_strip_sign(factor)[2] for factor in rest if _strip_sign(factor)[0] == "div"]
        if any(factor in denominators for factor in rest):
            self.add("division", tree)
        radicands = [
            value for factor in rest if factor[0] == "root" and factor[2] == ("num", 2, 1) and (value := self.get_value(factor[1]))
        ]
        if len(radicands) > 1:
            radicand = math.prod(radicands, start=Fraction(1))
            if radicand > 0 and compute_root(radicand, Fraction(2)) is not None:
                self.add("root", tree)
            elif _has_square_factor(radicand):
                self.add("square factor", tree)
        lettered = [factor for factor in rest if get_free_symbols(factor)]
        if len(lettered) > 1 and any(factor[0] == "add" for factor in lettered):
            self.add("product of sums", tree)

    def visit_div(self, tree: Tree) -> None:
        """A division by one or by itself, numbers that cancel, and the forms of a fraction."""
        top, low = self.split_coefficient(tree[1])[0], self.split_coefficient(tree[2])[0]
        if self.get_value(tree[2]) in (1, -1) or top == 0:
            self.add("no change", tree)
        elif (
            all(map(_is_complex_number, tree[1:]))
            or sort_terms(tree[1]) == sort_terms(tree[2])
            or (low.denominator == 1 and low not in (0, 1, -1) and (top / low).denominator == 1)
        ):
            self.add("division", tree)
        elif top.denominator == low.denominator == 1 and math.gcd(top.numerator, low.numerator) > 1:
            self.add("unreduced fraction", tree)
        if get_free_symbols(tree[2]):
            self.add("fraction of letters", tree)
        if any(part[0] == "div" for part in map(_strip_sign, tree[1:])):
            self.add("nested fraction", tree)

    def visit_pow(self, tree: Tree) -> None:
        """The powers 0 and 1, a root in a power, a power of i or of a sum of numbers, and a power that is a rational root."""
        base, exponent = tree[1], self.get_value(tree[2])
        if base == ("const", "e") and ("const", "i") in list_nodes(tree[2]):
            self.add("polar form", tree)
        if base == ("const", "e") and _strip_sign(tree[2])[:2] == ("fun", "ln"):
            self.add("no change", tree)
        if exponent is None or base[0] == "sym":
            return
        if exponent in (0, 1) or (base[0] == "root" and (degree := self.get_value(base[2])) and (exponent / degree).denominator == 1):
            self.add("no change", tree)
            return
        if base[0] == "add" and get_free_symbols(base) and exponent >= 2:
            self.add("product of sums", tree)
        value = self.get_value(base)
        if value is not None and max(abs(exponent.numerator), exponent.denominator) <= _MAX_EXPONENT and value > 0:
            if (
                value.numerator.bit_length() + value.denominator.bit_length() < 2_000
                and compute_root(value**exponent.numerator, Fraction(exponent.denominator)) is not None
            ):
                self.add("root", tree)
            elif _is_reducible_root(value ** abs(exponent.numerator), exponent.denominator):
                self.add("square factor", tree)
        elif value is None and not get_free_symbols(base) and exponent.denominator == 1:
            composed = base[0] in ("root", "add", "mul", "div", "neg", "pow") and abs(exponent) > 1
            if composed or base == ("const", "i"):
                self.add("power", tree)

    def visit_root(self, tree: Tree) -> None:
        """A root of a power that it undoes, and a radicand with a square factor."""
        degree, value = self.get_value(tree[2]), self.get_value(tree[1])
        inner = _strip_sign(tree[1])
        if degree and inner[0] == "pow" and (exponent := self.get_value(inner[2])) is not None and (exponent / degree).denominator == 1:
            self.add("root of a power", tree)
        if degree is not None and degree.denominator == 1 and value is not None and _is_reducible_root(value, degree.numerator):
            self.add("square factor", tree)

    def visit_fun(self, tree: Tree) -> None:
        """A function of numbers."""
        name, argument = tree[1], tree[2] if len(tree) > 2 and isinstance(tree[2], tuple) else ("num", 0, 1)
        if get_free_symbols(tree):
            return
        if name == "ln":
            plain = self.get_value(argument) == 1 or argument == ("const", "e") or argument[:2] == ("pow", ("const", "e"))
            self.add("function ln" if plain else "logarithm", tree)
        else:
            self.add(_classify_function(name), tree)

    def split_coefficient(self, tree: Tree) -> tuple[Fraction, Tree]:
        """Split a term into its rational factor and the rest."""
        if (value := self.get_value(tree)) is not None:
            return value, ("num", 1, 1)
        if tree[0] == "neg":
            number, rest = self.split_coefficient(tree[1])
            return -number, rest
        if tree[0] == "div" and (low := self.get_value(tree[2])):
            number, rest = self.split_coefficient(tree[1])
            return number / low, rest
        if tree[0] != "mul":
            return Fraction(1), tree
        number, factors = Fraction(1), list[Tree]()
        for factor in _flatten(tree, "mul"):
            value = self.get_value(factor)
            number, factors = (number * value, factors) if value is not None else (number, [*factors, factor])
        return number, factors[0] if len(factors) == 1 else ("mul", *factors)


def _classify_function(name: str) -> str:
    """Return the kind of step that a function of numbers is; those with formulas between them are one kind."""
    return "trigonometry" if name in _TRIGONOMETRY else "logarithm" if name in _LOGARITHMS else f"function {name}"


def _is_complex_number(tree: Tree) -> bool:
    """Whether a tree holds the imaginary unit, or the root of a negative number, and no letter."""
    return not get_free_symbols(tree) and any(
        node == ("const", "i") or (node[0] == "root" and node[1][0] == "neg" and is_numeral(node[1])) for node in list_nodes(tree)
    )


def _is_multiple_of_matrix(term: Tree) -> bool:
    """Whether a term is a matrix or a vector without letters, or a number of times one."""
    body = _strip_sign(term)
    factors = _flatten(body, "mul") if body[0] == "mul" else [body]
    return any(factor[0] in ("matrix", "tuple", "binom") for factor in factors) and not get_free_symbols(term)


def _is_polar(tree: Tree) -> bool:
    """Whether a sum is `cos t + i sin t`."""
    if len(tree) != 3 or tree[1][:2] != ("fun", "cos") or tree[2][0] != "mul" or len(tree[2]) != 3:
        return False
    sine: Tree = ("fun", "sin", *tree[1][2:])
    return tree[2][1:] in ((("const", "i"), sine), (sine, ("const", "i")))


def _compute_value(tree: Tree) -> Fraction | None:
    try:
        return to_rational(tree)
    except (LimitExceeded, NotFinite):
        return None


def _strip_sign(tree: Tree) -> Tree:
    inner: Tree = tree[1] if tree[0] == "neg" else tree
    return inner


def _flatten(tree: Tree, op: str) -> Iterator[Tree]:
    for arg in tree[1:]:
        if arg[0] == op:
            yield from _flatten(arg, op)
        else:
            yield arg


def _is_atom(tree: Tree) -> bool:
    """Whether a factor may be next to a written coefficient 1, as in `1x^2`: a letter or a constant, perhaps with a power, or a root."""
    return tree[0] in ("sym", "const", "root") or (tree[0] == "pow" and tree[1][0] in ("sym", "const"))


def _has_square_factor(value: Fraction) -> bool:
    """Whether a whole number of moderate size has a square factor above 1."""
    return _is_reducible_root(value, 2)


def _is_reducible_root(value: Fraction, degree: int) -> bool:
    """Whether a root of a whole number of moderate size has a simpler form: a factor comes out of it, or its degree gets smaller."""
    number = abs(value.numerator)
    if value.denominator != 1 or number < 2 or number.bit_length() >= 40 or not 2 <= degree <= _MAX_EXPONENT:
        return False
    if any(number % k**degree == 0 for k in range(2, min(round(number ** (1 / degree)), 2_000) + 1)):
        return True
    return any(degree % p == 0 and compute_root(Fraction(number), Fraction(p)) is not None for p in (2, 3, 5, 7) if p < degree)


def contains_tree(tree: Tree, part: Tree) -> bool:
    """Whether a sorted tree contains a part, as a subtree or as some terms of a longer sum or product."""
    terms = Counter(part[1:]) if part[0] in ("add", "mul") else None
    return any(node == part or (terms is not None and node[0] == part[0] and terms <= Counter(node[1:])) for node in list_nodes(tree))
