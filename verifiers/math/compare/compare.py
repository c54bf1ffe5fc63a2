"""Compare an answer's tree with the gold's tree, by the kind of the gold.

`compare_trees` normalizes both sides and `compare_normalized` chooses the rule: the functions in `COMPARERS` at the end of the file.
Collections are matched member by member, relations side by side, and one value with one value in `scalars.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.compare.piecewise import is_equal_to_formula, replace_otherwise_case
from rlvr.verifiers.math.compare.regions import FLIPPED_SIGNS, compare_regions, parse_region
from rlvr.verifiers.math.compare.scalars import (
    INTEGRATION_VARIABLES,
    CompareContext,
    Comparison,
    compare_scalars,
    compute_exact_value,
    explain_invalid_value,
    split_unit,
)
from rlvr.verifiers.math.parsing.parser import make_canonical_point_name
from rlvr.verifiers.math.parsing.tree import (
    LimitExceeded,
    Tree,
    describe_tree,
    format_tree,
    get_free_symbols,
    has_op,
    list_nodes,
    substitute,
)
from rlvr.verifiers.math.parsing.words import ORDINALS, is_same_wording
from rlvr.verifiers.math.values.normal_form import Normalizer
from rlvr.verifiers.math.values.numeric import differs_at_sample_points, evaluate_real
from rlvr.verifiers.math.values.rational import NotFinite, to_rational


def compare_trees(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Normalize gold and answer, and compare them under the policy of the context."""
    if _is_numeral(gold) and _is_numeral(answer):
        return compare_normalized(gold, answer, context)
    if answer[0] == "either" and (gold[0] in ("tuple", "text", "choice") or _is_choice_list(gold)):
        return Comparison(False, f"it offers {len(answer) - 1} alternatives; the gold is {describe_tree(gold)}")
    gold, answer = (("list", *tree[1:]) if tree[0] == "either" else tree for tree in (gold, answer))
    gold, answer = (
        convert_mod_to_residue(gold),
        _drop_repeated_sum_or_limit(convert_mod_to_residue(answer) if convert_mod_to_residue(gold)[0] == "mod" else answer),
    )
    if context.conventions.worked_out != "off" and describe_unevaluated_operation(answer) and not describe_unevaluated_operation(gold):
        return Comparison(False, f"it is not evaluated: it still contains {describe_unevaluated_operation(answer)}")
    wrong = explain_invalid_value(answer)
    if wrong:
        return Comparison(False, wrong)
    gold, answer = _align_notation(gold, answer)
    return compare_normalized(_expand_plus_minus(gold), _expand_plus_minus(answer), context)


def _is_numeral(tree: Tree) -> bool:
    """Whether a tree is one numeral, with or without a unit, which needs no normalization."""
    return tree[0] in ("num", "dec") or (tree[0] == "unit" and tree[1][0] in ("num", "dec"))


def compare_normalized(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare an answer that is already normalized, such as a member of a list."""
    context.steps_left -= 1
    if context.steps_left < 0:
        raise LimitExceeded("it needs too many comparisons")
    if gold == answer and not context.conventions.form:
        return Comparison(True, f"{describe_tree(answer)} is the gold")
    rule = COMPARERS.get(gold[0])
    if rule is None and gold[0] == "const" and gold[1] in "RZNQC":
        rule = _compare_number_sets
    if rule is not None:
        return rule(gold, answer, context)
    value, why = _extract_value(gold, answer, context)
    if value is None:
        return Comparison(False, why)
    if value[0] == "set" and len(value) == 2 and (answer[0] == "rel" or gold[0] == "rel"):
        value = value[1]  # x is in a set of one value
    if value[0] == "mod" and (given := compute_exact_value(value[1])) is not None and 0 <= given < (compute_exact_value(value[-1]) or 0):
        value = value[1]
    if value[0] == "set" and len(value) == 2:
        return Comparison(False, f"{describe_tree(value)} is a set; the gold {format_tree(gold)} is one value")
    value = _read_word_as_product(gold, value)
    if value[0] == "ratio" and len(value) == 3:
        value = ("div", value[1], value[2])
    if value[0] == "list" and _may_repeat_one_value(value) and all(compare_normalized(gold, arg, context).is_equal for arg in value[1:]):
        return Comparison(True, f"{describe_tree(value)} is {format_tree(gold)} in several forms")
    if value[0] == "cases" and get_free_symbols(gold) and is_equal_to_formula(value, gold, context):
        return Comparison(True, f"{describe_tree(value)} has the values of {format_tree(gold)}")
    if value[0] in NON_SCALAR_OPS:
        return Comparison(False, f"parsed as {describe_tree(value)}; the gold {format_tree(gold)} is one value")
    return compare_scalars(gold, _convert_combinations(value) if has_op(value, "tuple") else value, context)


def _may_repeat_one_value(tree: Tree) -> bool:
    """Whether a short list may be one value in several forms, `1/2, 0.5`: no repeats, and only one letter."""
    return len(set(tree[1:])) == len(tree) - 1 < 4 and len({split_assignment(arg)[0] for arg in tree[1:]} - {""}) < 2


_NON_SCALAR_OPS = "list tuple set interval union inter minus rel matrix text choice base mod ratio time cases builder"

NON_SCALAR_OPS = frozenset(_NON_SCALAR_OPS.split())


def _compare_words(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    if answer == ("set",) and gold[1] == "no solution":
        return Comparison(True, "the empty set is no solution")
    if gold[1] in ("all real numbers", "no solution"):
        return _compare_number_sets(gold, answer, context)
    if answer[0] == "text":
        right = is_same_wording(gold[1], answer[1])
        return Comparison(right, f"the words {answer[1]!r} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    if answer[0] == "sym" and " " in answer[1]:
        right = make_canonical_point_name(answer[1].partition(" ")[0], gold[1].upper()) == answer
        return Comparison(right, f"{format_tree(answer)} {'is' if right else 'is not'} {gold[1]!r}")
    if answer[0] in ("list", "set") and list(gold[1]) == sorted(set(gold[1])):  # the choices AC, with a comma
        right = sorted(arg[1].lower() for arg in answer[1:] if arg[0] == "sym") == list(gold[1]) and len(gold[1]) == len(answer) - 1
        return Comparison(right, f"the letters {format_tree(answer)} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    lettered = answer[0] in ("list", "tuple") and all(arg[0] == "sym" and len(arg[1]) == 1 for arg in answer[1:])
    if lettered and len(set(answer[1:])) == len(answer) - 1:  # BADC, letter by letter
        right = "".join(arg[1] for arg in answer[1:]).lower() == gold[1]
        return Comparison(right, f"the letters {format_tree(answer)} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    if gold[1] in ORDINALS and answer == ("num", ORDINALS.index(gold[1]) + 1, 1):
        return Comparison(True, f"{format_tree(answer)} is the {gold[1]}")
    squeezed = re.sub(r"[*()\s]", "", format_tree(answer)).lower()
    if get_free_symbols(answer) and squeezed == "".join(str(gold[1]).split()):
        return Comparison(True, "the letters are the gold's")
    return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the words {gold[1]!r}")


def _compare_choice(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    lone = answer[0] == "sym" or (answer[0] == "const" and answer[1] in "ei")
    letter = answer[1] if answer[0] == "choice" else answer[1].upper() if lone and len(answer[1]) == 1 else None
    if letter is None:
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the choice {gold[1]}")
    return Comparison(letter == gold[1], f"the choice {letter} {'is' if letter == gold[1] else 'is not'} {gold[1]}")


def _compare_base(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    value, why = _extract_value(gold, answer, context)
    if value is None:
        return Comparison(False, why)
    if value[0] == "base":
        right = value[2] == gold[2] and value[1].lstrip("0") == gold[1].lstrip("0")
        return Comparison(right, f"{format_tree(value)} {'is' if right else 'is not'} {format_tree(gold)}")
    if value[0] == "num" and context.conventions.base == "optional":
        right = str(value[1]) == gold[1]
        return Comparison(right, f"the digits {value[1]} {'are' if right else 'are not'} those of {format_tree(gold)}")
    return Comparison(False, f"parsed as {describe_tree(value)}; the gold is a numeral in base {gold[2]}")


def _compare_residue(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    residue, modulus = to_rational(gold[1]), to_rational(gold[2])
    value: Tree | None = answer
    if answer[0] == "rel" and answer[1][0] == "sym" and len(answer[1][1]) == 1:
        return Comparison(False, f"{format_tree(answer)} is one number; the gold is {describe_tree(gold)}")
    if answer[0] != "mod":
        value, why = _extract_value(gold[1], answer, context)
        if value is None:
            return Comparison(False, why)
        return (
            compare_scalars(gold[1], value, context)
            if value[0] not in NON_SCALAR_OPS
            else Comparison(False, f"parsed as {describe_tree(value)}")
        )
    mine, base = to_rational(answer[1]), to_rational(answer[2])
    if residue is None or modulus is None or mine is None or base is None or not modulus:
        return Comparison(False, f"{describe_tree(answer)} is not {describe_tree(gold)}")
    right = base == modulus and (mine - residue) % modulus == 0
    return Comparison(right, f"{describe_tree(answer)} {'is' if right else 'is not'} {describe_tree(gold)}")


def _compare_ratio(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    value, why = _extract_value(gold, answer, context)
    if value is None:
        return Comparison(False, why)
    if value[0] == "time":
        value = ("ratio", ("num", value[1], 1), ("num", value[2], 1))
    if value[0] in ("div", "num", "dec") and len(gold) == 3:
        value = ("ratio", *value[1:]) if value[0] == "div" else ("ratio", value, ("num", 1, 1))
    if value[0] != "ratio" or len(value) != len(gold):
        return Comparison(False, f"parsed as {describe_tree(value)}; the gold is {describe_tree(gold)}")
    wrong = Comparison(False, f"{describe_tree(value)} is not {describe_tree(gold)}")
    golds, parts = list(gold[1:]), list(value[1:])
    pivot = next((place for place, part in enumerate(golds) if not context.is_same_value(part, ZERO)), None)
    if pivot is None or context.is_same_value(parts[pivot], ZERO):  # 0:0 has the cross products of every ratio
        return wrong
    if all(
        context.is_same_value(("mul", golds[pivot], have), ("mul", parts[pivot], want)) for want, have in zip(golds, parts, strict=True)
    ):
        return Comparison(True, f"{describe_tree(value)} is {describe_tree(gold)}")
    return wrong


def _compare_time(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    if answer[0] == "time":
        halves = gold[3] == answer[3] or not gold[3] or not answer[3]
        right = gold[1:3] == answer[1:3] and halves
        return Comparison(right, f"{describe_tree(answer)} {'is' if right else 'is not'} {describe_tree(gold)}")
    if gold[3] or answer[0] not in ("ratio", "div"):
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")
    return _compare_ratio(("ratio", ("num", gold[1], 1), ("num", gold[2], 1)), answer, context)


def _compare_cases(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    value, why = _extract_value(gold, answer, context)
    if value is not None and value[0] not in NON_SCALAR_OPS:
        right = is_equal_to_formula(gold, value, context)
        return Comparison(right, f"{describe_tree(value)} {'has' if right else 'does not have'} the values of {describe_tree(gold)}")
    if value is None or value[0] != "cases" or len(value) != len(gold):
        return Comparison(False, why or f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")
    gold, value = replace_otherwise_case(gold, value), replace_otherwise_case(value, gold)
    return _compare_any_order(gold[1:], value[1:], context)


# Relations: values of assignments, chains, equations and inequalities

_LETTER_CONSTANTS = (("const", "e"), ("const", "i"))

_CALLED_LETTERS = frozenset("fghFGHPQ")

_FUNCTION_LETTERS = frozenset("fghpqFGHPQRSTAVNEabuvwd")

_MEASURE_FUNCTIONS = frozenset(("sin", "cos", "tan", "cot", "sec", "csc", "det", "arg", "Re", "Im", "gcd", "lcm", "max", "min"))

ZERO: Tree = ("num", 0, 1)

_UNKNOWN_LETTERS = frozenset("kmntxy")
"""Letters whose absolute value is not a requested quantity: `|x| = 5` is an equation with two solutions, `|z| = 5` a modulus."""


def find_assigned_name(tree: Tree) -> str:
    """Find the name on one side of an assignment: `x`, `f(x)`, `(x, y)`; "" if it is not a name."""
    if tree[0] == "sym":
        return str(tree[1])
    if tree[0] == "mul" and all(node[0] == "mul" or (node[0] == "sym" and node[1].isupper()) for node in list_nodes(tree)):
        return "".join(sorted(get_free_symbols(tree)))
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[2][0] in ("sym", "tuple"):
        timed = tree[2] == ("sym", "t") and len(tree[1][1]) == 1  # x(t) = ...
        return str(tree[1][1]) if timed or tree[1][1].rstrip("'") in tuple("fghpqryPQRSTuvwFGH") else ""
    if tree[0] == "mul" and tree[1][0] == "pow" and tree[1][1][0] == "sym" and tree[1][2] == ("neg", ("num", 1, 1)) and len(tree) == 3:
        return f"{tree[1][1][1]}^-1"
    if tree[0] == "pow" and tree[1][0] == "sym" and tree[1][1].isupper() and tree[2] in (("neg", ("num", 1, 1)), ("sym", "T")):
        return f"{tree[1][1]}^{format_tree(tree[2])}"
    if tree[0] == "fun" and tree[1] == "abs":
        inner = find_assigned_name(tree[2])
        return inner and f"|{inner}|"
    if tree[0] == "div" and tree[1][0] == tree[2][0] == "mul" and tree[1][1] == tree[2][1] == ("sym", "d"):
        return f"{tree[1][-1][1]}'"
    if tree[0] == "tuple" and all(arg[0] == "sym" for arg in tree[1:]):
        return "(" + ",".join(arg[1] for arg in tree[1:]) + ")"
    return ""


def is_constant_used_as_unknown(tree: Tree, value: Tree) -> bool:
    """Whether a constant is only a letter here: the e of `e = 5` names an unknown, because nothing else in the equation is Euler's number."""
    return tree in _LETTER_CONSTANTS and tree not in list_nodes(value)


def split_assignment(tree: Tree) -> tuple[str, Tree]:
    """Split `x = 5` into name and value; any other tree has the name "" and is its own value."""
    if tree[0] == "rel" and len(tree) == 4 and tree[2] == "=":
        if is_constant_used_as_unknown(tree[1], tree[3]) and not find_assigned_name(tree[3]):
            return str(tree[1][1]), tree[3]
        left, right = find_assigned_name(tree[1]), find_assigned_name(tree[3])
        if left and tree[1] != tree[3]:
            return left, tree[3]
        if right:
            return right, tree[1]
        if _find_quantity_name(tree[1]) and not get_free_symbols(tree[3]):
            return _find_quantity_name(tree[1]), tree[3]
    return "", tree


def _find_quantity_name(tree: Tree) -> str:
    r"""Find the name of a requested quantity of more than one letter: `f(2)`, `a:b`, `AB/CD`, `\sin A`; "" for anything else."""
    op = tree[0]
    if (
        op == "mul"
        and len(tree) == 3
        and tree[1][0] == "sym"
        and tree[1][1].rstrip("'") in _FUNCTION_LETTERS
        and not get_free_symbols(tree[2])
    ):
        return format_tree(tree)
    if op == "ratio" and all(arg[0] == "sym" for arg in tree[1:]):
        return format_tree(tree)
    if op == "div" and all(arg[0] == "sym" or (arg[0] == "mul" and find_assigned_name(arg)) for arg in tree[1:]):
        return format_tree(tree)
    if op == "fun" and tree[1] in _MEASURE_FUNCTIONS and len(tree) == 3 and tree[2][0] == "sym":
        return format_tree(tree)
    return format_tree(tree) if any(row(tree) for row in _REQUESTED_FORMS) else ""


def _contains_call_missing_in_gold(tree: Tree, gold: Tree) -> bool:
    """Whether a tree has the value of a function that the gold does not have: `f(2)`, `f(x) - g(x)`, `f(g(2))`."""
    letters = _CALLED_LETTERS - get_free_symbols(gold)
    if tree[0] == "sym" and tree[1].partition("(")[0] in letters and tree[1].endswith(")"):
        return True  # f(0) is read as one name
    return any(
        node[0] == "mul" and any(arg[0] == "sym" and arg[1].rstrip("'") in letters for arg in node[1:-1]) for node in list_nodes(tree)
    )


def _is_function_of_letters(tree: Tree, *names: str) -> bool:
    """Whether a tree is one of these functions of an expression with letters."""
    return tree[0] == "fun" and tree[1] in names and len(tree) == 3 and bool(get_free_symbols(tree[2]))


_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")

_REQUESTED_FORMS: tuple[Callable[[Tree], bool], ...] = (
    lambda tree: _is_function_of_letters(tree, *_TRIGONOMETRIC),  # sin 2A
    lambda tree: tree[0] == "pow" and _is_function_of_letters(tree[1], *_TRIGONOMETRIC) and not get_free_symbols(tree[2]),  # tan^2 x
    lambda tree: _is_function_of_letters(tree, "ln"),  # ln k
    lambda tree: tree[0] == "div" and _is_function_of_letters(tree[1], "ln") and tree[2][:2] == ("fun", "ln"),  # log_2 x
    lambda tree: (
        _is_function_of_letters(tree, "abs") and (len(get_free_symbols(tree)) > 1 or tree[2][0] == "sym")
    ),  # |z - w|, but |x - 1| is not solved
)
"""Forms of expressions that name a requested quantity."""


def _may_be_curve_equation(tree: Tree) -> bool:
    """Whether a sum in x, y and z has coefficients or a number in it: 2x + 3y - 6 is a line or a curve, x + y may be what is requested."""
    terms = [arg[1] if arg[0] == "neg" else arg for arg in tree[1:]]
    scaled = any(
        not get_free_symbols(term) or (term[0] in ("mul", "div") and any(not get_free_symbols(arg) for arg in term[1:])) for term in terms
    )
    return scaled and all(letter.partition("_")[0] in ("x", "y", "z") for letter in get_free_symbols(tree))


def _is_requested_quantity(tree: Tree) -> bool:
    """Whether the left side of an equation only names the requested quantity: `m + n = 204`, `f(1) + f(2) = 6`.

    An equation in one letter might be unsolved; an equation in several letters determines none of them.
    """
    if tree[:2] == ("fun", "abs") and tree[2][0] == "sym" and tree[2][1] in _UNKNOWN_LETTERS:
        return False
    if find_assigned_name(tree) or _find_quantity_name(tree):
        return True
    if tree[0] in ("add", "mul", "neg", "div", "pow", "root") and len(get_free_symbols(tree)) > 1:
        return tree[0] != "add" or not _may_be_curve_equation(tree)
    return tree[0] == "add" and all(_find_quantity_name(arg[1] if arg[0] == "neg" else arg) for arg in tree[1:])


def is_solved(tree: Tree) -> bool:
    """Whether a relation has nothing left to solve: `x = 5`, `x > 5`, `1 < |x| <= 2`, and the definition `f(x) = 2x`.

    >>> x, two = ("sym", "x"), ("num", 2, 1)
    >>> is_solved(("rel", x, "=", two)), is_solved(("rel", ("mul", two, x), "=", two))
    (True, False)
    """
    parts = tree[1::2]
    lettered = [part for part in parts if get_free_symbols(part)]
    if len(lettered) == 1:
        (part,) = lettered
        return bool(find_assigned_name(part) or _find_quantity_name(part))
    left = parts[0]
    defined = tree[2] == "=" and left[0] == "mul" and len(left) == 3 and left[1][0] == left[2][0] == "sym"
    return defined and bool(find_assigned_name(left)) and left[1][1] not in get_free_symbols(parts[1])


def _find_unsolved(tree: Tree) -> Tree | None:
    """Find the first relation in an answer that is not solved; None if there is none."""
    if tree[0] == "rel":
        name, value = split_assignment(tree)
        return None if tree[2] == "in" or is_solved(tree) or (name and name not in get_free_symbols(value)) else tree
    if tree[0] in ("list", "union", "inter", "builder"):
        return next((found for arg in tree[1:] if (found := _find_unsolved(arg)) is not None), None)
    return None


def _evaluate_bases(tree: Tree) -> Tree:
    """Replace numerals in other bases by their values.

    >>> _evaluate_bases(("mul", ("base", "6", 8), ("base", "12", 8)))
    ('mul', ('num', 6, 1), ('num', 10, 1))
    """
    if tree[0] == "base" and tree[1].isalnum() and 2 <= tree[2] <= 36:
        with contextlib.suppress(ValueError):  # a digit that the base does not have
            return ("num", int(tree[1], tree[2]), 1)
    return tuple(_evaluate_bases(arg) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg for arg in tree)


def _extract_value(gold: Tree, answer: Tree, context: CompareContext) -> tuple[Tree | None, str]:
    """Extract the value that an answer asserts if the gold is one value: `x = 5` asserts 5, a chain must be consistent."""
    if answer[0] != "rel":
        return answer, ""
    signs, parts = answer[2::2], list(answer[1::2])
    if list(signs) == ["in"]:
        return (parts[1], "") if find_assigned_name(parts[0]) else (None, f"{format_tree(parts[0])} is not a letter")
    if any(sign not in ("=", "~") for sign in signs):
        return None, f"parsed as {describe_tree(answer)}; the gold {format_tree(gold)} is not a relation"
    values = parts
    equation = parts[0][0] == "add" and gold == ZERO  # everything on one side, and zero on the other
    named = _is_requested_quantity(parts[0]) and (
        not get_free_symbols(parts[0]) & get_free_symbols(gold) or (parts[0][0] != "sym" and bool(find_assigned_name(parts[0])))
    )
    called = parts[0][0] == "mul" and parts[0][1][0] == "sym" and _contains_call_missing_in_gold(parts[0], gold)
    if not equation and (named or called or is_constant_used_as_unknown(parts[0], gold)):
        values, signs = parts[1:], signs[1:]
        while len(values) > 1 and signs[0] == "=" and _contains_call_missing_in_gold(values[0], gold):  # f(g(2)) = f(3) = 5
            values, signs = values[1:], signs[1:]
    elif len(parts) == 2 and find_assigned_name(parts[1]) and not (get_free_symbols(parts[1]) & get_free_symbols(gold)):
        values, signs = parts[:1], ()
    if not values:
        return None, "it asserts nothing"
    for sign, value in zip(signs, values[1:], strict=False):
        if sign == "=" and not compare_trees(_evaluate_bases(values[0]), _evaluate_bases(value), context).is_equal:
            return None, f"its chain is inconsistent: {format_tree(values[0])} is not {format_tree(value)}"
        if sign == "~" and not _is_near(values[0], value):
            return None, f"its chain is inconsistent: {format_tree(values[0])} is not close to {format_tree(value)}"
    if gold[0] == "base" and (based := [value for value in values if value[0] == "base" and value[2] == gold[2]]):
        return based[-1], ""
    simple = [value for value in values if value[0] in ("num", "dec") or _is_rational(value)]
    return (simple[-1] if simple and len(values) > 1 and "~" not in signs else values[0]), ""


def _is_rational(tree: Tree) -> bool:
    """Whether the tree is a rational number."""
    try:
        return to_rational(tree) is not None
    except NotFinite:
        return False


def _is_near(a: Tree, b: Tree) -> bool:
    x, y = evaluate_real(split_unit(a)[0]), evaluate_real(split_unit(b)[0])
    return x is not None and y is not None and bool(abs(x - y) <= abs(x) / 50)


def _compare_relations(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare an answer with a gold that is a relation: a membership, an assignment, an equation, an inequality."""
    judge = compare_trees
    if answer[0] == "mod" and gold[2] == "=":
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the equation {format_tree(gold)}")
    if is_solved(gold) and (left := _find_unsolved(answer)) is not None:
        return Comparison(False, f"{format_tree(left)} is not solved yet; the gold {format_tree(gold)} is")
    signs = gold[2::2]
    size, gold_size = len(answer), len(gold)
    if list(signs) == ["in"] or all(sign in FLIPPED_SIGNS for sign in signs):
        want, have = parse_region(gold), parse_region(answer)
        if want is not None and have is not None and not (answer[0] == "set" and size > 1):
            if (
                answer[0] == "rel"
                and get_free_symbols(answer)
                and get_free_symbols(gold)
                and get_free_symbols(answer) != get_free_symbols(gold)
            ):
                return Comparison(
                    False,
                    f"it contains {', '.join(sorted(get_free_symbols(answer)))}; the gold contains {', '.join(sorted(get_free_symbols(gold)))}",
                )
            return compare_regions(want, have, context)
        if list(signs) == ["in"]:
            if gold[3][0] == "tuple" and len(gold[3]) == 3 and gold[1][0] == "sym":
                return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")
            return judge(gold[3], answer, context)
        return _compare_inequalities(gold, answer, context)
    name, value = split_assignment(gold)
    if gold_size > 4 or "~" in gold[2::2]:
        inner, why = _extract_value(("num", 0, 1), gold, context)
        judged = judge(inner, answer, context) if inner is not None else Comparison(False, f"the gold's {why}")
        return judge(gold[-1], answer, context) if not judged.is_equal and gold[-2] == "~" and answer[0] == gold[-1][0] == "dec" else judged
    if answer[0] != "rel":
        if name or _is_sum_equation(gold):
            return judge(value if name else gold[3], answer, context)
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the equation {format_tree(gold)}")
    if not _is_same_function(name, find_assigned_name(answer[1])):
        return Comparison(False, f"it defines {find_assigned_name(answer[1])}; the gold defines {name}")
    if size == 4 and answer[2] == "=":
        mine, mine_value = split_assignment(answer)
        same = mine == name or (_get_point_letters(name) != "" and _get_point_letters(name) == _get_point_letters(mine))
        if name and mine and same and judge(value, mine_value, context).is_equal:
            return Comparison(True, f"{format_tree(answer)} is the gold")
        applied = "mul" in (gold[1][0], answer[1][0])  # f(x) = ... is equivalent to y = ...
        applied = applied and (
            answer[1][0] != "mul" or get_free_symbols(answer[1][2]) <= get_free_symbols(value)
        )  # f(y) = 2x + 3 is another function
        if name and mine and applied and get_free_symbols(value) and judge(value, mine_value, context).is_equal:
            return Comparison(True, f"{format_tree(answer)} is the gold")
        if name and mine and mine != name and not get_free_symbols(value) and not get_free_symbols(mine_value):
            return Comparison(False, f"it names {mine}; the gold names {name}")
        return _compare_equations(gold, answer, context)
    if name:
        inner, why = _extract_value(value, answer, context)
        return judge(value, inner, context) if inner is not None else Comparison(False, why)
    return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the equation {format_tree(gold)}")


def _is_same_function(name: str, other_name: str) -> bool:
    """Whether two names may be the same function: f, its inverse f^-1 and its derivative f' differ; y may be any but a derivative."""
    if not name or not other_name:
        return True
    base, other = (text.partition("^")[0].rstrip("'") for text in (name, other_name))
    marks, others = ((text.count("'"), text.endswith("^-1")) for text in (name, other_name))
    return marks == others or (base != other and marks[0] == others[0])


def _get_point_letters(name: str) -> str:
    """Return the point letters of a name, without signs over or around them: |AB| is AB, but |x| is not x."""
    letters = "".join(sorted(name.strip("|").rpartition(" ")[2]))
    return letters if letters.isalpha() and letters.isupper() and len(letters) > 1 else ""


def _move_to_left(tree: Tree) -> Tree:
    return ("add", tree[1], ("neg", tree[3]))


def _is_sum_equation(tree: Tree) -> bool:
    """Whether an equation only states the value of a sum of unknown numbers: `m + n = 204`; with an x in it, it may be a line."""
    terms = tree[1][1:] if tree[1][0] == "add" else ()
    return bool(terms) and not get_free_symbols(tree[3]) and all(term[0] == "sym" and term[1] not in ("x", "y", "z", "t") for term in terms)


def _clear_denominators(tree: Tree) -> Tree:
    """Multiply a sum by its denominators that contain letters: y - 1/x becomes xy - 1."""
    lows = {arg[2] for term in tree[1:] for arg in list_nodes(term) if arg[0] == "div" and get_free_symbols(arg[2])}
    terms = [(term[0] == "neg", term[1] if term[0] == "neg" else term) for term in tree[1:]]
    if len(lows) != 1 or any(any(low in list_nodes(part) for low in lows) and part[0] != "div" for _, part in terms):
        return tree
    (low,) = lows
    parts: list[Tree] = [part[1] if part[0] == "div" and part[2] == low else ("mul", part, low) for _, part in terms]
    return ("add", *(("neg", part) if negative else part for (negative, _), part in zip(terms, parts, strict=True)))


def _compare_equations(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare two equations with the same letters: one must be a constant multiple of the other."""
    a, b = _clear_denominators(_move_to_left(gold)), _clear_denominators(_move_to_left(answer))
    if get_free_symbols(a) != get_free_symbols(b) or not get_free_symbols(a):
        return Comparison(False, f"{format_tree(answer)} is not {format_tree(gold)}: the letters differ")
    factor = _find_constant_ratio(a, b, context)
    if factor is None:
        return Comparison(False, f"{format_tree(answer)} is not a multiple of {format_tree(gold)}")
    return Comparison(True, f"{format_tree(answer)} is {format_tree(gold)}, rearranged or scaled")


def _find_constant_ratio(a: Tree, b: Tree, context: CompareContext) -> Tree | None:
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
    factor = _find_constant_ratio(_move_to_left(gold), _move_to_left(answer), context)
    if factor is None:
        return Comparison(False, f"{describe_tree(answer)} is not {describe_tree(gold)}")
    sign = answer[2] if factor[1] > 0 else FLIPPED_SIGNS[answer[2]]
    right = sign == gold[2]
    return Comparison(right, f"{describe_tree(answer)} {'is' if right else 'is not'} {describe_tree(gold)}")


# Collections: lists, sets, tuples, matrices, and sets of numbers

MAX_MEMBERS = 60


def match_members(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a list or a set: every member must match exactly one member, in order or in any order."""
    if gold[0] == "list" and any(arg[0] == "rel" for arg in gold[1:]):
        spans = parse_region(gold)
        if spans is not None and any(arg[2] != "=" for arg in gold[1:] if arg[0] == "rel"):
            return _compare_number_sets(gold, answer, context)
    value: Tree | None = answer
    if answer[0] == "rel":
        value, why = _extract_value(gold, answer, context)
        if value is None:
            return Comparison(False, why)
        value = _expand_plus_minus(value)
    assert value is not None
    gold, value = _group_solutions(gold), _split_choice_letters(gold, _group_solutions(value))
    if not len(gold) > 1:
        empty = value in (("set",), ("text", "no solution"), ("text", "none"))
        return Comparison(empty, f"{describe_tree(value)} {'is' if empty else 'is not'} the empty set")
    if gold[0] == "set" and value[0] in ("union", "inter", "minus", "builder"):
        return _compare_number_sets(gold, value, context)
    strict = context.conventions.brackets == "strict"
    ordered = context.conventions.order == "strict" and gold[0] == "list"
    if value[0] == "tuple" and gold[0] == "list" and not strict:
        ordered = True
    elif value[0] not in ("list", "set") or (strict and value[0] != gold[0]):
        if len(gold) == 2:
            return (
                compare_normalized(gold[1], value, context)
                if gold[0] == "list" or not strict
                else Comparison(False, f"{describe_tree(value)} is not {describe_tree(gold)}")
            )
        return Comparison(False, f"parsed as {describe_tree(value)}; the gold is {describe_tree(gold)}")
    letters, mine = ({split_assignment(arg)[0] for arg in tree[1:]} for tree in (gold, value))
    indexed = len({name.partition("_")[0] for name in letters | mine}) == 1 == min(len(letters), len(mine))  # x_1 and x_2, or x twice
    if len(letters) > 1 and "" not in letters | mine and letters != mine and not indexed:
        return Comparison(False, f"it names {', '.join(sorted(mine))}; the gold names {', '.join(sorted(letters))}"[:200])
    if len(letters) > 1 and "" not in letters and mine == {""}:  # values without letters come in the letters' order, but roots in any
        ordered = ordered or len({name.partition("_")[0] for name in letters}) > 1 or min(letters)[0] in "abST"
    whole = any(
        arg[0] == "rel" and not split_assignment(arg)[0] for tree in (gold, value) for arg in tree[1:]
    )  # 3x + y = 0 next to y = -3x
    golds, answers = (
        [split_assignment(arg)[1] for arg in tree[1:]] if indexed else _list_member_values(tree, whole) for tree in (gold, value)
    )
    golds, answers = _shorten_ellipsis_list(golds), _shorten_ellipsis_list(answers)
    if gold[0] == "set" and value[0] == "set":
        golds, answers = _drop_duplicates(golds, context), _drop_duplicates(answers, context)
    if len(golds) != len(answers):
        return Comparison(False, f"it has {len(answers)} values; the gold {describe_tree(gold)} has {len(golds)}")
    if len(golds) > MAX_MEMBERS:
        raise LimitExceeded(f"it has more than {MAX_MEMBERS} members")
    return _compare_in_order(golds, answers, context) if ordered else _compare_any_order(golds, answers, context)


def _list_member_values(tree: Tree, keep_equations: bool) -> list[Tree]:
    """Return the members; `x = 1, x = 2` lists two values of one letter unless the gold has whole equations; `x = 1, y = 2` stays."""
    members = list(tree[1:])
    names = {split_assignment(arg)[0] for arg in members if split_assignment(arg)[0]}
    return [split_assignment(arg)[1] for arg in members] if len(names) == 1 and not keep_equations else members


def _drop_duplicates(members: Sequence[Tree], context: CompareContext) -> list[Tree]:
    kept: list[Tree] = []
    for arg in members:
        if not any(compare_normalized(other, arg, context).is_equal for other in kept):
            kept.append(arg)
    return kept


def _compare_in_order(golds: Sequence[Tree], answers: Sequence[Tree], context: CompareContext) -> Comparison:
    for place, (want, have) in enumerate(zip(golds, answers, strict=True), 1):
        judged = compare_normalized(_expand_plus_minus(want), _expand_plus_minus(have), context)
        if not judged.is_equal:
            return Comparison(False, f"member {place}: {judged.reason}")
    return Comparison(True, "every member matches the gold's, in order")


def _compare_any_order(golds: Sequence[Tree], answers: Sequence[Tree], context: CompareContext) -> Comparison:
    """Compare members in any order: every member of the gold must match exactly one member of the answer."""
    left = list(answers)
    values = [compute_exact_value(split_unit(arg)[0]) for arg in left]
    for want in golds:
        first = compute_exact_value(split_unit(want)[0])
        order = sorted(range(len(left)), key=lambda k: values[k] != first)
        found = next((k for k in order if compare_normalized(want, left[k], context).is_equal), None)
        if found is None:
            return Comparison(False, f"the gold's member {format_tree(want)} is missing")
        del left[found], values[found]
    return Comparison(True, "the members match the gold's")


def _compare_tuples(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a point or a pair: as a tuple, a column, a list in order, or named coordinates."""
    if (
        answer[0] == "rel"
        and answer[1][0] == "tuple"
        and "".join(find_assigned_name(arg) for arg in answer[1][1:]) in ("yx", "zyx", "yxz", "xzy", "zxy")
    ):
        return Comparison(False, f"{format_tree(answer[1])} are the coordinates in another order")
    value, why = _extract_value(gold, answer, context)
    if value is None:
        if len(gold) == 3 and parse_region(answer) is not None:
            value = answer
        else:
            return Comparison(False, why)
    strict = context.conventions.brackets == "strict"
    if value[0] == "mul" and len(value) == 3 and value[1][0] == "sym" and value[2][0] == "tuple":
        value = value[2]  # a point with its name: A(1, 2)
    if value[0] == "matrix" and (len(value[1]) == 1 or len(value[1][0]) == 1) and not strict:
        value = ("tuple", *(cell for row in value[1] for cell in row))
    if value[0] == "list" and not strict:
        pairs = [split_assignment(arg) for arg in value[1:]]
        names = {name for name, _ in pairs}
        if "" not in names and len(names) == len(pairs):
            pairs = _sort_coordinates(pairs)
        apart = names == {""} or ("" not in names and len(names) == len(pairs))  # x = 1, x = 2 and x = 1, 2 are values of one letter
        value = ("tuple", *(part for _, part in pairs)) if apart else value
    if value[0] == "tuple":
        if len(value) != len(gold):
            return Comparison(False, f"it has {len(value) - 1} members; the gold {describe_tree(gold)} has {len(gold) - 1}")
        return _compare_in_order(gold[1:], value[1:], context)
    if value[0] in ("rel", "builder", "union", "inter") and len(gold) == 3:
        return _compare_number_sets(gold, value, context)
    return Comparison(False, f"parsed as {describe_tree(value)}; the gold is {describe_tree(gold)}")


_POLAR_NAMES = ("rho", "r", "theta", "phi", "varphi", "z")


def _sort_coordinates(pairs: list[tuple[str, Tree]]) -> list[tuple[str, Tree]]:
    """Sort named coordinates into their usual order: letters that follow each other in the alphabet, polar coordinates; others as written.

    >>> [name for name, _ in _sort_coordinates([("y", ()), ("x", ())])], [name for name, _ in _sort_coordinates([("theta", ()), ("r", ())])]
    (['x', 'y'], ['r', 'theta'])
    >>> [name for name, _ in _sort_coordinates([("m", ()), ("b", ())])]
    ['m', 'b']
    """
    names = sorted(name for name, _ in pairs)
    letters = [name.partition("_")[0] for name in names]
    if all(len(letter) == 1 and ord(letter) - ord(before) in (0, 1) for before, letter in itertools.pairwise(letters)):
        return sorted(pairs, key=lambda pair: pair[0])
    return sorted(pairs, key=lambda pair: _POLAR_NAMES.index(pair[0])) if set(names) <= set(_POLAR_NAMES) else pairs


def _compare_matrices(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a matrix or a vector, row by row."""
    value, why = _extract_value(gold, answer, context)
    if value is None:
        return Comparison(False, why)
    rows = gold[1]
    if value[0] == "binom" and len(rows) == 2 and len(rows[0]) == 1:  # a column, as written in some countries
        value = _make_column(value[1:])
    if value[0] == "interval" and value[3:] == ("[", "]"):
        value = ("tuple", value[1], value[2])
    if value[0] == "tuple":
        parts = [("tuple", *arg[1:3]) if arg[0] == "interval" else arg for arg in value[1:]]
        if all(arg[0] == "tuple" for arg in parts):
            value = ("matrix", tuple(tuple(arg[1:]) for arg in parts))
        elif len(rows) == 1 or len(rows[0]) == 1:
            value = ("matrix", (value[1:],) if len(rows) == 1 else tuple((cell,) for cell in value[1:]))
    if value[0] != "matrix" and len(rows) == len(rows[0]) and (factor := _find_identity_factor(value, len(rows))) is not None:
        value = ("matrix", tuple(tuple(factor if k == j else ZERO for k in range(len(rows))) for j in range(len(rows))))
    if value[0] != "matrix":
        return Comparison(False, f"parsed as {describe_tree(value)}; the gold is {describe_tree(gold)}")
    if [len(row) for row in value[1]] != [len(row) for row in rows]:
        return Comparison(False, f"it is {len(value[1])} by {len(value[1][0])}; the gold is {len(rows)} by {len(rows[0])}")
    return _compare_in_order([cell for row in rows for cell in row], [cell for row in value[1] for cell in row], context)


def _find_identity_factor(tree: Tree, size: int) -> Tree | None:
    """Return the factor of a multiple of the identity matrix of this size, -1 of `-I` and `-I_2`; None for anything else: `I` alone is read
    as a choice before.

    >>> _find_identity_factor(("neg", ("sym", "I")), 2), _find_identity_factor(("sym", "I_3"), 2)
    (('neg', ('num', 1, 1)), None)
    """
    if tree[0] == "sym" and tree[1] in ("I", f"I_{size}"):
        return ("num", 1, 1)
    if tree[0] == "neg" and (inner := _find_identity_factor(tree[1], size)) is not None:
        return ("neg", inner)
    if tree[0] == "mul" and len(tree) == 3 and not get_free_symbols(tree[1]) and _find_identity_factor(tree[2], size) == ("num", 1, 1):
        return tree[1]
    return None


def _compare_number_sets(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a set of numbers: as intervals, as a solved condition, or in words."""
    if _find_unsolved(gold) is None and (left := _find_unsolved(answer)) is not None:
        return Comparison(False, f"{format_tree(left)} is not solved yet; the gold is {describe_tree(gold)}")
    want, have = parse_region(gold), parse_region(answer)
    if want is not None and have is not None:
        if answer[0] == "set" and len(answer) > 1 and gold[0] in ("interval", "tuple"):
            return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")
        return compare_regions(want, have, context)
    if gold[0] == "interval" and answer[0] == "interval":
        if gold[3:] != answer[3:]:
            return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}: the brackets differ")
        return _compare_in_order(gold[1:3], answer[1:3], context)
    if answer[0] == "rel" and answer[2] == "in":
        return compare_normalized(gold, answer[3], context)
    if gold[0] == answer[0] and gold[0] in ("union", "inter"):
        golds, answers = _flatten(gold, gold[0]), _flatten(answer, gold[0])
        if len(golds) != len(answers):
            return Comparison(False, f"{describe_tree(answer)} has {len(answers)} parts; the gold has {len(golds)}")
        return _compare_any_order(golds, answers, context)
    return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")


def _flatten(tree: Tree, op: str) -> list[Tree]:
    return [part for arg in tree[1:] for part in _flatten(arg, op)] if tree[0] == op else [tree]


# Notation: the answer in the notation of the gold

INTEGER_SETS = (("const", "Z"), ("const", "N"))

CHOICE_LETTERS = frozenset("ABCDEFGHIJ")

FAMILY_LETTERS = ("k", "l", "m", "n")

DOTS = ("const", "dots")

UNIT_VECTORS = ("ell_vi", "ell_vj", "ell_vk")
"""Names of the unit vectors after the spelling rules."""


def _align_notation(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """Align alternative names, positions and numberings of gold and answer."""
    answer = _drop_condition(gold, answer)
    gold, answer = _convert_unit_vector_sums(
        *_align_solution_families(_evaluate_matrices(_convert_named_point(gold)), _evaluate_matrices(_convert_named_point(answer)))
    )
    if gold[0] == "mod":
        answer = _extract_residue(answer)
    answer = _rename_arbitrary_constant(gold, answer)
    return gold, _convert_clock_format(_rename_function_argument(gold, answer), gold)


def _convert_named_point(tree: Tree) -> Tree:
    """Convert a point with its letter, `A(1, 2)`, to `A = (1, 2)`; C(5, 2) stays a binomial coefficient."""
    if tree[0] == "list":
        return ("list", *(_convert_named_point(arg) for arg in tree[1:]))
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[1][1][0] in "ABDEFGHIJKLMNOPQRSTUVW" and tree[2][0] == "tuple":
        return ("rel", tree[1], "=", tree[2])
    return tree


def convert_mod_to_residue(tree: Tree) -> Tree:
    """Convert `3 mod 7` without a bracket to a residue, for comparison with a residue."""
    return ("mod", *tree[2:]) if tree[:2] == ("fun", "mod") else tree


def _extract_residue(tree: Tree) -> Tree:
    """Extract the residue that a family over the integers describes: `x = 12k + 5, k in Z` is 5 (mod 12)."""
    values, letter, _ = _split_solution_family(tree)
    name, value = split_assignment(values)
    if not letter and name and len(get_free_symbols(value)) == 1 and get_free_symbols(value) <= {*FAMILY_LETTERS, "t"} - {name}:
        (letter,) = get_free_symbols(value)  # next to a residue, the letter of x = 7k + 3 is an integer
    if not letter or get_free_symbols(value) != {letter}:
        return tree
    at = [to_rational(substitute(value, {letter: ("num", k, 1)})) for k in (0, 1, 2, 5)]
    first, second, third, last = at
    if first is None or second is None or third is None or last is None:
        return tree
    step = second - first
    if not step or third - first != 2 * step or last - first != 5 * step or any(part.denominator != 1 for part in (first, step)):
        return tree
    return ("mod", ("num", first.numerator, 1), ("num", abs(step.numerator), 1))


def _rename_function_argument(gold: Tree, answer: Tree) -> Tree:
    """Rename a function's argument to the gold's letter: `f(t) = 2t` if the gold is `f(x) = 2x`."""
    if gold[0] != "rel" or answer[0] != "rel" or any(side[0] != "mul" or len(side) != 3 for side in (gold[1], answer[1])):
        return answer
    (_, name, wanted), (_, other, given) = gold[1], answer[1]
    if name != other or wanted == given or not wanted[0] == given[0] == "sym":
        return answer
    return _rename_letter(
        _rename_letter(answer, wanted[1], f"{wanted[1]}'"), given[1], wanted[1]
    )  # f(x) = y^2 is a constant, not f(y) = y^2


def _drop_condition(gold: Tree, answer: Tree) -> Tree:
    """Drop a condition on a letter of the gold behind a formula: `1/(s^2 + 1), s > 0`."""
    if answer[0] != "list" or len(answer) != 3 or gold[0] in ("list", "set", "tuple", "either") or answer[2][0] != "rel":
        return answer
    _, letter, *rest = answer[2]
    bounded = len(rest) == 2 and rest[0] in (">", ">=", "<", "<=", "!=") and letter[0] == "sym" and _is_rational(rest[1])
    bare = answer[1][0] != "rel" or answer[1][2] == "="
    return answer[1] if bounded and bare and letter[1] in get_free_symbols(gold) else answer


_ARBITRARY_CONSTANTS = frozenset(f"{letter}{index}" for letter in "ABCDKck" for index in ("", "_0", "_1", "_2", "_3"))


def _rename_arbitrary_constant(gold: Tree, answer: Tree) -> Tree:
    """Rename the arbitrary constants of a family of functions to the gold's: `y = Ae^(2x)` is `y = Ce^(2x)`.

    Of several constants each may be each: the assignment is chosen with which the functions agree at sample points.
    """
    if gold[0] != "rel" or answer[0] != "rel" or not find_assigned_name(gold[1]) or gold[1] != answer[1] or len(gold) != 4:
        return answer
    value = get_free_symbols(gold[3])
    wanted, given = sorted(value - get_free_symbols(answer)), sorted(get_free_symbols(answer) - get_free_symbols(gold))
    if not 1 <= len(wanted) == len(given) <= 3 or not value & INTEGRATION_VARIABLES:
        return answer
    if any(new.partition("_")[0] not in "Cc" for new in wanted) or not {*wanted, *given} <= _ARBITRARY_CONSTANTS:
        return answer
    for order in itertools.permutations(wanted):
        renamed = answer
        for old, new in zip(given, order, strict=True):
            renamed = _rename_letter(renamed, old, new)
        if len(wanted) == 1 or not differs_at_sample_points(gold[3], renamed[3]):
            return renamed
    return answer


def _convert_clock_format(time: Tree, gold: Tree) -> Tree:
    """Convert a time of day to the gold's 12- or 24-hour format: 15:30 if the gold is 3:30 pm; anything else is unchanged.

    >>> _convert_clock_format(("time", 15, 30, ""), ("time", 3, 30, "pm"))
    ('time', 3, 30, 'pm')
    """
    if not time[0] == gold[0] == "time" or bool(time[3]) == bool(gold[3]):
        return time
    hour = time[1] % 12 + 12 * (time[3] == "pm") if time[3] else time[1]
    if not gold[3]:
        return ("time", hour, time[2], "") if hour == gold[1] else time
    return ("time", (hour - 1) % 12 + 1, time[2], "pm" if hour > 12 else "am") if hour > 12 or not hour else time


def _group_solutions(tree: Tree) -> Tree:
    """Group several solutions of several unknowns: `p = 5, q = 2, p = 7, q = 2` is (5, 2), (7, 2).

    >>> one, two = ("num", 1, 1), ("num", 2, 1)
    >>> row = [("rel", ("sym", name), "=", value) for name, value in zip("xyxy", (one, two, two, one))]
    >>> _group_solutions(("list", *row)) == ("list", ("tuple", one, two), ("tuple", two, one))
    True
    """
    if tree[0] != "list":
        return tree
    members = [part for arg in tree[1:] for part in (arg[1:] if arg[0] == "list" else (arg,))]
    pairs = [split_assignment(arg) for arg in members]
    names = [name for name, _ in pairs]
    size = len(set(names))
    if not all(names) or size < 2 or len(names) < 2 * size or names != names[:size] * (len(names) // size):
        return tree
    values = [value for _, value in pairs]
    return ("list", *(("tuple", *values[at : at + size]) for at in range(0, len(values), size)))


def _is_choice_list(gold: Tree) -> bool:
    """Whether the gold is several letters of a multiple choice: A, C."""
    return gold[0] in ("list", "set") and all(arg[0] == "sym" and arg[1] in CHOICE_LETTERS for arg in gold[1:])


def _split_choice_letters(gold: Tree, answer: Tree) -> Tree:
    """Split several letters of a multiple choice without commas: `ACD` for the gold A, C, D."""
    if not _is_choice_list(gold) or answer[0] != "text" or not answer[1].isalpha():
        return answer
    letters = answer[1].upper()
    return ("list", *(("sym", letter) for letter in letters)) if CHOICE_LETTERS.issuperset(letters) else answer


def _read_word_as_product(gold: Tree, answer: Tree) -> Tree:
    """Convert a short word to what its letters mean in the gold: a product, or the name of an angle."""
    if answer[0] == "text" and gold[0] == "sym" and " " in gold[1]:
        return make_canonical_point_name(gold[1].partition(" ")[0], answer[1].upper())
    letters = {letter.lower(): letter for letter in get_free_symbols(gold)}
    if answer[0] != "text" or not answer[1].isalpha() or not letters.keys() >= set(answer[1]):
        return answer
    first, *rest = (("sym", letters[letter]) for letter in answer[1])
    return ("mul", first, *rest) if rest else first


def _rename_letter(tree: Tree, old: str, new: str) -> Tree:
    """Replace one letter in a tree."""
    if tree == ("sym", old):
        return ("sym", new)
    return tuple(_rename_letter(arg, old, new) if isinstance(arg, tuple) else arg for arg in tree)


def _split_solution_family(tree: Tree) -> tuple[Tree, str, Tree | None]:
    """Split a family such as `pi k, k in Z` into its values, its parameter and the parameter's range; no parameter for anything else."""
    last = tree[-1] if tree[0] in ("list", "builder") and len(tree) > 2 else None
    if last is None or last[0] != "rel" or last[2] != "in" or last[1][0] != "sym" or last[3] not in INTEGER_SETS:
        return tree, "", None
    values: Tree = tree[1] if len(tree) == 3 else tree[:-1]
    return (values, last[1][1], last[3]) if last[1][1] in get_free_symbols(values) else (tree, "", None)


def _align_solution_families(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """Align two families of values over the integers, so that the name of the parameter does not matter."""
    golds, letter, field = _split_solution_family(gold)
    answers, mine, my_field = _split_solution_family(answer)
    if not letter and not mine and has_op(gold, "const"):  # pi/4 + pi n, without a definition of n: still a trigonometric family
        (wanted, own) = ("".join(get_free_symbols(tree)) for tree in (gold, answer))
        if wanted != own and wanted in FAMILY_LETTERS and own in FAMILY_LETTERS and ("const", "pi") in list_nodes(gold):
            return gold, _rename_letter(answer, own, wanted)
    if not (letter or mine) or (letter and mine and field != my_field) or (not mine and letter not in get_free_symbols(answer)):
        return gold, answer
    if mine and mine not in get_free_symbols(golds):
        free = sorted(get_free_symbols(golds) - get_free_symbols(answers)) if not letter else [letter]
        if len(free) != 1 or free[0] in get_free_symbols(answers) or (not letter and (len(free[0]) > 1 or golds == ("sym", free[0]))):
            return gold, answer
        answers = _rename_letter(answers, mine, free[0])
    return golds, answers


def _convert_combinations(tree: Tree) -> Tree:
    """Convert `C(10, 3)` to a binomial coefficient, where a value is expected."""
    parts = [_convert_combinations(arg) if isinstance(arg, tuple) else arg for arg in tree]
    if tree[0] == "mul":
        for at in range(len(parts) - 1):
            if parts[at] == ("sym", "C") and isinstance(parts[at + 1], tuple) and parts[at + 1][0] == "tuple" and len(parts[at + 1]) == 3:
                parts[at : at + 2] = [("binom", *parts[at + 1][1:])]
                return parts[1] if len(parts) == 2 else tuple(parts)
    return tuple(parts)


def _shorten_ellipsis_list(members: list[Tree]) -> list[Tree]:
    """Shorten a list of numbers with dots to the fewest numbers before the dots: 1, 2, 3, ..., 10 is 1, 2, ..., 10."""
    at = members.index(DOTS) if members.count(DOTS) == 1 else 0
    values = [compute_exact_value(arg) for arg in members[:at]]
    if at < 2 or None in values:
        return members
    steps = {b - a for a, b in itertools.pairwise(value for value in values if value is not None)}
    return [*members[: 2 if at + 1 < len(members) else 3], *members[at:]] if len(steps) == 1 else members


def _convert_unit_vector_sums(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    r"""Convert sums of unit vectors to tuples of their components: `2\\mathbf{i} - \\mathbf{k}` is (2, 0, -1)."""
    used = (get_free_symbols(gold) | get_free_symbols(answer)).intersection(UNIT_VECTORS)
    if not used:
        return gold, answer
    other = gold if not get_free_symbols(gold).intersection(UNIT_VECTORS) else answer
    size = len(other) - 1 if other[0] == "tuple" else len(other[1]) if other[0] == "matrix" else 2 + (UNIT_VECTORS[2] in used)
    return _split_components(gold, size), _split_components(answer, size)


def _split_components(tree: Tree, size: int) -> Tree:
    if tree[0] == "rel" and tree[2] == "=" and not get_free_symbols(tree[1]).intersection(UNIT_VECTORS):
        tree = tree[-1]
    if size not in (2, 3) or not get_free_symbols(tree).intersection(UNIT_VECTORS):
        return tree
    point = [_get_vector_component(tree, axis) for axis in UNIT_VECTORS[:size]]
    return ("tuple", *point) if all(get_free_symbols(part).isdisjoint(UNIT_VECTORS) for part in point) else tree


def _get_vector_component(tree: Tree, axis: str) -> Tree:
    """Return the factor of one unit vector in a sum of products."""
    if tree[0] == "add":
        return ("add", *(_get_vector_component(arg, axis) for arg in tree[1:]))
    if tree[0] == "neg":
        return ("neg", _get_vector_component(tree[1], axis))
    if tree[0] == "sym" and tree[1] in UNIT_VECTORS:
        return ("num", int(tree[1] == axis), 1)
    if tree[0] == "mul":
        held = [arg for arg in tree[1:] if get_free_symbols(arg).intersection(UNIT_VECTORS)]
        if len(held) == 1:
            return ("mul", *(_get_vector_component(arg, axis) if arg is held[0] else arg for arg in tree[1:]))
    if tree[0] == "div" and get_free_symbols(tree[2]).isdisjoint(UNIT_VECTORS):
        return ("div", _get_vector_component(tree[1], axis), tree[2])
    return tree


def _make_column(members: Sequence[Tree]) -> Tree:
    """Make a matrix of one column."""
    return ("matrix", tuple((member,) for member in members))


def _evaluate_matrices(tree: Tree) -> Tree:
    r"""Evaluate sums and multiples of matrices: `\\frac{1}{2} \\begin{pmatrix} 1 & 3 \\end{pmatrix}` is (1/2, 3/2)."""
    if tree[0] == "pow" and tree[2] == ("sym", "T"):
        return _transpose(tree[1]) or tree
    if tree[0] == "rel" and tree[2] == "=" and len(tree) == 4 and tree[3][0] == "pow":
        return (*tree[:3], _evaluate_matrices(tree[3]))
    if tree[0] not in ("add", "mul", "neg", "div") or not has_op(tree, "matrix", "tuple"):
        return tree
    parts = [_evaluate_matrices(arg) for arg in tree[1:]]
    grids = [part for part in parts if part[0] == "matrix" or (part[0] == "tuple" and len(parts) == 2 and not get_free_symbols(parts[0]))]
    if tree[0] in ("neg", "div") and parts[0] in grids and len(grids) == 1:
        return _map_cells(parts[0], lambda cell: (tree[0], cell, *parts[1:]))
    if tree[0] == "mul" and len(grids) == 1:
        factors = [part for part in parts if part is not grids[0]]
        return _map_cells(grids[0], lambda cell: ("mul", *factors, cell))
    if tree[0] == "add" and len(grids) == len(parts) and len({_grid_size(grid) for grid in grids}) == 1 and grids[0][0] == "matrix":
        rows = zip(*(grid[1] for grid in grids), strict=True)
        return ("matrix", tuple(tuple(("add", *cells) for cells in zip(*row, strict=True)) for row in rows))
    return tree


def _transpose(tree: Tree) -> Tree | None:
    """Transpose a row or a matrix; None for anything else."""
    if tree[0] == "tuple" or (tree[0] == "interval" and tree[3:] == ("[", "]")):
        return _make_column(tree[1:3] if tree[0] == "interval" else tree[1:])
    return ("matrix", tuple(zip(*tree[1], strict=True))) if tree[0] == "matrix" else None


def _grid_size(grid: Tree) -> tuple[int, int]:
    return (len(grid[1]), len(grid[1][0])) if grid[0] == "matrix" else (0, len(grid))


def _map_cells(grid: Tree, change: Callable[[Tree], Tree]) -> Tree:
    if grid[0] == "tuple":
        return ("tuple", *(change(cell) for cell in grid[1:]))
    return ("matrix", tuple(tuple(change(cell) for cell in row) for row in grid[1]))


# Plus-minus signs


def _expand_plus_minus(tree: Tree) -> Tree:
    r"""Expand plus-minus signs: `1 \\pm 2` is the list -1, 3; inside a list or a set it adds two members."""
    if not has_op(tree, "pm"):
        return tree
    if tree[0] in ("list", "set"):
        members: list[Tree] = []
        for arg in tree[1:]:
            arg = _expand_plus_minus(arg)
            members.extend(arg[1:] if arg[0] == "list" else [arg])
        return (tree[0], *members)
    if tree[0] == "rel" and tree[2] == "in" and len(tree) == 4 and tree[3][0] == "set":
        return (*tree[:3], _expand_plus_minus(tree[3]))
    if tree[0] == "rel" and tree[2] == "=" and len(tree) == 4 and not has_op(tree[1], "pm"):
        right = _expand_plus_minus(tree[3])
        return ("list", *(("rel", tree[1], "=", arg) for arg in right[1:])) if right[0] == "list" else tree
    signs = sum(1 for node in list_nodes(tree) if node[0] == "pm")
    if signs > 4:
        raise LimitExceeded("it contains more than four plus-minus signs")
    same = signs > 1 and any(node[0] == "pm" and node[3] == "∓" for node in list_nodes(tree))
    patterns = range(2) if same else range(2**signs)
    return ("list", *(_apply_signs(tree, pattern, same, [0]) for pattern in patterns))


def _apply_signs(tree: Tree, pattern: int, shared_sign: bool, signs_seen: list[int]) -> Tree:
    if tree[0] == "pm":
        bit = pattern if shared_sign else (pattern >> signs_seen[0]) & 1
        signs_seen[0] += 1
        minus = bool(bit) != (tree[3] == "∓")
        left, right = (_apply_signs(arg, pattern, shared_sign, signs_seen) for arg in tree[1:3])
        right = ("neg", right) if minus else right
        return right if left == ("num", 0, 1) else ("add", left, right)
    return tuple(
        _apply_signs(arg, pattern, shared_sign, signs_seen) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg
        for arg in tree
    )


# Answers that were not evaluated

UNEVALUATED_OPS = {"sum": "a sum", "prod": "a product", "integral": "an integral", "limit": "a limit", "deriv": "a derivative"}

UNEVALUATED_FUNCTIONS = {"gcd": "a greatest common divisor", "lcm": "a least common multiple", "max": "a maximum", "min": "a minimum"}
UNEVALUATED_FUNCTIONS |= {"det": "a determinant", "mod": "a remainder"}


def describe_unevaluated_operation(tree: Tree) -> str:
    """Find the unevaluated operation in a tree; "" if there is none.

    >>> describe_unevaluated_operation(("fun", "gcd", ("num", 84, 1), ("num", 126, 1)))
    'a greatest common divisor'
    """
    for node in list_nodes(tree):
        if node[0] in UNEVALUATED_OPS:
            return UNEVALUATED_OPS[node[0]]
        written_out = node[:2] == ("fun", "det") and node[2][0] == "matrix"  # with letters, too: it is evaluated by hand
        if node[0] == "fun" and node[1] in UNEVALUATED_FUNCTIONS and (written_out or not get_free_symbols(node)):
            return UNEVALUATED_FUNCTIONS[node[1]]
    return ""


def _drop_repeated_sum_or_limit(tree: Tree) -> Tree:
    """Drop a requested sum or limit that an answer repeats before its value."""
    if (
        tree[0] == "rel"
        and tree[2] == "="
        and describe_unevaluated_operation(tree[1])
        and not any(describe_unevaluated_operation(part) for part in tree[3::2])
    ):
        return tree[3] if len(tree) == 4 else ("rel", *tree[3:])
    return tree


COMPARERS: dict[str, Callable[[Tree, Tree, CompareContext], Comparison]] = {
    "list": match_members,
    "set": match_members,
    "tuple": _compare_tuples,
    "matrix": _compare_matrices,
    "interval": _compare_number_sets,
    "union": _compare_number_sets,
    "inter": _compare_number_sets,
    "minus": _compare_number_sets,
    "builder": _compare_number_sets,
    "rel": _compare_relations,
    "text": _compare_words,
    "choice": _compare_choice,
    "base": _compare_base,
    "mod": _compare_residue,
    "ratio": _compare_ratio,
    "time": _compare_time,
    "cases": _compare_cases,
}
