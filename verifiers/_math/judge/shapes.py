"""Align the notation of answer and gold where two notations have different trees but the same meaning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from rlvr.verifiers._math.judge.relations import named
from rlvr.verifiers._math.judge.scalars import exact_or_none
from rlvr.verifiers._math.read.atoms import name as named_points
from rlvr.verifiers._math.read.tree import Tree, has, substitute, symbols, walk
from rlvr.verifiers._math.value.exact import exact

FIELDS = (("const", "Z"), ("const", "N"))
OPTIONS = frozenset("ABCDEFGHIJ")
PARAMETERS = ("k", "l", "m", "n")
DOTS = ("const", "dots")
AXES = ("ell_vi", "ell_vj", "ell_vk")
"""Names of the unit vectors after the spelling rules."""


def shaped(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """Align alternative names, positions and numberings of gold and answer."""
    gold, answer = vectors(*families(matrices(pointed(gold)), matrices(pointed(answer))))
    if gold[0] == "mod":
        answer = residue(answer)
    return gold, clocked(argued(gold, answer), gold)


def pointed(tree: Tree) -> Tree:
    """Convert a point with its letter, `A(1, 2)`, to `A = (1, 2)`; C(5, 2) stays a binomial coefficient."""
    if tree[0] == "list":
        return ("list", *(pointed(arg) for arg in tree[1:]))
    if tree[0] == "mul" and len(tree) == 3 and tree[1][0] == "sym" and tree[1][1][0] in "ABDEFGHIJKLMNOPQRSTUVW" and tree[2][0] == "tuple":
        return ("rel", tree[1], "=", tree[2])
    return tree


def remainder(tree: Tree) -> Tree:
    """Convert `3 mod 7` without a bracket to a residue, for comparison with a residue."""
    return ("mod", *tree[2:]) if tree[:2] == ("fun", "mod") else tree


def residue(tree: Tree) -> Tree:
    """Extract the residue that a family over the integers describes: `x = 12k + 5, k in Z` is 5 (mod 12)."""
    values, letter, _ = _family(tree)
    name, value = named(values)
    if not letter and name and len(symbols(value)) == 1 and symbols(value) <= {*PARAMETERS, "t"} - {name}:
        (letter,) = symbols(value)  # next to a residue, the letter of x = 7k + 3 is an integer
    if not letter or symbols(value) != {letter}:
        return tree
    at = [exact(substitute(value, {letter: ("num", k, 1)})) for k in (0, 1, 2, 5)]
    first, second, third, last = at
    if first is None or second is None or third is None or last is None:
        return tree
    step = second - first
    if not step or third - first != 2 * step or last - first != 5 * step or any(part.denominator != 1 for part in (first, step)):
        return tree
    return ("mod", ("num", first.numerator, 1), ("num", abs(step.numerator), 1))


def argued(gold: Tree, answer: Tree) -> Tree:
    """Rename a function's argument to the gold's letter: `f(t) = 2t` if the gold is `f(x) = 2x`."""
    if gold[0] != "rel" or answer[0] != "rel" or any(side[0] != "mul" or len(side) != 3 for side in (gold[1], answer[1])):
        return answer
    (_, name, wanted), (_, other, given) = gold[1], answer[1]
    if name != other or wanted == given or not wanted[0] == given[0] == "sym":
        return answer
    return renamed(renamed(answer, wanted[1], f"{wanted[1]}'"), given[1], wanted[1])  # f(x) = y^2 is a constant, not f(y) = y^2


def clocked(time: Tree, gold: Tree) -> Tree:
    """Convert a time of day to the gold's 12- or 24-hour format: 15:30 if the gold is 3:30 pm; anything else is unchanged.

    >>> clocked(("time", 15, 30, ""), ("time", 3, 30, "pm"))
    ('time', 3, 30, 'pm')
    """
    if not time[0] == gold[0] == "time" or bool(time[3]) == bool(gold[3]):
        return time
    hour = time[1] % 12 + 12 * (time[3] == "pm") if time[3] else time[1]
    if not gold[3]:
        return ("time", hour, time[2], "") if hour == gold[1] else time
    return ("time", (hour - 1) % 12 + 1, time[2], "pm" if hour > 12 else "am") if hour > 12 or not hour else time


def grouped(tree: Tree) -> Tree:
    """Group several solutions of several unknowns: `p = 5, q = 2, p = 7, q = 2` is (5, 2), (7, 2).

    >>> one, two = ("num", 1, 1), ("num", 2, 1)
    >>> row = [("rel", ("sym", name), "=", value) for name, value in zip("xyxy", (one, two, two, one))]
    >>> grouped(("list", *row)) == ("list", ("tuple", one, two), ("tuple", two, one))
    True
    """
    if tree[0] != "list":
        return tree
    members = [part for arg in tree[1:] for part in (arg[1:] if arg[0] == "list" else (arg,))]
    pairs = [named(arg) for arg in members]
    names = [name for name, _ in pairs]
    size = len(set(names))
    if not all(names) or size < 2 or len(names) < 2 * size or names != names[:size] * (len(names) // size):
        return tree
    values = [value for _, value in pairs]
    return ("list", *(("tuple", *values[at : at + size]) for at in range(0, len(values), size)))


def chosen(gold: Tree) -> bool:
    """Whether the gold is several letters of a multiple choice: A, C."""
    return gold[0] in ("list", "set") and all(arg[0] == "sym" and arg[1] in OPTIONS for arg in gold[1:])


def options(gold: Tree, answer: Tree) -> Tree:
    """Split several letters of a multiple choice without commas: `ACD` for the gold A, C, D."""
    if not chosen(gold) or answer[0] != "text" or not answer[1].isalpha():
        return answer
    letters = answer[1].upper()
    return ("list", *(("sym", letter) for letter in letters)) if OPTIONS.issuperset(letters) else answer


def as_letters(gold: Tree, answer: Tree) -> Tree:
    """Convert a short word to what its letters mean in the gold: a product, or the name of an angle."""
    if answer[0] == "text" and gold[0] == "sym" and " " in gold[1]:
        return named_points(gold[1].partition(" ")[0], answer[1].upper())
    letters = {letter.lower(): letter for letter in symbols(gold)}
    if answer[0] != "text" or not answer[1].isalpha() or not letters.keys() >= set(answer[1]):
        return answer
    first, *rest = (("sym", letters[letter]) for letter in answer[1])
    return ("mul", first, *rest) if rest else first


def renamed(tree: Tree, old: str, new: str) -> Tree:
    """Replace one letter in a tree."""
    if tree == ("sym", old):
        return ("sym", new)
    return tuple(renamed(arg, old, new) if isinstance(arg, tuple) else arg for arg in tree)


def _family(tree: Tree) -> tuple[Tree, str, Tree | None]:
    """Split a family such as `pi k, k in Z` into its values, its parameter and the parameter's range; no parameter for anything else."""
    last = tree[-1] if tree[0] in ("list", "builder") and len(tree) > 2 else None
    if last is None or last[0] != "rel" or last[2] != "in" or last[1][0] != "sym" or last[3] not in FIELDS:
        return tree, "", None
    values: Tree = tree[1] if len(tree) == 3 else tree[:-1]
    return (values, last[1][1], last[3]) if last[1][1] in symbols(values) else (tree, "", None)


def families(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """Align two families of values over the integers, so that the name of the parameter does not matter."""
    golds, letter, field = _family(gold)
    answers, mine, my_field = _family(answer)
    if not letter and not mine and has(gold, "const"):  # pi/4 + pi n, without a definition of n: still a trigonometric family
        (wanted, own) = ("".join(symbols(tree)) for tree in (gold, answer))
        if wanted != own and wanted in PARAMETERS and own in PARAMETERS and ("const", "pi") in walk(gold):
            return gold, renamed(answer, own, wanted)
    if not (letter or mine) or (letter and mine and field != my_field) or (not mine and letter not in symbols(answer)):
        return gold, answer
    if mine and mine not in symbols(golds):
        free = sorted(symbols(golds) - symbols(answers)) if not letter else [letter]
        if len(free) != 1 or free[0] in symbols(answers) or (not letter and (len(free[0]) > 1 or golds == ("sym", free[0]))):
            return gold, answer
        answers = renamed(answers, mine, free[0])
    return golds, answers


def combinations(tree: Tree) -> Tree:
    """Convert `C(10, 3)` to a binomial coefficient, where a value is expected."""
    parts = [combinations(arg) if isinstance(arg, tuple) else arg for arg in tree]
    if tree[0] == "mul":
        for at in range(len(parts) - 1):
            if parts[at] == ("sym", "C") and isinstance(parts[at + 1], tuple) and parts[at + 1][0] == "tuple" and len(parts[at + 1]) == 3:
                parts[at : at + 2] = [("binom", *parts[at + 1][1:])]
                return parts[1] if len(parts) == 2 else tuple(parts)
    return tuple(parts)


def dotted(members: list[Tree]) -> list[Tree]:
    """Shorten a list of numbers with dots to the fewest numbers before the dots: 1, 2, 3, ..., 10 is 1, 2, ..., 10."""
    at = members.index(DOTS) if members.count(DOTS) == 1 else 0
    values = [exact_or_none(arg) for arg in members[:at]]
    if at < 2 or None in values:
        return members
    steps = {b - a for a, b in itertools.pairwise(value for value in values if value is not None)}
    return [*members[: 2 if at + 1 < len(members) else 3], *members[at:]] if len(steps) == 1 else members


def vectors(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    r"""Convert sums of unit vectors to tuples of their components: `2\\mathbf{i} - \\mathbf{k}` is (2, 0, -1)."""
    used = (symbols(gold) | symbols(answer)).intersection(AXES)
    if not used:
        return gold, answer
    other = gold if not symbols(gold).intersection(AXES) else answer
    size = len(other) - 1 if other[0] == "tuple" else len(other[1]) if other[0] == "matrix" else 2 + (AXES[2] in used)
    return _components(gold, size), _components(answer, size)


def _components(tree: Tree, size: int) -> Tree:
    if tree[0] == "rel" and tree[2] == "=" and not symbols(tree[1]).intersection(AXES):
        tree = tree[-1]
    if size not in (2, 3) or not symbols(tree).intersection(AXES):
        return tree
    point = [_at(tree, axis) for axis in AXES[:size]]
    return ("tuple", *point) if all(symbols(part).isdisjoint(AXES) for part in point) else tree


def _at(tree: Tree, axis: str) -> Tree:
    """Return the factor of one unit vector in a sum of products."""
    if tree[0] == "add":
        return ("add", *(_at(arg, axis) for arg in tree[1:]))
    if tree[0] == "neg":
        return ("neg", _at(tree[1], axis))
    if tree[0] == "sym" and tree[1] in AXES:
        return ("num", int(tree[1] == axis), 1)
    if tree[0] == "mul":
        held = [arg for arg in tree[1:] if symbols(arg).intersection(AXES)]
        if len(held) == 1:
            return ("mul", *(_at(arg, axis) if arg is held[0] else arg for arg in tree[1:]))
    if tree[0] == "div" and symbols(tree[2]).isdisjoint(AXES):
        return ("div", _at(tree[1], axis), tree[2])
    return tree


def column(members: Sequence[Tree]) -> Tree:
    """Make a matrix of one column."""
    return ("matrix", tuple((member,) for member in members))


def matrices(tree: Tree) -> Tree:
    r"""Evaluate sums and multiples of matrices: `\\frac{1}{2} \\begin{pmatrix} 1 & 3 \\end{pmatrix}` is (1/2, 3/2)."""
    if tree[0] == "pow" and tree[2] == ("sym", "T"):
        return _turned(tree[1]) or tree
    if tree[0] == "rel" and tree[2] == "=" and len(tree) == 4 and tree[3][0] == "pow":
        return (*tree[:3], matrices(tree[3]))
    if tree[0] not in ("add", "mul", "neg", "div") or not has(tree, "matrix", "tuple"):
        return tree
    parts = [matrices(arg) for arg in tree[1:]]
    grids = [part for part in parts if part[0] == "matrix" or (part[0] == "tuple" and len(parts) == 2 and not symbols(parts[0]))]
    if tree[0] in ("neg", "div") and parts[0] in grids and len(grids) == 1:
        return _each(parts[0], lambda cell: (tree[0], cell, *parts[1:]))
    if tree[0] == "mul" and len(grids) == 1:
        factors = [part for part in parts if part is not grids[0]]
        return _each(grids[0], lambda cell: ("mul", *factors, cell))
    if tree[0] == "add" and len(grids) == len(parts) and len({_size(grid) for grid in grids}) == 1 and grids[0][0] == "matrix":
        rows = zip(*(grid[1] for grid in grids), strict=True)
        return ("matrix", tuple(tuple(("add", *cells) for cells in zip(*row, strict=True)) for row in rows))
    return tree


def _turned(tree: Tree) -> Tree | None:
    """Transpose a row or a matrix; None for anything else."""
    if tree[0] == "tuple" or (tree[0] == "interval" and tree[3:] == ("[", "]")):
        return column(tree[1:3] if tree[0] == "interval" else tree[1:])
    return ("matrix", tuple(zip(*tree[1], strict=True))) if tree[0] == "matrix" else None


def _size(grid: Tree) -> tuple[int, int]:
    return (len(grid[1]), len(grid[1][0])) if grid[0] == "matrix" else (0, len(grid))


def _each(grid: Tree, change: Callable[[Tree], Tree]) -> Tree:
    if grid[0] == "tuple":
        return ("tuple", *(change(cell) for cell in grid[1:]))
    return ("matrix", tuple(tuple(change(cell) for cell in row) for row in grid[1]))
