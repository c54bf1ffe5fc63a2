"""Verify a table in Markdown, CSV or tab-separated lines, cell by cell."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, require_text_answers
from rlvr.extraction import strip_thinking
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._markup import strip_markdown_and_latex

Rows = list[list[str]]
MAX_CELLS = 100_000
HEADER_RULE = re.compile(r"[\s|:-]*-[\s|:-]*")
"""The line under the head of a Markdown table."""
FENCE_LINE = re.compile(r"^[ \t]*```([^\n`]*)$", re.MULTILINE)
NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
"""Cells that are compared as numbers. 007 is not: it is a code."""


class Table(Verifier):
    r"""The one table of the answer has the reference's columns and rows.

    The reference is a list of objects (one a row), a list of lists (the first is the head), or the text of a table. Columns are found by
    name, so their order does not matter; the order of rows does unless `ordered` is false. Numbers are compared as numbers, anything else
    as text without markup and case. An answer with two tables, with an extra column or row, or with rows of different lengths is wrong.

    >>> import rlvr
    >>> task = rlvr.Task(rlvr.make_user_prompt("?"), id="t", reference=[{"city": "Rome", "people": 2800000}])
    >>> rlvr.make_verifier("table").verify(task, "| people | city |\n|---|---|\n| 2,800,000 | Rome |").score
    1.0
    """

    examples = (
        VerifierExample(
            [{"city": "Rome", "km": 5}],
            correct=("| city | km |\n|---|---|\n| Rome | 5 |", "city,km\nRome,5", "```csv\nkm,city\n5.0,rome\n```"),
            incorrect=("| city | km |\n|---|---|\n| Oslo | 5 |", "| city | km |\n|---|---|\n| Rome | 5 |\n| Oslo | 5 |", "Rome 5"),
        ),
    )

    def __init__(self, *, ordered: bool = True, tolerance: float = 0.0) -> None:
        """Set how rows and numbers are compared.

        Args:
            ordered: whether the order of the rows counts.
            tolerance: the largest relative difference of two equal numbers.
        """
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
            raise ConfigError(f"tolerance is {tolerance!r}; it must be a number from 0 to 1")
        self.ordered, self.tolerance = ordered, tolerance

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Parse both tables and compare them."""
        try:
            gold = _parse_reference(task.reference)
        except ValueError as error:
            return Verdict(None, f"the reference is not a table: {error}", fault=Fault.TASK)
        shown = strip_thinking(answer)
        try:
            said = _parse_table(shown or "")
        except ValueError as error:
            return Verdict(0.0, f"no table: {error}")
        heads = [_normalize_cell(name) for name in said[0]]
        wanted = [_normalize_cell(name) for name in gold[0]]
        if Counter(heads) != Counter(wanted):
            return Verdict(0.0, f"the columns are {', '.join(said[0]):.80}, not {', '.join(gold[0]):.80}")
        at = [heads.index(name) for name in wanted]
        mine = [[row[k] for k in at] for row in said[1:]]
        if len(mine) != len(gold) - 1:
            return Verdict(0.0, f"it has {len(mine)} rows, not {len(gold) - 1}")
        return self._compare_cells(mine, gold[1:])

    def _compare_cells(self, mine: Rows, gold: Rows) -> Verdict:
        if not self.ordered:
            mine, gold = _align_rows(mine, gold, self._is_equal_cell)
        wrong = [
            (a, b) for one, two in zip(mine, gold, strict=True) for a, b in zip(one, two, strict=True) if not self._is_equal_cell(a, b)
        ]
        cells = sum(map(len, gold))
        parts = {"cells": 1 - len(wrong) / cells}
        reason = f"{wrong[0][0]!r:.60} where the reference has {wrong[0][1]!r:.60}" if wrong else "every cell is right"
        return Verdict(float(not wrong), reason, parts)

    def _is_equal_cell(self, said: str, gold: str) -> bool:
        a, b = _parse_number(said), _parse_number(gold)
        if a is not None and b is not None:
            return abs(a - b) <= Fraction(self.tolerance) * abs(b)
        return _normalize_cell(said) == _normalize_cell(gold)


def _parse_table(text: str) -> Rows:
    r"""Parse the one table of a text, header first; ValueError if there is none, more than one, or rows have different lengths.

    >>> _parse_table("| a | b |\n|---|---|\n| 1 | x\\|y |")
    [['a', 'b'], ['1', 'x|y']]
    """
    if len(text) > 20 * MAX_CELLS:
        raise ValueError(f"the text has {len(text)} characters")
    blocks = _find_fenced_blocks(text) or [text]
    tables = [table for block in blocks for table in _find_markdown_tables(block)]
    if not tables:
        tables = [table for block in blocks if (table := _parse_delimited(block)) is not None]
    if len(tables) != 1:
        raise ValueError(f"there are {len(tables)} tables" if tables else "there is none")
    return _validate_rows(tables[0])


def _find_fenced_blocks(text: str) -> list[str]:
    """Find the contents of all closed code blocks, in one pass: an answer may open blocks without end."""
    found, start = [], None
    for mark in FENCE_LINE.finditer(text):
        if start is None:
            start = mark.end() + 1
        elif not mark[1].strip():
            found.append(text[start : mark.start()])
            start = None
    return found


def _validate_rows(rows: Rows) -> Rows:
    if len(rows) < 2:
        raise ValueError("it has no rows")
    names = [_normalize_cell(name) for name in rows[0]]
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    if any(len(row) != len(names) for row in rows):
        raise ValueError("its rows have different lengths")
    return rows


def _find_markdown_tables(text: str) -> list[Rows]:
    """Find every Markdown table: lines with pipes, of which the second is a rule."""
    found: list[Rows] = []
    lines = text.splitlines()
    for piped, group in itertools.groupby(lines, lambda line: "|" in line):
        block = list(group)
        if piped and len(block) > 1 and HEADER_RULE.fullmatch(block[1]):
            found.append([_split_cells(line) for line in (block[0], *block[2:])])
    return found


def _split_cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", inner)]


def _parse_delimited(text: str) -> Rows | None:
    """Parse lines with commas or tabs as a table; None if they are not one."""
    lines = text.strip().splitlines()
    for delimiter in "\t,":
        if len(lines) > 1 and delimiter in lines[0]:
            try:
                return [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter, strict=True) if row]
            except csv.Error:
                return None
    return None


def _parse_reference(given: Any) -> Rows:
    if isinstance(given, str):
        return _parse_table(given)
    if not isinstance(given, Sequence) or isinstance(given, bytes) or not given:
        raise ValueError(f"it is {given!r:.60}; give a list of objects, a list of lists, or the text of a table")
    if all(isinstance(row, Mapping) for row in given):
        names = list(given[0])
        if not names or any(set(row) != set(names) for row in given):
            raise ValueError("its rows have different columns")
        given = [names, *([row[name] for name in names] for row in given)]
    if not all(isinstance(row, list | tuple) and row for row in given):
        raise ValueError(f"it is {given!r:.60}; give a list of objects, a list of lists, or the text of a table")
    return _validate_rows([["" if cell is None else str(cell) for cell in row] for row in given])


def _align_rows(mine: Rows, gold: Rows, cells_equal: Any) -> tuple[Rows, Rows]:
    """Reorder both tables so that equal rows have the same position, and the order does not count."""
    left, first, second = list(mine), [], []
    missing = []
    for row in gold:
        at = next((k for k, other in enumerate(left) if all(map(cells_equal, other, row))), None)
        if at is None:
            missing.append(row)
        else:
            first.append(left.pop(at))
            second.append(row)
    return [*first, *left], [*second, *missing]


def _parse_number(text: str) -> Fraction | None:
    text = strip_markdown_and_latex(text) if len(text) <= 100 else ""
    return Fraction(text.replace(",", "")) if NUMBER.fullmatch(text) else None


def _normalize_cell(text: str) -> str:
    return " ".join(strip_markdown_and_latex(text).split()).casefold()


make = Table
