"""Align the notation of answer and gold where two notations have different trees but the same meaning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from rlvr.verifiers.math.compare.relations import split_assignment
from rlvr.verifiers.math.compare.scalars import exact_or_none
from rlvr.verifiers.math.parsing.parser import make_point_name as named_points
from rlvr.verifiers.math.parsing.tree import Tree, free_symbols, has_op, list_nodes, substitute
from rlvr.verifiers.math.values.rational import to_rational

INTEGER_SETS = (("const", "Z"), ("const", "N"))
CHOICE_LETTERS = frozenset("ABCDEFGHIJ")
FAMILY_LETTERS = ("k", "l", "m", "n")
DOTS = ("const", "dots")
UNIT_VECTORS = ("ell_vi", "ell_vj", "ell_vk")
"""Names of the unit vectors after the spelling rules."""


def align_notation(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """Align alternative names, positions and numberings of gold and answer."""
    gold, answer = convert_vectors(
        *align_families(evaluate_matrices(assign_point_name(gold)), evaluate_matrices(assign_point_name(answer)))
    )
    if gold[0] == "mod":
        answer = extract_residue(answer)
    return gold, match_clock_format(match_function_argument(gold, answer), gold)


def assign_point_name(tree: Tree) -> Tree:
    """Convert a point with its letter, `A(1, 2)`, to `A = (1, 2)`; C(5, 2) stays a binomial coefficient."""
    if tree[0] == "list":
        return ("list", *(assign_point_name(arg) for arg in tree[1:]))
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[1][1][0] in "ABDEFGHIJKLMNOPQRSTUVW" and tree[2][0] == "tuple":
        return ("rel", tree[1], "=", tree[2])
    return tree


def convert_remainder(tree: Tree) -> Tree:
    """Convert `3 mod 7` without a bracket to a residue, for comparison with a residue."""
    return ("mod", *tree[2:]) if tree[:2] == ("fun", "mod") else tree


def extract_residue(tree: Tree) -> Tree:
    """Extract the residue that a family over the integers describes: `x = 12k + 5, k in Z` is 5 (mod 12)."""
    values, letter, _ = _parse_family(tree)
    name, value = split_assignment(values)
    if not letter and name and len(free_symbols(value)) == 1 and free_symbols(value) <= {*FAMILY_LETTERS, "t"} - {name}:
        (letter,) = free_symbols(value)  # next to a residue, the letter of x = 7k + 3 is an integer
    if not letter or free_symbols(value) != {letter}:
        return tree
    at = [to_rational(substitute(value, {letter: ("num", k, 1)})) for k in (0, 1, 2, 5)]
    first, second, third, last = at
    if first is None or second is None or third is None or last is None:
        return tree
    step = second - first
    if not step or third - first != 2 * step or last - first != 5 * step or any(part.denominator != 1 for part in (first, step)):
        return tree
    return ("mod", ("num", first.numerator, 1), ("num", abs(step.numerator), 1))


def match_function_argument(gold: Tree, answer: Tree) -> Tree:
    """Rename a function's argument to the gold's letter: `f(t) = 2t` if the gold is `f(x) = 2x`."""
    if gold[0] != "rel" or answer[0] != "rel" or any(side[0] != "mul" or len(side) != 3 for side in (gold[1], answer[1])):
        return answer
    (_, name, wanted), (_, other, given) = gold[1], answer[1]
    if name != other or wanted == given or not wanted[0] == given[0] == "sym":
        return answer
    return rename_letter(rename_letter(answer, wanted[1], f"{wanted[1]}'"), given[1], wanted[1])  # f(x) = y^2 is a constant, not f(y) = y^2


def match_clock_format(time: Tree, gold: Tree) -> Tree:
    """Convert a time of day to the gold's 12- or 24-hour format: 15:30 if the gold is 3:30 pm; anything else is unchanged.

    >>> match_clock_format(("time", 15, 30, ""), ("time", 3, 30, "pm"))
    ('time', 3, 30, 'pm')
    """
    if not time[0] == gold[0] == "time" or bool(time[3]) == bool(gold[3]):
        return time
    hour = time[1] % 12 + 12 * (time[3] == "pm") if time[3] else time[1]
    if not gold[3]:
        return ("time", hour, time[2], "") if hour == gold[1] else time
    return ("time", (hour - 1) % 12 + 1, time[2], "pm" if hour > 12 else "am") if hour > 12 or not hour else time


def group_solutions(tree: Tree) -> Tree:
    """Group several solutions of several unknowns: `p = 5, q = 2, p = 7, q = 2` is (5, 2), (7, 2).

    >>> one, two = ("num", 1, 1), ("num", 2, 1)
    >>> row = [("rel", ("sym", name), "=", value) for name, value in zip("xyxy", (one, two, two, one))]
    >>> group_solutions(("list", *row)) == ("list", ("tuple", one, two), ("tuple", two, one))
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


def is_choice_list(gold: Tree) -> bool:
    """Whether the gold is several letters of a multiple choice: A, C."""
    return gold[0] in ("list", "set") and all(arg[0] == "sym" and arg[1] in CHOICE_LETTERS for arg in gold[1:])


def split_choice_letters(gold: Tree, answer: Tree) -> Tree:
    """Split several letters of a multiple choice without commas: `ACD` for the gold A, C, D."""
    if not is_choice_list(gold) or answer[0] != "text" or not answer[1].isalpha():
        return answer
    letters = answer[1].upper()
    return ("list", *(("sym", letter) for letter in letters)) if CHOICE_LETTERS.issuperset(letters) else answer


def split_word(gold: Tree, answer: Tree) -> Tree:
    """Convert a short word to what its letters mean in the gold: a product, or the name of an angle."""
    if answer[0] == "text" and gold[0] == "sym" and " " in gold[1]:
        return named_points(gold[1].partition(" ")[0], answer[1].upper())
    letters = {letter.lower(): letter for letter in free_symbols(gold)}
    if answer[0] != "text" or not answer[1].isalpha() or not letters.keys() >= set(answer[1]):
        return answer
    first, *rest = (("sym", letters[letter]) for letter in answer[1])
    return ("mul", first, *rest) if rest else first


def rename_letter(tree: Tree, old: str, new: str) -> Tree:
    """Replace one letter in a tree."""
    if tree == ("sym", old):
        return ("sym", new)
    return tuple(rename_letter(arg, old, new) if isinstance(arg, tuple) else arg for arg in tree)


def _parse_family(tree: Tree) -> tuple[Tree, str, Tree | None]:
    """Split a family such as `pi k, k in Z` into its values, its parameter and the parameter's range; no parameter for anything else."""
    last = tree[-1] if tree[0] in ("list", "builder") and len(tree) > 2 else None
    if last is None or last[0] != "rel" or last[2] != "in" or last[1][0] != "sym" or last[3] not in INTEGER_SETS:
        return tree, "", None
    values: Tree = tree[1] if len(tree) == 3 else tree[:-1]
    return (values, last[1][1], last[3]) if last[1][1] in free_symbols(values) else (tree, "", None)


def align_families(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """Align two families of values over the integers, so that the name of the parameter does not matter."""
    golds, letter, field = _parse_family(gold)
    answers, mine, my_field = _parse_family(answer)
    if not letter and not mine and has_op(gold, "const"):  # pi/4 + pi n, without a definition of n: still a trigonometric family
        (wanted, own) = ("".join(free_symbols(tree)) for tree in (gold, answer))
        if wanted != own and wanted in FAMILY_LETTERS and own in FAMILY_LETTERS and ("const", "pi") in list_nodes(gold):
            return gold, rename_letter(answer, own, wanted)
    if not (letter or mine) or (letter and mine and field != my_field) or (not mine and letter not in free_symbols(answer)):
        return gold, answer
    if mine and mine not in free_symbols(golds):
        free = sorted(free_symbols(golds) - free_symbols(answers)) if not letter else [letter]
        if len(free) != 1 or free[0] in free_symbols(answers) or (not letter and (len(free[0]) > 1 or golds == ("sym", free[0]))):
            return gold, answer
        answers = rename_letter(answers, mine, free[0])
    return golds, answers


def convert_combinations(tree: Tree) -> Tree:
    """Convert `C(10, 3)` to a binomial coefficient, where a value is expected."""
    parts = [convert_combinations(arg) if isinstance(arg, tuple) else arg for arg in tree]
    if tree[0] == "mul":
        for at in range(len(parts) - 1):
            if parts[at] == ("sym", "C") and isinstance(parts[at + 1], tuple) and parts[at + 1][0] == "tuple" and len(parts[at + 1]) == 3:
                parts[at : at + 2] = [("binom", *parts[at + 1][1:])]
                return parts[1] if len(parts) == 2 else tuple(parts)
    return tuple(parts)


def shorten_dotted(members: list[Tree]) -> list[Tree]:
    """Shorten a list of numbers with dots to the fewest numbers before the dots: 1, 2, 3, ..., 10 is 1, 2, ..., 10."""
    at = members.index(DOTS) if members.count(DOTS) == 1 else 0
    values = [exact_or_none(arg) for arg in members[:at]]
    if at < 2 or None in values:
        return members
    steps = {b - a for a, b in itertools.pairwise(value for value in values if value is not None)}
    return [*members[: 2 if at + 1 < len(members) else 3], *members[at:]] if len(steps) == 1 else members


def convert_vectors(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    r"""Convert sums of unit vectors to tuples of their components: `2\\mathbf{i} - \\mathbf{k}` is (2, 0, -1)."""
    used = (free_symbols(gold) | free_symbols(answer)).intersection(UNIT_VECTORS)
    if not used:
        return gold, answer
    other = gold if not free_symbols(gold).intersection(UNIT_VECTORS) else answer
    size = len(other) - 1 if other[0] == "tuple" else len(other[1]) if other[0] == "matrix" else 2 + (UNIT_VECTORS[2] in used)
    return _split_components(gold, size), _split_components(answer, size)


def _split_components(tree: Tree, size: int) -> Tree:
    if tree[0] == "rel" and tree[2] == "=" and not free_symbols(tree[1]).intersection(UNIT_VECTORS):
        tree = tree[-1]
    if size not in (2, 3) or not free_symbols(tree).intersection(UNIT_VECTORS):
        return tree
    point = [_get_component(tree, axis) for axis in UNIT_VECTORS[:size]]
    return ("tuple", *point) if all(free_symbols(part).isdisjoint(UNIT_VECTORS) for part in point) else tree


def _get_component(tree: Tree, axis: str) -> Tree:
    """Return the factor of one unit vector in a sum of products."""
    if tree[0] == "add":
        return ("add", *(_get_component(arg, axis) for arg in tree[1:]))
    if tree[0] == "neg":
        return ("neg", _get_component(tree[1], axis))
    if tree[0] == "sym" and tree[1] in UNIT_VECTORS:
        return ("num", int(tree[1] == axis), 1)
    if tree[0] == "mul":
        held = [arg for arg in tree[1:] if free_symbols(arg).intersection(UNIT_VECTORS)]
        if len(held) == 1:
            return ("mul", *(_get_component(arg, axis) if arg is held[0] else arg for arg in tree[1:]))
    if tree[0] == "div" and free_symbols(tree[2]).isdisjoint(UNIT_VECTORS):
        return ("div", _get_component(tree[1], axis), tree[2])
    return tree


def make_column(members: Sequence[Tree]) -> Tree:
    """Make a matrix of one column."""
    return ("matrix", tuple((member,) for member in members))


def evaluate_matrices(tree: Tree) -> Tree:
    r"""Evaluate sums and multiples of matrices: `\\frac{1}{2} \\begin{pmatrix} 1 & 3 \\end{pmatrix}` is (1/2, 3/2)."""
    if tree[0] == "pow" and tree[2] == ("sym", "T"):
        return _transpose(tree[1]) or tree
    if tree[0] == "rel" and tree[2] == "=" and len(tree) == 4 and tree[3][0] == "pow":
        return (*tree[:3], evaluate_matrices(tree[3]))
    if tree[0] not in ("add", "mul", "neg", "div") or not has_op(tree, "matrix", "tuple"):
        return tree
    parts = [evaluate_matrices(arg) for arg in tree[1:]]
    grids = [part for part in parts if part[0] == "matrix" or (part[0] == "tuple" and len(parts) == 2 and not free_symbols(parts[0]))]
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
        return make_column(tree[1:3] if tree[0] == "interval" else tree[1:])
    return ("matrix", tuple(zip(*tree[1], strict=True))) if tree[0] == "matrix" else None


def _grid_size(grid: Tree) -> tuple[int, int]:
    return (len(grid[1]), len(grid[1][0])) if grid[0] == "matrix" else (0, len(grid))


def _map_cells(grid: Tree, change: Callable[[Tree], Tree]) -> Tree:
    if grid[0] == "tuple":
        return ("tuple", *(change(cell) for cell in grid[1:]))
    return ("matrix", tuple(tuple(change(cell) for cell in row) for row in grid[1]))
