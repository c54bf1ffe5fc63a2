"""Families of generated programming tasks: each draws a statement, a solution in Python, and any number of tests.

The function `answer` computes the expected outputs in this process. The solution is source text and runs only in a sandbox. `rlvr check`
runs both, so it finds a family whose solution and `answer` disagree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

WORDS = "apple pear plum fig kiwi lemon mango grape melon peach".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class ContestProblem:
    """A generated programming problem: statement, solution, and functions that make its tests.

    >>> problem = FAMILIES["weighted_sum"](random.Random(0))
    >>> len(problem.make_cases(random.Random(0), 3))
    3
    """

    statement: str
    solution: str
    draw_input: Callable[[random.Random], str]
    compute_output: Callable[[str], str]

    def make_cases(self, rng: random.Random, count: int) -> list[dict[str, str]]:
        """Return `count` tests, all different if the task has that many."""
        seen: dict[str, str] = {}
        for _ in range(20 * count):
            stdin = self.draw_input(rng)
            seen.setdefault(stdin, self.compute_output(stdin))
            if len(seen) == count:
                break
        return [{"stdin": stdin, "stdout": stdout + "\n"} for stdin, stdout in seen.items()]


def _draw_numbers(rng: random.Random, low: int = -50, high: int = 50) -> str:
    numbers = [rng.randint(low, high) for _ in range(rng.randint(1, 12))]
    return f"{len(numbers)}\n{' '.join(map(str, numbers))}\n"


def _parse_numbers(stdin: str) -> list[int]:
    return [int(word) for word in stdin.split()[1:]]


READ_NUMBERS_CODE = "n = int(input())\nxs = list(map(int, input().split()))\n"


def _make_weighted_sum_problem(rng: random.Random) -> ContestProblem:
    """A sum with one weight for even positions and another for odd positions."""
    even, odd = rng.randint(2, 30), rng.randint(-30, -2)
    return ContestProblem(
        f"The first line holds n, the second n whole numbers. Add up the numbers, those at places 0, 2, 4, ... multiplied by {even} "
        f"and those at places 1, 3, 5, ... multiplied by {odd}. Print the sum.",
        f"{READ_NUMBERS_CODE}print({even} * sum(xs[::2]) + {odd} * sum(xs[1::2]))",
        _draw_numbers,
        lambda stdin: str(sum(x * (odd if i % 2 else even) for i, x in enumerate(_parse_numbers(stdin)))),
    )


def _make_count_in_range_problem(rng: random.Random) -> ContestProblem:
    """How many numbers lie in a range and have a given remainder."""
    low, high, modulus = rng.randint(-40, -1), rng.randint(1, 40), rng.randint(2, 7)
    rest = rng.randrange(modulus)
    return ContestProblem(
        f"The first line holds n, the second n whole numbers. Print how many of them lie from {low} to {high}, both included, and leave "
        f"the remainder {rest} (from 0 to {modulus - 1}) when divided by {modulus}.",
        f"{READ_NUMBERS_CODE}print(sum({low} <= x <= {high} and x % {modulus} == {rest} for x in xs))",
        _draw_numbers,
        lambda stdin: str(len([x for x in _parse_numbers(stdin) if low <= x <= high and x % modulus == rest])),
    )


def _make_rotated_list_problem(rng: random.Random) -> ContestProblem:
    """The numbers, sorted and rotated by some places."""
    places, down = rng.randint(1, 20), rng.random() < 0.5
    order = "falling" if down else "rising"
    return ContestProblem(
        f"The first line holds n, the second n whole numbers. Sort them in {order} order, then move the first of them to the end, "
        f"{places} times in a row. Print the numbers on one line.",
        f"{READ_NUMBERS_CODE}xs.sort(reverse={down})\nk = {places} % n\nprint(*xs[k:] + xs[:k])",
        _draw_numbers,
        lambda stdin: _rotate_left(sorted(_parse_numbers(stdin), reverse=down), places),
    )


def _rotate_left(numbers: list[int], places: int) -> str:
    for _ in range(places):
        numbers = [*numbers[1:], numbers[0]]
    return " ".join(map(str, numbers))


def _make_longest_run_problem(rng: random.Random) -> ContestProblem:
    """The longest run of neighbours that differ by at most a given amount."""
    most = rng.randint(3, 60)
    solution = (
        f"{READ_NUMBERS_CODE}best = run = 1\nfor a, b in zip(xs, xs[1:]):\n    run = run + 1 if abs(a - b) <= {most} else 1\n"
        "    best = max(best, run)\nprint(best)"
    )

    def answer(stdin: str) -> str:
        numbers = _parse_numbers(stdin)
        spans = [(i, j) for i in range(len(numbers)) for j in range(i + 1, len(numbers) + 1)]
        fits = [j - i for i, j in spans if all(abs(numbers[k] - numbers[k + 1]) <= most for k in range(i, j - 1))]
        return str(max(fits))

    return ContestProblem(
        "The first line holds n, the second n whole numbers. Print the length of the longest stretch of numbers side by side in which "
        f"every two neighbours differ by at most {most}.",
        solution,
        _draw_numbers,
        answer,
    )


def _make_caesar_problem(rng: random.Random) -> ContestProblem:
    """Letters shifted along the alphabet, every n-th one made a capital."""
    shift, step = rng.randint(1, 25), rng.randint(2, 9)
    solution = (
        f"out = ''.join(chr((ord(c) - 97 + {shift}) % 26 + 97) if c != ' ' else c for c in input())\n"
        f"print(''.join(c.upper() if i % {step} == {step - 1} else c for i, c in enumerate(out)))"
    )
    alphabet = "abcdefghijklmnopqrstuvwxyz"

    def answer(stdin: str) -> str:
        moved = stdin.rstrip("\n").translate(str.maketrans(alphabet, alphabet[shift:] + alphabet[:shift]))
        return "".join(c.upper() if (i + 1) % step == 0 else c for i, c in enumerate(moved))

    return ContestProblem(
        f"The input is one line of small letters and spaces. Replace every letter by the one {shift} places further in the alphabet (after "
        f"z comes a), then make every {step}th character of the line a capital, spaces counted. Print the line.",
        solution,
        lambda rng: " ".join(rng.choices(WORDS, k=rng.randint(1, 6))) + "\n",
        answer,
    )


def _make_grid_path_problem(rng: random.Random) -> ContestProblem:
    """The cheapest path through a grid, right or down, with a toll for each step down."""
    toll = rng.randint(1, 40)
    solution = (
        "r, c = map(int, input().split())\ng = [list(map(int, input().split())) for _ in range(r)]\n"
        "d = [[0] * c for _ in range(r)]\nfor i in range(r):\n    for j in range(c):\n        ways = []\n"
        f"        if i: ways.append(d[i-1][j] + {toll})\n        if j: ways.append(d[i][j-1])\n"
        "        d[i][j] = g[i][j] + (min(ways) if ways else 0)\nprint(d[-1][-1])"
    )

    def given(rng: random.Random) -> str:
        rows, columns = rng.randint(1, 5), rng.randint(1, 5)
        lines = [" ".join(str(rng.randint(0, 30)) for _ in range(columns)) for _ in range(rows)]
        return "\n".join([f"{rows} {columns}", *lines]) + "\n"

    def answer(stdin: str) -> str:
        grid = [list(map(int, line.split())) for line in stdin.splitlines()[1:]]

        def cheapest(row: int, column: int) -> int:
            ways = [cheapest(row - 1, column) + toll] if row else []
            ways += [cheapest(row, column - 1)] if column else []
            return grid[row][column] + min(ways, default=0)

        return str(cheapest(len(grid) - 1, len(grid[0]) - 1))

    return ContestProblem(
        "The first line holds r and c, then come r lines of c whole numbers. Walk from the top left cell to the bottom right one, only "
        f"right or down, and pay the number in each cell you stand on, the first and the last included; every step down costs {toll} more. "
        "Print the least you can pay.",
        solution,
        given,
        answer,
    )


FAMILIES: Mapping[str, Callable[[random.Random], ContestProblem]] = {
    "weighted_sum": _make_weighted_sum_problem,
    "count_between": _make_count_in_range_problem,
    "rotate": _make_rotated_list_problem,
    "longest_run": _make_longest_run_problem,
    "caesar": _make_caesar_problem,
    "grid_path": _make_grid_path_problem,
}
