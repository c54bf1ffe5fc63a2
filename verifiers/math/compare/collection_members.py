"""Compare collections: lists, sets, tuples, matrices, and the sets of numbers that intervals and conditions describe."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.verifiers.math.compare.alignment import group_solutions, make_column, shorten_dotted, split_choice_letters
from rlvr.verifiers.math.compare.plus_minus import expand_plus_minus
from rlvr.verifiers.math.compare.regions import compare_regions, parse_region
from rlvr.verifiers.math.compare.relations import extract_value, find_name, find_unsolved, split_assignment
from rlvr.verifiers.math.compare.scalars import CompareContext, Comparison, exact_or_none
from rlvr.verifiers.math.compare.unit_labels import split_unit
from rlvr.verifiers.math.parsing.tree import LimitExceeded, Tree, describe_tree, format_tree

MAX_MEMBERS = 60


def compare_members(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a list or a set: every member must match exactly one member, in order or in any order."""
    if gold[0] == "list" and any(arg[0] == "rel" for arg in gold[1:]):
        spans = parse_region(gold)
        if spans is not None and any(arg[2] != "=" for arg in gold[1:] if arg[0] == "rel"):
            return compare_number_sets(gold, answer, context)
    value: Tree | None = answer
    if answer[0] == "rel":
        value, why = extract_value(gold, answer, context)
        if value is None:
            return Comparison(False, why)
        value = expand_plus_minus(value)
    assert value is not None
    gold, value = group_solutions(gold), split_choice_letters(gold, group_solutions(value))
    if not len(gold) > 1:
        empty = value in (("set",), ("text", "no solution"), ("text", "none"))
        return Comparison(empty, f"{describe_tree(value)} {'is' if empty else 'is not'} the empty set")
    if gold[0] == "set" and value[0] in ("union", "inter", "minus", "builder"):
        return compare_number_sets(gold, value, context)
    strict = context.policy.brackets == "strict"
    ordered = context.policy.order == "strict" and gold[0] == "list"
    if value[0] == "tuple" and gold[0] == "list" and not strict:
        ordered = True
    elif value[0] not in ("list", "set") or (strict and value[0] != gold[0]):
        if len(gold) == 2:
            return (
                context.compare_normalized(gold[1], value, context)
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
    golds, answers = ([split_assignment(arg)[1] for arg in tree[1:]] if indexed else _member_values(tree, whole) for tree in (gold, value))
    golds, answers = shorten_dotted(golds), shorten_dotted(answers)
    if gold[0] == "set" and value[0] == "set":
        golds, answers = _drop_duplicates(golds, context), _drop_duplicates(answers, context)
    if len(golds) != len(answers):
        return Comparison(False, f"it has {len(answers)} values; the gold {describe_tree(gold)} has {len(golds)}")
    if len(golds) > MAX_MEMBERS:
        raise LimitExceeded(f"it has more than {MAX_MEMBERS} members")
    return _compare_in_order(golds, answers, context) if ordered else compare_any_order(golds, answers, context)


def _member_values(tree: Tree, whole: bool) -> list[Tree]:
    """Return the members; `x = 1, x = 2` lists two values of one letter unless the gold has whole equations; `x = 1, y = 2` stays."""
    members = list(tree[1:])
    names = {split_assignment(arg)[0] for arg in members if split_assignment(arg)[0]}
    return [split_assignment(arg)[1] for arg in members] if len(names) == 1 and not whole else members


def _drop_duplicates(members: Sequence[Tree], context: CompareContext) -> list[Tree]:
    kept: list[Tree] = []
    for arg in members:
        if not any(context.compare_normalized(other, arg, context).is_equal for other in kept):
            kept.append(arg)
    return kept


def _compare_in_order(golds: Sequence[Tree], answers: Sequence[Tree], context: CompareContext) -> Comparison:
    for place, (want, have) in enumerate(zip(golds, answers, strict=True), 1):
        judged = context.compare_normalized(expand_plus_minus(want), expand_plus_minus(have), context)
        if not judged.is_equal:
            return Comparison(False, f"member {place}: {judged.reason}")
    return Comparison(True, "every member matches the gold's, in order")


def compare_any_order(golds: Sequence[Tree], answers: Sequence[Tree], context: CompareContext) -> Comparison:
    """Compare members in any order: every member of the gold must match exactly one member of the answer."""
    left = list(answers)
    values = [exact_or_none(split_unit(arg)[0]) for arg in left]
    for want in golds:
        first = exact_or_none(split_unit(want)[0])
        order = sorted(range(len(left)), key=lambda k: values[k] != first)
        found = next((k for k in order if context.compare_normalized(want, left[k], context).is_equal), None)
        if found is None:
            return Comparison(False, f"the gold's member {format_tree(want)} is missing")
        del left[found], values[found]
    return Comparison(True, "the members match the gold's")


def compare_tuples(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a point or a pair: as a tuple, a column, a list in order, or named coordinates."""
    if (
        answer[0] == "rel"
        and answer[1][0] == "tuple"
        and "".join(find_name(arg) for arg in answer[1][1:]) in ("yx", "zyx", "yxz", "xzy", "zxy")
    ):
        return Comparison(False, f"{format_tree(answer[1])} are the coordinates in another order")
    value, why = extract_value(gold, answer, context)
    if value is None:
        if len(gold) == 3 and parse_region(answer) is not None:
            value = answer
        else:
            return Comparison(False, why)
    strict = context.policy.brackets == "strict"
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
        return compare_number_sets(gold, value, context)
    return Comparison(False, f"parsed as {describe_tree(value)}; the gold is {describe_tree(gold)}")


_POLAR_NAMES = ("rho", "r", "theta", "phi", "varphi", "z")


def _sort_coordinates(pairs: list[tuple[str, Tree]]) -> list[tuple[str, Tree]]:
    """Sort named coordinates into their usual order: Latin letters alphabetically, polar coordinates by convention, others as written.

    >>> [name for name, _ in _sort_coordinates([("y", ()), ("x", ())])], [name for name, _ in _sort_coordinates([("theta", ()), ("r", ())])]
    (['x', 'y'], ['r', 'theta'])
    """
    names = [name for name, _ in pairs]
    if all(len(name.partition("_")[0]) == 1 for name in names):
        return sorted(pairs, key=lambda pair: pair[0])
    return sorted(pairs, key=lambda pair: _POLAR_NAMES.index(pair[0])) if set(names) <= set(_POLAR_NAMES) else pairs


def compare_matrices(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a matrix or a vector, row by row."""
    value, why = extract_value(gold, answer, context)
    if value is None:
        return Comparison(False, why)
    rows = gold[1]
    if value[0] == "binom" and len(rows) == 2 and len(rows[0]) == 1:  # a column, as written in some countries
        value = make_column(value[1:])
    if value[0] == "interval" and value[3:] == ("[", "]"):
        value = ("tuple", value[1], value[2])
    if value[0] == "tuple":
        parts = [("tuple", *arg[1:3]) if arg[0] == "interval" else arg for arg in value[1:]]
        if all(arg[0] == "tuple" for arg in parts):
            value = ("matrix", tuple(tuple(arg[1:]) for arg in parts))
        elif len(rows) == 1 or len(rows[0]) == 1:
            value = ("matrix", (value[1:],) if len(rows) == 1 else tuple((cell,) for cell in value[1:]))
    if value[0] != "matrix":
        return Comparison(False, f"parsed as {describe_tree(value)}; the gold is {describe_tree(gold)}")
    if [len(row) for row in value[1]] != [len(row) for row in rows]:
        return Comparison(False, f"it is {len(value[1])} by {len(value[1][0])}; the gold is {len(rows)} by {len(rows[0])}")
    return _compare_in_order([cell for row in rows for cell in row], [cell for row in value[1] for cell in row], context)


def compare_number_sets(gold: Tree, answer: Tree, context: CompareContext) -> Comparison:
    """Compare a set of numbers: as intervals, as a solved condition, or in words."""
    if find_unsolved(gold) is None and (left := find_unsolved(answer)) is not None:
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
        return context.compare_normalized(gold, answer[3], context)
    if gold[0] == answer[0] and gold[0] in ("union", "inter"):
        golds, answers = _flatten(gold, gold[0]), _flatten(answer, gold[0])
        if len(golds) != len(answers):
            return Comparison(False, f"{describe_tree(answer)} has {len(answers)} parts; the gold has {len(golds)}")
        return compare_any_order(golds, answers, context)
    return Comparison(False, f"parsed as {describe_tree(answer)}; the gold is {describe_tree(gold)}")


def _flatten(tree: Tree, op: str) -> list[Tree]:
    return [part for arg in tree[1:] for part in _flatten(arg, op)] if tree[0] == op else [tree]
