"""Compare relations: extract values from assignments, check chains, compare equations and inequalities."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.compare.regions import FLIPPED_SIGNS, compare_regions, parse_region
from rlvr.verifiers.math.compare.scalars import CompareContext, Comparison
from rlvr.verifiers.math.parsing.tree import Tree, describe_tree, format_tree, free_symbols, list_nodes
from rlvr.verifiers.math.values.normal_form import Normalizer
from rlvr.verifiers.math.values.numeric import evaluate_real
from rlvr.verifiers.math.values.rational import NotFinite, to_rational

_FUNCTION_LETTERS = frozenset("fghpqFGHPQRSTAVNEabuvwd")
_MEASURE_FUNCTIONS = frozenset(("sin", "cos", "tan", "cot", "sec", "csc", "det", "arg", "Re", "Im", "gcd", "lcm", "max", "min"))
ZERO: Tree = ("num", 0, 1)
_UNKNOWN_LETTERS = frozenset("kmntxy")
"""Letters whose absolute value is not a requested quantity: `|x| = 5` is an equation with two solutions, `|z| = 5` a modulus."""


def find_name(tree: Tree) -> str:
    """Find the name on one side of an assignment: `x`, `f(x)`, `(x, y)`; "" if it is not a name."""
    if tree[0] == "sym":
        return str(tree[1])
    if tree[0] == "mul" and all(node[0] == "mul" or (node[0] == "sym" and node[1].isupper()) for node in list_nodes(tree)):
        return "".join(sorted(free_symbols(tree)))
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[2][0] in ("sym", "tuple"):
        timed = tree[2] == ("sym", "t") and len(tree[1][1]) == 1  # x(t) = ...
        return str(tree[1][1]) if timed or tree[1][1].rstrip("'") in tuple("fghpqyPQRSTuvwFGH") else ""
    if tree[0] == "mul" and tree[1][0] == "pow" and tree[1][1][0] == "sym" and tree[1][2] == ("neg", ("num", 1, 1)) and len(tree) == 3:
        return f"{tree[1][1][1]}^-1"
    if tree[0] == "pow" and tree[1][0] == "sym" and tree[1][1].isupper() and tree[2] in (("neg", ("num", 1, 1)), ("sym", "T")):
        return f"{tree[1][1]}^{format_tree(tree[2])}"
    if tree[0] == "fun" and tree[1] == "abs":
        inner = find_name(tree[2])
        return inner and f"|{inner}|"
    if tree[0] == "div" and tree[1][0] == tree[2][0] == "mul" and tree[1][1] == tree[2][1] == ("sym", "d"):
        return f"{tree[1][-1][1]}'"
    if tree[0] == "tuple" and all(arg[0] == "sym" for arg in tree[1:]):
        return "(" + ",".join(arg[1] for arg in tree[1:]) + ")"
    return ""


def split_assignment(tree: Tree) -> tuple[str, Tree]:
    """Split `x = 5` into name and value; any other tree has the name "" and is its own value."""
    if tree[0] == "rel" and len(tree) == 4 and tree[2] == "=":
        left, right = find_name(tree[1]), find_name(tree[3])
        if left and tree[1] != tree[3]:
            return left, tree[3]
        if right:
            return right, tree[1]
        if find_quantity_name(tree[1]) and not free_symbols(tree[3]):
            return find_quantity_name(tree[1]), tree[3]
    return "", tree


def find_quantity_name(tree: Tree) -> str:
    r"""Find the name of a requested quantity of more than one letter: `f(2)`, `a:b`, `AB/CD`, `\sin A`; "" for anything else."""
    op = tree[0]
    if op == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[1][1].rstrip("'") in _FUNCTION_LETTERS and not free_symbols(tree[2]):
        return format_tree(tree)
    if op == "ratio" and all(arg[0] == "sym" for arg in tree[1:]):
        return format_tree(tree)
    if op == "div" and all(arg[0] == "sym" or (arg[0] == "mul" and find_name(arg)) for arg in tree[1:]):
        return format_tree(tree)
    if op == "fun" and tree[1] in _MEASURE_FUNCTIONS and len(tree) == 3 and tree[2][0] == "sym":
        return format_tree(tree)
    return format_tree(tree) if any(row(tree) for row in _REQUESTED_FORMS) else ""


def _is_function_of_letters(tree: Tree, *names: str) -> bool:
    """Whether a tree is one of these functions of an expression with letters."""
    return tree[0] == "fun" and tree[1] in names and len(tree) == 3 and bool(free_symbols(tree[2]))


_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_REQUESTED_FORMS: tuple[Callable[[Tree], bool], ...] = (
    lambda tree: _is_function_of_letters(tree, *_TRIGONOMETRIC),  # sin 2A
    lambda tree: tree[0] == "pow" and _is_function_of_letters(tree[1], *_TRIGONOMETRIC) and not free_symbols(tree[2]),  # tan^2 x
    lambda tree: _is_function_of_letters(tree, "ln"),  # ln k
    lambda tree: tree[0] == "div" and _is_function_of_letters(tree[1], "ln") and tree[2][:2] == ("fun", "ln"),  # log_2 x
    lambda tree: (
        _is_function_of_letters(tree, "abs") and (len(free_symbols(tree)) > 1 or tree[2][0] == "sym")
    ),  # |z - w|, but |x - 1| is not solved
)
"""Forms of expressions that name a requested quantity."""


def _is_line(tree: Tree) -> bool:
    """Whether a sum in x, y and z has coefficients or a number in it: 2x + 3y - 6 is a line or a curve, x + y may be what is requested."""
    terms = [arg[1] if arg[0] == "neg" else arg for arg in tree[1:]]
    scaled = any(not free_symbols(term) or (term[0] in ("mul", "div") and any(not free_symbols(arg) for arg in term[1:])) for term in terms)
    return scaled and all(letter.partition("_")[0] in ("x", "y", "z") for letter in free_symbols(tree))


def is_requested_quantity(tree: Tree) -> bool:
    """Whether the left side of an equation only names the requested quantity: `m + n = 204`, `f(1) + f(2) = 6`.

    An equation in one letter might be unsolved; an equation in several letters determines none of them.
    """
    if tree[:2] == ("fun", "abs") and tree[2][0] == "sym" and tree[2][1] in _UNKNOWN_LETTERS:
        return False
    if find_name(tree) or find_quantity_name(tree):
        return True
    if tree[0] in ("add", "mul", "neg", "div", "pow", "root") and len(free_symbols(tree)) > 1:
        return tree[0] != "add" or not _is_line(tree)
    return tree[0] == "add" and all(find_quantity_name(arg[1] if arg[0] == "neg" else arg) for arg in tree[1:])


def is_solved(tree: Tree) -> bool:
    """Whether a relation has nothing left to solve: `x = 5`, `x > 5`, `1 < |x| <= 2`, and the definition `f(x) = 2x`.

    >>> x, two = ("sym", "x"), ("num", 2, 1)
    >>> is_solved(("rel", x, "=", two)), is_solved(("rel", ("mul", two, x), "=", two))
    (True, False)
    """
    parts = tree[1::2]
    lettered = [part for part in parts if free_symbols(part)]
    if len(lettered) == 1:
        (part,) = lettered
        return bool(find_name(part) or find_quantity_name(part))
    left = parts[0]
    defined = tree[2] == "=" and left[0] == "mul" and len(left) == 3 and left[1][0] == left[2][0] == "sym"
    return defined and bool(find_name(left)) and left[1][1] not in free_symbols(parts[1])


def find_unsolved(tree: Tree) -> Tree | None:
    """Find the first relation in an answer that is not solved; None if there is none."""
    if tree[0] == "rel":
        name, value = split_assignment(tree)
        return None if tree[2] == "in" or is_solved(tree) or (name and name not in free_symbols(value)) else tree
    if tree[0] in ("list", "union", "inter", "builder"):
        return next((found for arg in tree[1:] if (found := find_unsolved(arg)) is not None), None)
    return None


def extract_value(gold: Tree, answer: Tree, context: CompareContext) -> tuple[Tree | None, str]:
    """Extract the value that an answer asserts if the gold is one value: `x = 5` asserts 5, a chain must be consistent."""
    if answer[0] != "rel":
        return answer, ""
    signs, parts = answer[2::2], list(answer[1::2])
    if list(signs) == ["in"]:
        return (parts[1], "") if find_name(parts[0]) else (None, f"{format_tree(parts[0])} is not a letter")
    if any(sign not in ("=", "~") for sign in signs):
        return None, f"parsed as {describe_tree(answer)}; the gold {format_tree(gold)} is not a relation"
    values = parts
    equation = parts[0][0] == "add" and gold == ZERO  # everything on one side, and zero on the other
    if (
        not equation
        and is_requested_quantity(parts[0])
        and (not free_symbols(parts[0]) & free_symbols(gold) or (parts[0][0] != "sym" and find_name(parts[0])))
    ):
        values = parts[1:]
        signs = signs[1:]
    elif len(parts) == 2 and find_name(parts[1]) and not (free_symbols(parts[1]) & free_symbols(gold)):
        values, signs = parts[:1], ()
    if not values:
        return None, "it asserts nothing"
    for sign, value in zip(signs, values[1:], strict=False):
        if sign == "=" and not context.compare_trees(values[0], value, context).is_equal:
            return None, f"its chain is inconsistent: {format_tree(values[0])} is not {format_tree(value)}"
        if sign == "~" and not _is_near(values[0], value):
            return None, f"its chain is inconsistent: {format_tree(values[0])} is not close to {format_tree(value)}"
    simple = [value for value in values if value[0] in ("num", "dec") or is_rational(value)]
    return (simple[-1] if simple and len(values) > 1 and "~" not in signs else values[0]), ""


def is_rational(tree: Tree) -> bool:
    """Whether the tree is a rational number."""
    try:
        return to_rational(tree) is not None
    except NotFinite:
        return False


def _is_near(a: Tree, b: Tree) -> bool:
    x, y = evaluate_real(a), evaluate_real(b)
    return x is not None and y is not None and bool(abs(x - y) <= abs(x) / 50)


def compare_relations(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare an answer with a gold that is a relation: a membership, an assignment, an equation, an inequality."""
    judge = context.compare_trees
    if answer[0] == "mod" and gold[2] == "=":
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the equation {format_tree(gold)}")
    if is_solved(gold) and (left := find_unsolved(answer)) is not None:
        return Comparison(False, f"{format_tree(left)} is not solved yet; the gold {format_tree(gold)} is")
    signs = gold[2::2]
    size, gold_size = len(answer), len(gold)
    if list(signs) == ["in"] or all(sign in FLIPPED_SIGNS for sign in signs):
        want, have = parse_region(gold), parse_region(answer)
        if want is not None and have is not None and not (answer[0] == "set" and size > 1):
            if answer[0] == "rel" and free_symbols(answer) and free_symbols(gold) and free_symbols(answer) != free_symbols(gold):
                return Comparison(
                    False,
                    f"it contains {', '.join(sorted(free_symbols(answer)))}; the gold contains {', '.join(sorted(free_symbols(gold)))}",
                )
            return compare_regions(want, have, context)
        if list(signs) == ["in"]:
            if gold[3][0] == "tuple" and len(gold[3]) == 3 and gold[1][0] == "sym":
                return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")
            return judge(gold[3], answer, context)
        return _compare_inequalities(gold, answer, context)
    name, value = split_assignment(gold)
    if gold_size > 4 or "~" in gold[2::2]:
        inner, why = extract_value(("num", 0, 1), gold, context)
        judged = judge(inner, answer, context) if inner is not None else Comparison(False, f"the gold's {why}")
        return judge(gold[-1], answer, context) if not judged.is_equal and gold[-2] == "~" and answer[0] == gold[-1][0] == "dec" else judged
    if answer[0] != "rel":
        if name or _is_sum_equation(gold):
            return judge(value if name else gold[3], answer, context)
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the equation {format_tree(gold)}")
    if not _is_same_function(name, find_name(answer[1])):
        return Comparison(False, f"it defines {find_name(answer[1])}; the gold defines {name}")
    if size == 4 and answer[2] == "=":
        mine, mine_value = split_assignment(answer)
        same = mine == name or (_point_letters(name) != "" and _point_letters(name) == _point_letters(mine))
        if name and mine and same and judge(value, mine_value, context).is_equal:
            return Comparison(True, f"{format_tree(answer)} is the gold")
        applied = "mul" in (gold[1][0], answer[1][0])  # f(x) = ... is equivalent to y = ...
        applied = applied and (
            answer[1][0] != "mul" or free_symbols(answer[1][2]) <= free_symbols(value)
        )  # f(y) = 2x + 3 is another function
        if name and mine and applied and free_symbols(value) and judge(value, mine_value, context).is_equal:
            return Comparison(True, f"{format_tree(answer)} is the gold")
        if name and mine and mine != name and not free_symbols(value) and not free_symbols(mine_value):
            return Comparison(False, f"it names {mine}; the gold names {name}")
        return _compare_equations(gold, answer, context)
    if name:
        inner, why = extract_value(value, answer, context)
        return judge(value, inner, context) if inner is not None else Comparison(False, why)
    return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the equation {format_tree(gold)}")


def _is_same_function(name: str, other_name: str) -> bool:
    """Whether two names may be the same function: f, its inverse f^-1 and its derivative f' differ; y may be any but a derivative."""
    if not name or not other_name:
        return True
    base, other = (text.partition("^")[0].rstrip("'") for text in (name, other_name))
    marks, others = ((text.count("'"), text.endswith("^-1")) for text in (name, other_name))
    return marks == others or (base != other and marks[0] == others[0])


def _point_letters(name: str) -> str:
    """Return the point letters of a name, without signs over or around them: |AB| is AB, but |x| is not x."""
    letters = "".join(sorted(name.strip("|").rpartition(" ")[2]))
    return letters if letters.isalpha() and letters.isupper() and len(letters) > 1 else ""


def _move_to_left(tree: Tree) -> Tree:
    return ("add", tree[1], ("neg", tree[3]))


def _is_sum_equation(tree: Tree) -> bool:
    """Whether an equation only states the value of a sum of unknown numbers: `m + n = 204`; with an x in it, it may be a line."""
    terms = tree[1][1:] if tree[1][0] == "add" else ()
    return bool(terms) and not free_symbols(tree[3]) and all(term[0] == "sym" and term[1] not in ("x", "y", "z", "t") for term in terms)


def _clear_denominators(tree: Tree) -> Tree:
    """Multiply a sum by its denominators that contain letters: y - 1/x becomes xy - 1."""
    lows = {arg[2] for term in tree[1:] for arg in list_nodes(term) if arg[0] == "div" and free_symbols(arg[2])}
    terms = [(term[0] == "neg", term[1] if term[0] == "neg" else term) for term in tree[1:]]
    if len(lows) != 1 or any(any(low in list_nodes(part) for low in lows) and part[0] != "div" for _, part in terms):
        return tree
    (low,) = lows
    parts: list[Tree] = [part[1] if part[0] == "div" and part[2] == low else ("mul", part, low) for _, part in terms]
    return ("add", *(("neg", part) if negative else part for (negative, _), part in zip(terms, parts, strict=True)))


def _compare_equations(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare two equations with the same letters: one must be a constant multiple of the other."""
    a, b = _clear_denominators(_move_to_left(gold)), _clear_denominators(_move_to_left(answer))
    if free_symbols(a) != free_symbols(b) or not free_symbols(a):
        return Comparison(False, f"{format_tree(answer)} is not {format_tree(gold)}: the letters differ")
    factor = _find_multiple(a, b, context)
    if factor is None:
        return Comparison(False, f"{format_tree(answer)} is not a multiple of {format_tree(gold)}")
    return Comparison(True, f"{format_tree(answer)} is {format_tree(gold)}, rearranged or scaled")


def _find_multiple(a: Tree, b: Tree, context: CompareContext) -> Tree | None:
    """Find the constant factor between two expressions; None if one is not a multiple of the other."""
    first, second = Normalizer().to_form(a), Normalizer().to_form(b)
    if not first or not second or set(first) != set(second):
        return None
    mono = min(first)
    factor = Fraction(second[mono]) / first[mono]
    if any(second[m] != factor * first[m] for m in first):
        return None
    return ("num", factor.numerator, factor.denominator)


def _compare_inequalities(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare two unsolved inequalities: the same one, rearranged, reversed or scaled."""
    size, gold_size = len(answer), len(gold)
    if answer[0] != "rel" or size != gold_size or any(sign not in FLIPPED_SIGNS for sign in answer[2::2]):
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")
    if gold_size > 4:
        turned: list[Any] = [FLIPPED_SIGNS.get(p, p) if isinstance(p, str) else p for p in reversed(answer[1:])]
        for parts in (list(answer[1:]), turned):
            if parts[1::2] == list(gold[2::2]) and all(context.is_same_value(x, y) for x, y in zip(gold[1::2], parts[0::2], strict=True)):
                return Comparison(True, f"{format_tree(answer)} is the gold")
        return Comparison(False, f"{describe_tree(answer)} is not {describe_tree(gold)}")
    factor = _find_multiple(_move_to_left(gold), _move_to_left(answer), context)
    if factor is None:
        return Comparison(False, f"{describe_tree(answer)} is not {describe_tree(gold)}")
    sign = answer[2] if factor[1] > 0 else FLIPPED_SIGNS[answer[2]]
    right = sign == gold[2]
    return Comparison(right, f"{describe_tree(answer)} {'is' if right else 'is not'} {describe_tree(gold)}")
