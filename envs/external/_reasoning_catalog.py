"""Catalog of the reasoning_gym data sets: which are supported, how each is scored, and the required form of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

VERSION = "0.1.25"
"""The package version that the tables below were made with; `benchmarks/envs/puzzles.py` prints them again."""
DATASET_NAMES = frozenset(
    str.split("""
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation binary_matrix bitwise_arithmetic
    boxnet caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio coin_flip color_cube_rotation complex_arithmetic count_bits
    count_primes countdown course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships
    figlet_font fraction_simplification futoshiki game_of_life game_of_life_halting gcd graph_color group_anagrams gsm_symbolic
    intermediate_integration isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid n_queens needle_haystack number_filtering
    number_format number_sequence number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations
    polynomial_multiplication pool_matrix power_function prime_factorization products propositional_logic puzzle24 quantum_lock
    ransom_note rearc rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour self_reference sentence_reordering
    shortest_path simple_equations simple_geometry simple_integration sokoban spell_backward spiral_matrix string_insertion
    string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
    word_sequence_reversal word_sorting zebra_puzzles
    """)
)
COMPARED_EXACTLY = frozenset(
    str.split("""
    fraction_simplification game_of_life_halting gsm_symbolic letter_jumble spell_backward time_intervals word_sorting binary_matrix
    n_queens spiral_matrix string_insertion
    """)
)
"""Data sets whose own scorer rewards wrong answers or executes answers. They are compared with the gold answer; n_queens has several."""
COMPARED_BY_ALGEBRA = ("countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration")
"""Data sets whose scorer passes the answer to SymPy, which executes it: see `_algebra`."""
COMPARED_IN_SANDBOX = COMPARED_BY_ALGEBRA[3:]
ANSWER_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "complex_arithmetic": re.compile(r"[-+()\s\d.ij]+"),  # its scorer rewards "nan"
    "coin_flip": re.compile(r"\d+(?:\.\d+)?(?:[eE]-?\d{1,3})?(?:\s*/\s*[1-9]\d*)?"),
    "advanced_geometry": re.compile(r"\(-?\d+(?:\.\d+)?,\s*-?\d+(?:\.\d+)?\)|-?\d+(?:\.\d+)?\s*°?"),
    "kakurasu": re.compile(r"[01\s]+"),
    "survo": re.compile(r"[\d\s-]+"),
    "sokoban": re.compile(r"[UDLR]+"),
    "quantum_lock": re.compile(r"[A-Z](?:\s*→\s*[A-Z])*"),
    "knights_knaves": re.compile(r"(?:[A-Z][a-z]+ is an? [a-z]+(?:, and |, | and |\.?$))+"),
    "polynomial_equations": re.compile(r"-?\d+(?:\.\d+)?(?:\s*,\s*-?\d+(?:\.\d+)?)*"),
}
"""Data sets whose own scorer rewards a sentence around an answer, or two answers: the whole answer must match this pattern."""
WORD_COUNT_CHECKED = frozenset(("knights_knaves", "polynomial_equations"))
"""Data sets whose answer must also have as many words as the gold answer."""
RELATIVE_TOLERANCES: Mapping[str, Fraction] = {"coin_flip": Fraction(1, 1000)}
"""Relative tolerance for data sets whose own scorer allows an error larger than some gold answers."""
WITHOUT_GOLD = frozenset(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"))
"""Data sets without a gold answer, so that no check can show that a correct answer is rewarded."""
UNSUPPORTED: Mapping[str, str] = {
    "composite": "a mixture of others; name them one by one, with one environment each",
}


def is_well_formed(dataset: str, answer: str, gold: str | None) -> bool:
    """Return whether a text has the required form of an answer to this data set.

    >>> is_well_formed("sokoban", "LLURD", "LL"), is_well_formed("sokoban", "The moves are LLURD", "LL")
    (True, False)
    """
    form = ANSWER_PATTERNS.get(dataset)
    if form is not None and not form.fullmatch(answer):
        return False
    if dataset in RELATIVE_TOLERANCES and gold is not None:
        return _is_within_tolerance(answer, gold, RELATIVE_TOLERANCES[dataset])
    return dataset not in WORD_COUNT_CHECKED or gold is None or len(answer.split()) == len(gold.split())


def are_lines_equal(answer: str, reference: str) -> bool:
    r"""Return whether two texts are equal line by line, up to the width of spaces.

    >>> are_lines_equal("0 1\n1  0", "0 1\n1 0"), are_lines_equal("0 1 1 0", "0 1\n1 0"), are_lines_equal("a,b", "a, b")
    (True, False, True)
    """
    one, other = ([re.sub(r"\s*,\s*", ", ", line).split() for line in text.strip().splitlines()] for text in (answer, reference))
    return one == other


def describe_scoring(dataset: str) -> str:
    """Describe how an answer to this data set is scored.

    >>> describe_scoring("gcd"), describe_scoring("puzzle24")
    ("the package's scorer, full score only", 'exact arithmetic of our own')
    """
    if dataset in COMPARED_IN_SANDBOX:
        return "SymPy in the sandbox, on checked formulas"
    if dataset in COMPARED_BY_ALGEBRA:
        return "exact arithmetic of our own"
    if dataset in COMPARED_EXACTLY:
        return "equality with the right answer"
    more = ", of answers in the form that is asked for" if dataset in ANSWER_PATTERNS else ""
    return f"the package's scorer, full score only{more}" + ("; no right answer is known" if dataset in WITHOUT_GOLD else "")


def _is_within_tolerance(answer: str, gold: str, error: Fraction) -> bool:
    if len(answer) > 60:
        return False
    above, _, below = answer.partition("/")
    try:
        value, right = Fraction(above.strip()) / Fraction(below.strip() or 1), Fraction(gold)
    except (ValueError, ZeroDivisionError):
        return False
    return abs(value - right) <= error * abs(right)
