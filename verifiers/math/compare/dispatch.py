"""Compare an answer's tree with the gold's tree: dispatch by the kind of the gold; collections are matched member by member."""

from __future__ import annotations

import re
from collections.abc import Callable

from rlvr.verifiers.math.compare.alignment import align_notation, convert_combinations, convert_remainder, is_choice_list, split_word
from rlvr.verifiers.math.compare.collection_members import (
    compare_any_order,
    compare_matrices,
    compare_members,
    compare_number_sets,
    compare_tuples,
)
from rlvr.verifiers.math.compare.piecewise import complete_cases, has_formula_values
from rlvr.verifiers.math.compare.plus_minus import expand_plus_minus
from rlvr.verifiers.math.compare.relations import ZERO, compare_relations, extract_value, split_assignment
from rlvr.verifiers.math.compare.scalars import CompareContext, Comparison, compare_scalars, exact_or_none, find_invalid_value
from rlvr.verifiers.math.compare.unevaluated import drop_restatement, find_unevaluated
from rlvr.verifiers.math.parsing.parser import make_point_name
from rlvr.verifiers.math.parsing.tree import LimitExceeded, Tree, describe_tree, format_tree, free_symbols, has_op
from rlvr.verifiers.math.parsing.words import ORDINALS, is_same_wording
from rlvr.verifiers.math.values.rational import to_rational


def compare_trees(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Normalize gold and answer, and compare them under the policy of the context."""
    if _is_numeral(gold) and _is_numeral(answer):
        return compare_normalized(gold, answer, context)
    if answer[0] == "either" and (gold[0] in ("tuple", "text", "choice") or is_choice_list(gold)):
        return Comparison(False, f"it offers {len(answer) - 1} alternatives; the gold is {describe_tree(gold)}")
    gold, answer = (("list", *tree[1:]) if tree[0] == "either" else tree for tree in (gold, answer))
    gold, answer = convert_remainder(gold), drop_restatement(convert_remainder(answer) if convert_remainder(gold)[0] == "mod" else answer)
    if context.policy.require_evaluated and find_unevaluated(answer) and not find_unevaluated(gold):
        return Comparison(False, f"it is not evaluated: it still contains {find_unevaluated(answer)}")
    wrong = find_invalid_value(answer)
    if wrong:
        return Comparison(False, wrong)
    gold, answer = align_notation(gold, answer)
    return compare_normalized(expand_plus_minus(gold), expand_plus_minus(answer), context)


def _is_numeral(tree: Tree) -> bool:
    """Whether a tree is one numeral, with or without a unit, which needs no normalization."""
    return tree[0] in ("num", "dec") or (tree[0] == "unit" and tree[1][0] in ("num", "dec"))


def compare_normalized(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare an answer that is already normalized, such as a member of a list."""
    context.steps_left -= 1
    if context.steps_left < 0:
        raise LimitExceeded("it needs too many comparisons")
    if gold == answer and not context.policy.form:
        return Comparison(True, f"{describe_tree(answer)} is the gold")
    rule = COMPARERS.get(gold[0])
    if rule is None and gold[0] == "const" and gold[1] in "RZNQC":
        rule = compare_number_sets
    if rule is not None:
        return rule(gold, answer, context)
    value, why = extract_value(gold, answer, context)
    if value is None:
        return Comparison(False, why)
    if value[0] == "set" and len(value) == 2 and answer[0] == "rel":
        value = value[1]  # x is in a set of one value
    if value[0] == "mod" and (given := exact_or_none(value[1])) is not None and 0 <= given < (exact_or_none(value[-1]) or 0):
        value = value[1]
    if value[0] == "set" and len(value) == 2:
        return Comparison(False, f"{describe_tree(value)} is a set; the gold {format_tree(gold)} is one value")
    value = split_word(gold, value)
    if value[0] == "ratio" and len(value) == 3:
        value = ("div", value[1], value[2])
    if value[0] == "list" and _is_one_value_list(value) and all(compare_normalized(gold, arg, context).is_equal for arg in value[1:]):
        return Comparison(True, f"{describe_tree(value)} is {format_tree(gold)} in several forms")
    if value[0] == "cases" and free_symbols(gold) and has_formula_values(value, gold, context):
        return Comparison(True, f"{describe_tree(value)} has the values of {format_tree(gold)}")
    if value[0] in NON_SCALAR_OPS:
        return Comparison(False, f"parsed as {describe_tree(value)}; the gold {format_tree(gold)} is one value")
    return compare_scalars(gold, convert_combinations(value) if has_op(value, "tuple") else value, context)


def _is_one_value_list(tree: Tree) -> bool:
    """Whether a short list may be one value in several forms, `1/2, 0.5`: no repeats, and only one letter."""
    return len(set(tree[1:])) == len(tree) - 1 < 4 and len({split_assignment(arg)[0] for arg in tree[1:]} - {""}) < 2


_NON_SCALAR_OPS = "list tuple set interval union inter minus rel matrix text choice base mod ratio time cases builder"
NON_SCALAR_OPS = frozenset(_NON_SCALAR_OPS.split())


def _compare_relation(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    return compare_relations(gold, answer, context)


def _compare_words(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    if answer == ("set",) and gold[1] == "no solution":
        return Comparison(True, "the empty set is no solution")
    if gold[1] in ("all real numbers", "no solution"):
        return compare_number_sets(gold, answer, context)
    if answer[0] == "text":
        right = is_same_wording(gold[1], answer[1])
        return Comparison(right, f"the words {answer[1]!r} {'are' if right else 'are not'} {gold[1]!r}"[:200])
    if answer[0] == "sym" and " " in answer[1]:
        right = make_point_name(answer[1].partition(" ")[0], gold[1].upper()) == answer
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
    if free_symbols(answer) and squeezed == "".join(str(gold[1]).split()):
        return Comparison(True, "the letters are the gold's")
    return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the words {gold[1]!r}")


def _compare_choice(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    lone = answer[0] == "sym" or (answer[0] == "const" and answer[1] in "ei")
    letter = answer[1] if answer[0] == "choice" else answer[1].upper() if lone and len(answer[1]) == 1 else None
    if letter is None:
        return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is the choice {gold[1]}")
    return Comparison(letter == gold[1], f"the choice {letter} {'is' if letter == gold[1] else 'is not'} {gold[1]}")


def _compare_base(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    value, why = extract_value(gold, answer, context)
    if value is None:
        return Comparison(False, why)
    if value[0] == "base":
        right = value[2] == gold[2] and value[1].lstrip("0") == gold[1].lstrip("0")
        return Comparison(right, f"{format_tree(value)} {'is' if right else 'is not'} {format_tree(gold)}")
    if value[0] == "num" and context.policy.base == "optional":
        right = str(value[1]) == gold[1]
        return Comparison(right, f"the digits {value[1]} {'are' if right else 'are not'} those of {format_tree(gold)}")
    return Comparison(False, f"parsed as {describe_tree(value)}; the gold is a numeral in base {gold[2]}")


def _compare_residue(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    residue, modulus = to_rational(gold[1]), to_rational(gold[2])
    value: Tree | None = answer
    if answer[0] == "rel" and answer[1][0] == "sym" and len(answer[1][1]) == 1:
        return Comparison(False, f"{format_tree(answer)} is one number; the gold is {describe_tree(gold)}")
    if answer[0] != "mod":
        value, why = extract_value(gold[1], answer, context)
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
    value, why = extract_value(gold, answer, context)
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
    value, why = extract_value(gold, answer, context)
    if value is not None and value[0] not in NON_SCALAR_OPS:
        right = has_formula_values(gold, value, context)
        return Comparison(right, f"{describe_tree(value)} {'has' if right else 'does not have'} the values of {describe_tree(gold)}")
    if value is None or value[0] != "cases" or len(value) != len(gold):
        return Comparison(False, why or f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")
    gold, value = complete_cases(gold, value), complete_cases(value, gold)
    return compare_any_order(gold[1:], value[1:], context)


COMPARERS: dict[str, Callable[[Tree, Tree, CompareContext], Comparison]] = {
    "list": compare_members,
    "set": compare_members,
    "tuple": compare_tuples,
    "matrix": compare_matrices,
    "interval": compare_number_sets,
    "union": compare_number_sets,
    "inter": compare_number_sets,
    "minus": compare_number_sets,
    "builder": compare_number_sets,
    "rel": _compare_relation,
    "text": _compare_words,
    "choice": _compare_choice,
    "base": _compare_base,
    "mod": _compare_residue,
    "ratio": _compare_ratio,
    "time": _compare_time,
    "cases": _compare_cases,
}
